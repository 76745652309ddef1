"""Attention weights by their definition, all pairs of queries and keys."""

from __future__ import annotations

from contextlib import AbstractContextManager, nullcontext
from typing import TYPE_CHECKING

import torch
from torch import Tensor

if TYPE_CHECKING:
    from .base import Kernel


def full_precision(x: Tensor) -> AbstractContextManager[object]:
    """A region that autocast leaves alone: phases, norms and sums lose their meaning in half precision."""
    if x.is_meta:  # shapes only, and autocast does not know the device
        return nullcontext()
    return torch.autocast(device_type=x.device.type, enabled=False)


def at_least_float32(x: Tensor) -> Tensor:
    return x.to(torch.promote_types(x.dtype, torch.float32))


def attention_weights(
    q: Tensor,
    k: Tensor,
    kernel: Kernel,
    *,
    is_causal: bool = False,
    key_mask: Tensor | None = None,
    first_row: int = 0,
) -> tuple[Tensor, Tensor, Tensor]:
    """All weights before normalisation, in units of the row's largest visible e^g.

    Args:
        q: (B, H, T, D), H a multiple of the kernel's heads.
        k: (B, Hkv, S, D).
        kernel: whose weights they are.
        is_causal: the query at position i sees keys up to i.
        key_mask: (B, S) bool, True = attend.
        first_row: position of the first query.

    Returns:
        (B, H, T, S) weights phi(q_i).phi(k_j) e^{g_j - m_i}, zero where masked; (B, H, T) their sums; (B, H, T)
        the sums of e^{g_j - m_i}.
    """
    batch, heads, rows, dim = q.shape
    keys, group = k.shape[2], heads // kernel.num_heads
    row = torch.arange(first_row, first_row + rows, device=q.device)
    column = torch.arange(keys, device=q.device)
    visible = torch.ones(rows, keys, dtype=torch.bool, device=q.device)
    if is_causal:
        visible = row[:, None] >= column
    visible = visible.expand(batch, 1, rows, keys)
    if key_mask is not None:
        k = k.masked_fill(~key_mask[:, None, :, None], 0.0)
        visible = visible & key_mask[:, None, None, :]

    grouped = at_least_float32(q).reshape(batch, kernel.num_heads, group * rows, dim)
    phi_q = kernel.query_features(grouped, row.repeat(group)).reshape(batch, heads, rows, kernel.num_features)
    phi_k, log_weight = kernel.key_features(at_least_float32(k), column)
    if log_weight is None:
        log_weight = phi_k.new_zeros(batch, kernel.num_heads, keys)
    phi_k, log_weight = phi_k.repeat_interleave(group, dim=1), log_weight.repeat_interleave(group, dim=1)
    logs = log_weight[:, :, None, :].masked_fill(~visible, -torch.inf)
    largest = logs.detach().amax(-1, keepdim=True) if keys else logs.new_zeros(batch, heads, rows, 1)
    scale = (logs - largest.masked_fill(largest.isneginf(), 0.0)).exp()
    weights = phi_q @ phi_k.transpose(-1, -2) * scale
    return weights, weights.sum(-1), scale.sum(-1)
