"""How healthy a kernel's weights are on given queries and keys."""

from __future__ import annotations

from typing import TYPE_CHECKING, NamedTuple

import torch
from torch import Tensor

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
    """The smallest sum of weights of a row, relative to its sum of e^g; signed."""


def kernel_statistics(
    kernel: Kernel, q: Tensor, k: Tensor, *, is_causal: bool = False, key_mask: Tensor | None = None
) -> KernelStatistics:
    batch, heads, rows, _ = q.shape
    groups = heads // kernel.num_heads
    keys = k.shape[2]
    phi_k, log_weight = kernel.key_features(k, torch.arange(keys, device=k.device))
    if log_weight is None:
        log_weight = phi_k.new_zeros(phi_k.shape[:3])
    negative = pairs = floored = seen = 0
    smallest = float("inf")
    for start in range(0, rows, ROWS_AT_ONCE):
        positions = torch.arange(start, min(start + ROWS_AT_ONCE, rows), device=q.device)
        block = q[:, :, start : start + ROWS_AT_ONCE]
        block = block.reshape(batch, kernel.num_heads, groups * len(positions), -1)
        phi_q = kernel.query_features(block, positions.repeat(groups))
        visible = torch.ones(len(positions) * groups, keys, dtype=torch.bool, device=q.device)
        if is_causal:
            visible = positions.repeat(groups)[:, None] >= torch.arange(keys, device=q.device)
        visible = visible.expand(batch, 1, -1, -1)
        if key_mask is not None:
            visible = visible & key_mask[:, None, None, :]
        logs = log_weight[:, :, None, :].masked_fill(~visible, -torch.inf)
        largest = logs.amax(-1, keepdim=True)
        scale = torch.exp(logs - largest.masked_fill(largest.isneginf(), 0.0))
        weights = phi_q @ phi_k.transpose(-1, -2) * scale
        den, total = weights.sum(-1), scale.sum(-1)
        sees = total > 0
        limit = kernel.floor * total if kernel.policy == "floor" else torch.full_like(total, kernel.floor)
        low = den.abs() < limit if kernel.policy == "raw" else den < limit
        negative += int((weights < 0).logical_and(visible).sum())
        pairs += int(visible.expand_as(weights).sum())
        floored += int((low & sees).sum())
        seen += int(sees.sum())
        if sees.any():
            smallest = min(smallest, float((den / total)[sees].min()))
    return KernelStatistics(negative / max(pairs, 1), floored / max(seen, 1), smallest)
