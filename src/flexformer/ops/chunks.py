"""Sequences cut into chunks, the chunks laid out as a batch."""

from __future__ import annotations

from typing import NamedTuple

import torch
from torch import Tensor

from ..kernels import Kernel


class Chunks(NamedTuple):
    """N chunks of C tokens with G query heads to a key head, ready for a kernel's features.

    Chunks join the batch, so that what a kernel computes lies together chunk by chunk.
    """

    q: Tensor
    """(B * N, H, G * C, D)"""
    k: Tensor
    """(B * N, H, C, D), zero where masked."""
    v: Tensor
    """(B, N, H, C, D), zero where masked."""
    hidden: Tensor | None
    """(B, N, 1, C) bool, True where masked."""
    q_positions: Tensor | None
    """(B * N, 1, G * C)"""
    k_positions: Tensor | None
    """(B * N, 1, C)"""


def cut(
    q: Tensor,
    k: Tensor,
    v: Tensor,
    kernel: Kernel,
    key_mask: Tensor | None,
    positions: Tensor | None,
    size: int,
    dtype: torch.dtype,
) -> Chunks:
    """Cut (B, H, T, D) tensors into chunks of `size` tokens, which must divide T.

    Args:
        q: (B, G * H, T, D).
        k: (B, H, T, D).
        v: (B, H, T, Dv).
        kernel: the kernel to be used.
        key_mask: (B, T) bool, True = attend.
        positions: (T,), or None where the kernel needs none.
        size: C.
        dtype: to compute in.
    """
    batch, heads, count = q.shape[0], kernel.num_heads, k.shape[2] // size
    group = q.shape[1] // heads
    q, k, v = q.to(dtype), k.to(dtype), v.to(dtype)
    hidden = None
    if key_mask is not None:
        invisible = ~key_mask[:, None, :, None]
        k, v = k.masked_fill(invisible, 0.0), v.masked_fill(invisible, 0.0)
        hidden = ~key_mask.unflatten(1, (count, size))[:, :, None]
    q_positions = k_positions = None
    if positions is not None:
        k_positions = positions.reshape(1, count, 1, size).expand(batch, -1, -1, -1).flatten(0, 1)
        q_positions = k_positions.repeat(1, 1, group)
    q = q.unflatten(1, (heads, group)).unflatten(3, (count, size)).permute(0, 3, 1, 2, 4, 5)
    return Chunks(
        q=q.flatten(3, 4).flatten(0, 1),
        k=k.unflatten(2, (count, size)).transpose(1, 2).flatten(0, 1),
        v=v.unflatten(2, (count, size)).transpose(1, 2),
        hidden=hidden,
        q_positions=q_positions,
        k_positions=k_positions,
    )


def join_queries(x: Tensor, group: int) -> Tensor:
    """(B, N, H, G * C, D) back to (B, G * H, T, D)."""
    return x.unflatten(3, (group, -1)).permute(0, 2, 3, 1, 4, 5).flatten(3, 4).flatten(1, 2)


def hide(g: Tensor | None, hidden: Tensor | None, phi: Tensor) -> Tensor | None:
    """Log-weights (..., H, S) with -inf where keys are masked."""
    if hidden is None:
        return g
    g = phi.new_zeros(phi.shape[:-1]) if g is None else g
    return g.masked_fill(hidden, -torch.inf)
