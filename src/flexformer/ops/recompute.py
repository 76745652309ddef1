"""What the two block-wise forms share.

Linear attention keeps features of one block at a time, forward and backward: saved for the backward pass are the
inputs, the output and states, and features are computed anew, block by block. Gradients of features come from the
kernel, which may have written them out by hand (`Kernel.blocks`).
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from typing import Any

import torch
from torch import Tensor

from ..kernels import Kernel
from ..kernels.base import LARGEST_INPUT
from ..kernels.blocks import BlockFeatures
from ..kernels.held import holding
from ..kernels.weights import full_precision
from ..kernels.workspace import Workspace
from .state import State

# How many numbers the features of a block hold. On a CPU what is computed from them should stay in the caches, with
# one thread and with several; other devices want much to do at once.
BLOCK_NUMBERS = {"cpu": 2**18}
BLOCK_NUMBERS_ELSEWHERE = 2**24
SMALLEST_BLOCK = 64
INPUTS = 8  # of both autograd functions: the plan, q, k, v, S, z, w and m; the kernel's tensors come after them


def block_length(kernel: Kernel, q: Tensor, multiple: int = 1) -> int:
    """Tokens to a block, a multiple of `multiple`."""
    numbers = BLOCK_NUMBERS.get(q.device.type, BLOCK_NUMBERS_ELSEWHERE)
    length = numbers // max(1, q.shape[0] * q.shape[1] * kernel.num_features)
    return max(length, SMALLEST_BLOCK) // multiple * multiple or multiple


def blocks(length: int, size: int) -> Iterator[slice]:
    return (slice(start, min(start + size, length)) for start in range(0, length, size))


def remember(ctx: Any, plan: Any, held: Sequence[Tensor], *tensors: Tensor | None) -> None:
    """Save what the backward pass computes from with autograd, which then notices if it is changed in place.

    Args:
        ctx: of the forward pass.
        plan: a NamedTuple with a `kernel` and the `names` of its tensors.
        held: the kernel's tensors.
        *tensors: whatever else there is.
    """
    own = {name: value for name, value in plan._asdict().items() if isinstance(value, Tensor)}
    ctx.plan, ctx.fields = plan._replace(**dict.fromkeys(own)), tuple(own)
    ctx.save_for_backward(*own.values(), *held, *tensors)


def recall(ctx: Any) -> tuple[Any, tuple[Tensor, ...], tuple[Tensor, ...]]:
    """The plan, the kernel's tensors and the others, as they were remembered."""
    saved, first, count = ctx.saved_tensors, len(ctx.fields), len(ctx.plan.names)
    plan = ctx.plan._replace(**dict(zip(ctx.fields, saved[:first], strict=True)))
    return plan, saved[first : first + count], saved[first + count :]


@contextmanager
def as_it_was(ctx: Any, plan: Any, held: Sequence[Tensor], q: Tensor) -> Iterator[Any]:
    """The plan with the kernel of its forward pass, with leaves of a graph of its own as parameters."""
    needs = ctx.needs_input_grad[INPUTS:]
    leaves = [x.detach().requires_grad_(need) for x, need in zip(held, needs, strict=True)]
    with full_precision(q):
        yield plan._replace(kernel=holding(plan.kernel, dict(zip(plan.names, leaves, strict=True))))


def in_order(ctx: Any, plan: Any, held: Sequence[Tensor], gradients: Mapping[str, Tensor]) -> Iterator[Tensor | None]:
    """Gradients of the kernel's tensors, None where none is needed and where features do not depend on one."""
    for name, x, need in zip(plan.names, held, ctx.needs_input_grad[INPUTS:], strict=True):
        yield gradients[name].to(x.dtype) if need and name in gradients else None


def differentiable_gradients(
    ctx: Any,
    plan: Any,
    attention: Callable[[Kernel, Tensor, Tensor, Tensor, State], tuple[Tensor, State]],
    inputs: Sequence[Tensor],
    held: Sequence[Tensor],
    gradients: tuple[Tensor, ...],
) -> tuple[Any, ...]:
    """Gradients that can be differentiated again, for those who ask: through operations autograd knows.

    Args:
        ctx: of the backward pass.
        plan: of the forward pass.
        attention: from the kernel of the forward pass, q, k, v and a state.
        inputs: q, k, v, S, z, w and m.
        held: the kernel's tensors.
        gradients: of the output and of the S, z and w after it.
    """
    # A tensor may be several inputs, each of which gets its own part of the gradient only.
    q, k, v, S, z, w, m, *tensors = (x.view_as(x) for x in (*inputs, *held))
    kernel = holding(plan.kernel, dict(zip(plan.names, tensors, strict=True)))
    with full_precision(q):
        out, after = attention(kernel, q, k, v, State(S, z, w, m))
        outputs = [out.to(gradients[0].dtype), after.S, after.z, after.w]
        pairs = [(x, d) for x, d in zip(outputs, gradients, strict=True) if x.requires_grad]
        given = (None, q, k, v, S, z, w, None, *tensors)
        needed = [
            x if need and x is not None and x.requires_grad else None
            for x, need in zip(given, ctx.needs_input_grad, strict=True)
        ]
        found = iter(
            torch.autograd.grad(
                [x for x, _ in pairs],
                [x for x in needed if x is not None],
                [d for _, d in pairs],
                create_graph=True,
                allow_unused=True,
            )
        )
    return tuple(None if x is None else next(found) for x in needed)


def bounded_into(x: Tensor, out: Tensor) -> None:
    """Queries or keys as kernels want them. Those beyond the bound get the gradient they would have at the bound."""
    if x.dtype == out.dtype:
        torch.clamp(x, -LARGEST_INPUT, LARGEST_INPUT, out=out)
    else:
        out.copy_(x).clamp_(-LARGEST_INPUT, LARGEST_INPUT)


def scaled_into(x: Tensor, scale: float, out: Tensor) -> None:
    """Times a number, in the dtype of `out`: torch would multiply in that of `x`."""
    out.copy_(x).mul_(scale)


def take(x: Tensor, here: slice, heads: int, workspace: Workspace, name: str) -> Tensor:
    """Tokens `here` of (B, G * H, T, D) as (B * H, G * t, D) in the workspace's dtype: a view where there is one."""
    part = x[:, :, here]
    batch, length = part.shape[0], part.shape[2]
    one_batch = batch == 1 or part.stride(0) == part.shape[1] * part.stride(1)
    if part.shape[1] == heads and part.dtype == workspace.dtype and one_batch:
        return part.flatten(0, 1)
    copy = workspace(name, batch, part.shape[1], length, part.shape[3]).copy_(part)
    return copy.view(batch * heads, -1, part.shape[3])


def put(rows: Tensor, x: Tensor, here: slice) -> None:
    """The reverse of `take`."""
    part = x[:, :, here]
    part.copy_(rows.reshape(part.shape))


def exact(out: Tensor, workspace: Workspace) -> Tensor | None:
    """The output if it was not rounded to a narrower dtype; else the backward pass must compute it anew."""
    return out if out.dtype == workspace.dtype else None


def times_features(rows: Tensor, matrix: Tensor, features: BlockFeatures, workspace: Workspace, name: str) -> Tensor:
    """rows (N, T, D) times matrix (N, F, D)^T, laid out in memory as the kernel's features are."""
    count, length, width = rows.shape[0], rows.shape[1], matrix.shape[1]
    if features.feature_major:
        return workspace.multiply(matrix, rows.mT, workspace(name, count, width, length)).mT
    return workspace.multiply(rows, matrix.mT, workspace(name, count, length, width))
