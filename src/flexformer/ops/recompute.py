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
from ..kernels.blocks import BlockFeatures
from ..kernels.weights import full_precision
from .state import State

# Features of a block should stay in a core's second-level cache: this many numbers, and at least so many tokens.
BLOCK_NUMBERS = 2**18
SMALLEST_BLOCK = 64


def block_length(kernel: Kernel, q: Tensor, multiple: int = 1) -> int:
    """Tokens to a block, a multiple of `multiple`."""
    length = BLOCK_NUMBERS // max(1, q.shape[0] * q.shape[1] * kernel.num_features)
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


def rows_times(rows: Tensor, matrix: Tensor, features: BlockFeatures) -> Tensor:
    """rows @ matrix^T with the memory laid out as the kernel's features are."""
    return (matrix @ rows.mT).mT if features.feature_major else rows @ matrix.mT


def exact(out: Tensor, like: Tensor) -> Tensor | None:
    """The output if it was not rounded to a narrower dtype; else the backward pass must compute it anew."""
    return out if out.dtype == like.dtype else None
