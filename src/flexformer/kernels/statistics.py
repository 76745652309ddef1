"""How healthy a kernel's weights are on given queries and keys."""

from __future__ import annotations

import math
from typing import TYPE_CHECKING, NamedTuple

import torch
from torch import Tensor

from .policy import denominator_limit
from .weights import attention_weights, full_precision

if TYPE_CHECKING:
    from .base import Kernel

ROWS_AT_ONCE = 128


class KernelStatistics(NamedTuple):
    """Shares are over the visible pairs and over the rows that see a key."""

    negative_weights: float
    """Share of weights below zero."""
    floored_rows: float
    """Share of rows whose denominator the kernel's policy replaced."""
    smallest_denominator: float
    """The smallest sum of weights of a row, relative to its sum of e^g; signed. NaN if no row sees a key."""


def kernel_statistics(
    kernel: Kernel, q: Tensor, k: Tensor, is_causal: bool, key_mask: Tensor | None
) -> KernelStatistics:
    _check(kernel, q, k, is_causal, key_mask)
    negative = floored = seen = 0
    smallest = []
    with full_precision(q):
        for start in range(0, q.shape[2], ROWS_AT_ONCE):
            weights, den, w = attention_weights(
                q[:, :, start : start + ROWS_AT_ONCE],
                k,
                kernel,
                is_causal=is_causal,
                key_mask=key_mask,
                first_row=start,
            )
            sees = w > 0
            limit = denominator_limit(w, kernel.policy, kernel.floor)
            low = (den.abs() if kernel.policy == "raw" else den) < limit
            negative += int((weights < 0).sum())
            floored += int((low & sees).sum())
            seen += int(sees.sum())
            if sees.any():
                smallest.append(float((den / w)[sees].min()))
    pairs = _visible_pairs(q, k, is_causal, key_mask)
    return KernelStatistics(negative / max(pairs, 1), floored / max(seen, 1), min(smallest, default=math.nan))


def _visible_pairs(q: Tensor, k: Tensor, is_causal: bool, key_mask: Tensor | None) -> int:
    batch, heads, rows, _ = q.shape
    if key_mask is None:
        seen = batch * (rows * (rows + 1) // 2 if is_causal else rows * k.shape[2])
    else:
        visible = key_mask.cumsum(-1).sum() if is_causal else key_mask.sum() * rows
        seen = int(visible)
    return seen * heads


def _check(kernel: Kernel, q: Tensor, k: Tensor, is_causal: bool, key_mask: Tensor | None) -> None:
    for name, x in (("q", q), ("k", k)):
        if x.dim() != 4 or x.shape[3] != kernel.head_dim:
            raise ValueError(f"{name} has shape {tuple(x.shape)}; pass (B, H, T, {kernel.head_dim})")
        kernel.check_length(x.shape[2], f" of {name}")
    if q.shape[0] != k.shape[0]:
        raise ValueError(f"q and k have batches of {q.shape[0]} and {k.shape[0]}; pass equal ones")
    if k.shape[1] != kernel.num_heads or q.shape[1] % kernel.num_heads:
        raise ValueError(f"q and k have {q.shape[1]} and {k.shape[1]} heads; the kernel has {kernel.num_heads}")
    if is_causal and q.shape[2] != k.shape[2]:
        raise ValueError(f"is_causal with {q.shape[2]} queries and {k.shape[2]} keys is ambiguous; pass as many")
    if key_mask is None:
        return
    if key_mask.dtype != torch.bool:
        raise TypeError(f"key_mask has dtype {key_mask.dtype}; pass booleans, True = attend")
    if tuple(key_mask.shape) != (k.shape[0], k.shape[2]):
        raise ValueError(f"key_mask has shape {tuple(key_mask.shape)}; pass (B, S) = ({k.shape[0]}, {k.shape[2]})")
