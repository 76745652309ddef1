"""The quadratic form every other one must agree with."""

from __future__ import annotations

import torch
from torch import Tensor

from ..kernels import Kernel
from .arguments import check_arguments, full_precision
from .guard import normalise
from .state import log_ratio


def reference_attention(
    q: Tensor,
    k: Tensor,
    v: Tensor,
    kernel: Kernel,
    is_causal: bool = False,
    key_mask: Tensor | None = None,
    floor: float | None = None,
) -> Tensor:
    """Kernel attention by its definition: form all weights, mask them, divide each row by its sum.

    O(T S) in time and memory. Arguments as in `linear_attention`.

    Returns:
        (B, H, T, D) in the dtype of `v`.
    """
    check_arguments(q, k, v, kernel, is_causal=is_causal, key_mask=key_mask, floor=floor)
    with full_precision(q):
        weights, den, w = attention_weights(q, k, kernel, is_causal=is_causal, key_mask=key_mask)
        group = q.shape[1] // k.shape[1]
        values = v if key_mask is None else v.masked_fill(~key_mask[:, None, :, None], 0.0)
        values = values.to(weights.dtype).repeat_interleave(group, dim=1)
        out = normalise(weights @ values, den, w, kernel.policy, kernel.floor if floor is None else floor)
    return out.to(v.dtype)


def attention_weights(
    q: Tensor, k: Tensor, kernel: Kernel, *, is_causal: bool = False, key_mask: Tensor | None = None
) -> tuple[Tensor, Tensor, Tensor]:
    """All weights before normalisation, in units of the row's largest visible e^g.

    Returns:
        (B, H, T, S) weights phi(q_i).phi(k_j) e^{g_j - m_i}, zero where masked; (B, H, T) their sums; (B, H, T)
        the sums of e^{g_j - m_i}.
    """
    batch, heads, rows, dim = q.shape
    keys, group = k.shape[2], heads // k.shape[1]
    row, column = torch.arange(rows, device=q.device), torch.arange(keys, device=q.device)
    if key_mask is not None:
        k = k.masked_fill(~key_mask[:, None, :, None], 0.0)
    grouped = q.reshape(batch, k.shape[1], group * rows, dim)
    phi_q = kernel.query_features(grouped, row.repeat(group)).reshape(batch, heads, rows, kernel.num_features)
    phi_k, log_weight = kernel.key_features(k, column)
    phi_k = phi_k.repeat_interleave(group, dim=1)
    if log_weight is None:
        log_weight = phi_k.new_zeros(batch, k.shape[1], keys)
    visible = torch.ones(rows, keys, dtype=torch.bool, device=q.device)
    if is_causal:
        visible = row[:, None] >= column
    visible = visible.expand(batch, 1, rows, keys)
    if key_mask is not None:
        visible = visible & key_mask[:, None, None, :]
    logs = log_weight.repeat_interleave(group, dim=1)[:, :, None, :].masked_fill(~visible, -torch.inf)
    largest = logs.detach().amax(-1, keepdim=True) if keys else logs.new_zeros(batch, heads, rows, 1)
    scale = log_ratio(logs, largest).exp()
    weights = phi_q @ phi_k.transpose(-1, -2) * scale
    return weights, weights.sum(-1), scale.sum(-1)
