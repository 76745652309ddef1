"""What the two block-wise forms share.

Linear attention keeps features of one block at a time, forward and backward: saved for the backward pass are the
inputs, the output and states, and features are computed anew, block by block. Gradients of features come from the
kernel, which may have written them out by hand (`Kernel.blocks`).
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from typing import Any

import torch
from torch import Tensor

from ..kernels import Kernel
from ..kernels.base import LARGEST_INPUT
from ..kernels.blocks import BlockFeatures
from ..kernels.weights import full_precision
from ..kernels.workspace import Workspace
from .state import State

# How many numbers the features of a block hold. On a CPU what is computed from them should stay in the caches, with
# one thread and with several; other devices want much to do at once.
BLOCK_NUMBERS = {"cpu": 2**18}
BLOCK_NUMBERS_ELSEWHERE = 2**24
SMALLEST_BLOCK = 64


def block_length(kernel: Kernel, q: Tensor, multiple: int = 1) -> int:
    """Tokens to a block, a multiple of `multiple`."""
    numbers = BLOCK_NUMBERS.get(q.device.type, BLOCK_NUMBERS_ELSEWHERE)
    length = numbers // max(1, q.shape[0] * q.shape[1] * kernel.num_features)
    return max(length, SMALLEST_BLOCK) // multiple * multiple or multiple


def blocks(length: int, size: int) -> Iterator[slice]:
    return (slice(start, min(start + size, length)) for start in range(0, length, size))


def differentiable_gradients(
    ctx: Any,
    attention: Callable[[Tensor, Tensor, Tensor, State], tuple[Tensor, State]],
    inputs: tuple[Tensor, ...],
    parameters: Sequence[Tensor],
    gradients: tuple[Tensor, ...],
) -> tuple[Any, ...]:
    """Gradients that can be differentiated again, for those who ask: through operations autograd knows."""
    with ctx.plan.kernel.holding(ctx.buffers), full_precision(inputs[0]):
        q, k, v, S, z, w, m = inputs
        out, after = attention(q, k, v, State(S, z, w, m))
        outputs = [out.to(gradients[0].dtype), after.S, after.z, after.w]
        pairs = [(x, d) for x, d in zip(outputs, gradients, strict=True) if x.requires_grad]
        needed = [x for x in (*inputs[:6], *parameters) if x.requires_grad]
        found = iter(
            torch.autograd.grad(
                [x for x, _ in pairs], needed, [d for _, d in pairs], create_graph=True, allow_unused=True
            )
        )
    ordered = [next(found) if x.requires_grad else None for x in (*inputs[:6], *parameters)]
    return None, *ordered[:6], None, *ordered[6:]


def bounded_into(x: Tensor, out: Tensor) -> None:
    """Queries or keys as kernels want them. Those beyond the bound get the gradient they would have at the bound."""
    if x.dtype == out.dtype:
        torch.clamp(x, -LARGEST_INPUT, LARGEST_INPUT, out=out)
    else:
        out.copy_(x).clamp_(-LARGEST_INPUT, LARGEST_INPUT)


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
