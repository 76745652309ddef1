"""The fixed-size summary of any number of keys and values."""

from __future__ import annotations

from typing import NamedTuple

import torch
from torch import Tensor


class State(NamedTuple):
    """What attention needs to remember of the keys seen so far; at least float32.

    Sums are over the visible keys j, with e^{g_j - m} as their weights. A state of no key at all has m = -inf
    and zeros elsewhere.
    """

    S: Tensor
    """(B, H, F, D): sum of e^{g_j - m} phi(k_j) v_j^T."""
    z: Tensor
    """(B, H, F): sum of e^{g_j - m} phi(k_j)."""
    w: Tensor
    """(B, H): sum of e^{g_j - m}."""
    m: Tensor
    """(B, H): the largest log-weight g_j. Not differentiable: nothing depends on it."""
    length: Tensor | int = 0
    """(): positions seen, masked ones included; int64."""

    @classmethod
    def empty(
        cls,
        batch: int,
        num_heads: int,
        num_features: int,
        value_dim: int,
        *,
        dtype: torch.dtype = torch.float32,
        device: torch.device | str | None = None,
    ) -> State:
        """The state before the first key."""
        zeros = torch.zeros(batch, num_heads, num_features, value_dim, dtype=dtype, device=device)
        return cls(
            S=zeros,
            z=zeros.new_zeros(batch, num_heads, num_features),
            w=zeros.new_zeros(batch, num_heads),
            m=zeros.new_full((batch, num_heads), -torch.inf),
            length=torch.zeros((), dtype=torch.int64, device=device),
        )


def merge(a: State, b: State) -> State:
    """The state of the keys of both, `b` coming after `a`."""
    m = torch.maximum(a.m, b.m)
    scale_a, scale_b = log_ratio(a.m, m).exp(), log_ratio(b.m, m).exp()
    return State(
        S=a.S * scale_a[..., None, None] + b.S * scale_b[..., None, None],
        z=a.z * scale_a[..., None] + b.z * scale_b[..., None],
        w=a.w * scale_a + b.w * scale_b,
        m=m,
        length=a.length + b.length,
    )


def log_ratio(g: Tensor, m: Tensor) -> Tensor:
    """g - m where m may be the maximum of nothing, -inf; then g is -inf too and so is the result."""
    return g - m.masked_fill(m.isneginf(), 0.0)
