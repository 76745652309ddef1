"""Softmax attention, the quadratic standard everything else is compared with."""

from __future__ import annotations

from contextlib import AbstractContextManager, nullcontext
from typing import NamedTuple

import torch
from torch import Tensor
from torch.nn import functional as F
from torch.nn.attention import SDPBackend, sdpa_kernel

from ..kernels.base import LARGEST_INPUT
from .mechanism import Mechanism

LARGEST_LOGIT = 1e6  # beyond, torch's fused backward pass is not safe


class SoftmaxState(NamedTuple):
    """Keys and values seen so far: it grows with every token."""

    k: Tensor
    """(B, Hkv, S, D)"""
    v: Tensor
    """(B, Hkv, S, D)"""
    key_mask: Tensor | None
    """(B, S) bool, None while nothing was masked"""


class SoftmaxAttention(Mechanism):
    r"""softmax(q k^T / sqrt(d)) v through torch's scaled_dot_product_attention (Vaswani et al., 2017)."""

    has_causal_form = True
    groups_heads = True

    def forward(
        self,
        q: Tensor,
        k: Tensor,
        v: Tensor,
        *,
        x: Tensor,
        key_mask: Tensor | None = None,
        is_causal: bool = False,
    ) -> Tensor:
        group = q.shape[1] // k.shape[1]
        if group > 1:
            k, v = k.repeat_interleave(group, dim=1), v.repeat_interleave(group, dim=1)
        dropout = self.dropout if self.training else 0.0
        rows, keys = q.shape[2], k.shape[2]
        if key_mask is None and (not is_causal or rows == keys) and keys:
            q, k, backend = _made_safe(q, k)
            with backend:
                return F.scaled_dot_product_attention(q, k, v, dropout_p=dropout, is_causal=is_causal)
        visible = torch.ones(1, 1, rows, keys, dtype=torch.bool, device=q.device)
        if is_causal:
            visible = visible.tril(keys - rows)
        if key_mask is not None:
            hidden = ~key_mask[:, None, :, None]
            # What padding holds may overflow before its weight becomes zero.
            k, v = k.masked_fill(hidden, 0.0), v.masked_fill(hidden, 0.0)
            visible = visible & key_mask[:, None, None, :]
        empty = ~visible.any(-1, keepdim=True)
        if not keys:
            return q.new_zeros(*q.shape[:3], v.shape[3])
        # A softmax over nothing is NaN: let such rows see everything, then discard them.
        q, k, backend = _made_safe(q, k, key_mask)
        with backend:
            out = F.scaled_dot_product_attention(q, k, v, attn_mask=visible | empty, dropout_p=dropout)
        return out.masked_fill(empty, 0.0)

    def forward_with_state(
        self,
        q: Tensor,
        k: Tensor,
        v: Tensor,
        *,
        x: Tensor,
        key_mask: Tensor | None = None,
        is_causal: bool = False,
        state: SoftmaxState | None = None,
    ) -> tuple[Tensor, SoftmaxState]:
        if state is not None:
            if not isinstance(state, SoftmaxState):
                raise TypeError(f"state is a {type(state).__name__}; pass the SoftmaxState of an earlier call")
            if state.k.shape[:2] != k.shape[:2] or state.k.shape[3] != k.shape[3] or state.k.dtype != k.dtype:
                raise ValueError(
                    f"state holds keys {tuple(state.k.shape)} of {state.k.dtype}; these have shape {tuple(k.shape)} "
                    f"and dtype {k.dtype}"
                )
            if key_mask is not None or state.key_mask is not None:
                key_mask = torch.cat((_mask(state.k, state.key_mask), _mask(k, key_mask)), dim=1)
            k, v = torch.cat((state.k, k), dim=2), torch.cat((state.v, v), dim=2)
        out = self.forward(q, k, v, x=x, key_mask=key_mask, is_causal=is_causal)
        return out, SoftmaxState(k, v, key_mask)


def _made_safe(
    q: Tensor, k: Tensor, key_mask: Tensor | None = None
) -> tuple[Tensor, Tensor, AbstractContextManager[None]]:
    """Queries, keys and the form of torch's that is safe for them on a CPU.

    The fused form computes weights again in the backward pass. Rounded another way, logits of a million and more differ
    enough for weights far above one; the form that keeps its weights is used for these, and for float16, which could
    not hold their gradients. Inputs whose products are beyond float32 are clipped. Where values cannot be looked at,
    and in steps of decoding, which would take longer, nothing is done.
    """
    usual: AbstractContextManager[None] = nullcontext()
    hidden = torch.compiler.is_compiling() or torch._C._are_functorch_transforms_active()
    if q.device.type != "cpu":
        return q, k, usual
    if not hidden and q.shape[2] > 1 and q.numel() and k.numel():
        seen = q
        if key_mask is not None and q.shape[2] == k.shape[2]:
            # Queries of padding, where these and keys are of the same tokens, have no say in how others are computed.
            seen = q.masked_fill(~key_mask[:, None, :, None], 0.0)
        sizes = [float(torch.linalg.vector_norm(x.detach(), torch.inf)) for x in (seen, k)]
        if sizes[0] * sizes[1] * q.shape[3] ** 0.5 > LARGEST_LOGIT:
            most = min(LARGEST_INPUT, torch.finfo(q.dtype).max)
            return q.clamp(-most, most), k.clamp(-most, most), sdpa_kernel(SDPBackend.MATH)
    return q, k, sdpa_kernel(SDPBackend.MATH) if q.dtype == torch.float16 else usual


def _mask(k: Tensor, key_mask: Tensor | None) -> Tensor:
    if key_mask is None:
        return torch.ones(k.shape[0], k.shape[2], dtype=torch.bool, device=k.device)
    return key_mask
