"""Several sequences laid end to end in one, kept apart."""

from __future__ import annotations

from typing import NamedTuple

import torch
from torch import Tensor

from .bidirectional import summarise
from .guard import normalise
from .state import log_ratio


class Packing(NamedTuple):
    """Where packed tokens go when every sequence starts a chunk of its own.

    The number of chunks depends on shapes alone, so that nothing waits for the device and a compiled graph
    serves any boundaries; chunks left over hold no token.
    """

    slots: Tensor
    """(T,) the slot of each token."""
    positions: Tensor
    """(N * C,) the position within its sequence of what each slot holds."""
    filled: Tensor
    """(N * C,) bool."""
    segments: Tensor
    """(N,) the sequence of each chunk; the number of sequences for chunks left over."""

    def spread(self, x: Tensor, dim: int) -> Tensor:
        """Put tokens into their slots."""
        shape = list(x.shape)
        shape[dim] = self.filled.numel()
        return x.new_zeros(shape).index_copy(dim, self.slots, x)

    def gather(self, x: Tensor, dim: int) -> Tensor:
        """Take tokens back from their slots."""
        return x.index_select(dim, self.slots)


def pack(cu_seqlens: Tensor, length: int, chunk_size: int) -> Packing:
    """Lay out `length` tokens with boundaries `cu_seqlens` (number of sequences + 1) in chunks."""
    cu_seqlens = cu_seqlens.long()
    chunks = (cu_seqlens.diff() + chunk_size - 1) // chunk_size
    ends = chunks.cumsum(0)
    token = torch.arange(length, device=cu_seqlens.device)
    sequence = torch.searchsorted(cu_seqlens[1:].contiguous(), token, right=True)
    position = token - cu_seqlens[sequence]
    slots = (ends - chunks)[sequence] * chunk_size + position
    count = length // chunk_size + chunks.numel()
    empty = torch.zeros(count * chunk_size, dtype=torch.int64, device=cu_seqlens.device)
    return Packing(
        slots=slots,
        positions=empty.index_copy(0, slots, position),
        filled=empty.index_fill(0, slots, 1).bool(),
        segments=torch.searchsorted(ends, torch.arange(count, device=cu_seqlens.device), right=True),
    )


def packed_bidirectional(
    phi_q: Tensor, phi_k: Tensor, g: Tensor, v: Tensor, segments: Tensor, policy: str, floor: float
) -> Tensor:
    """Attention within each sequence.

    Args:
        phi_q: (B, N, H, G * C, F) features of N chunks.
        phi_k: (B, N, H, C, F).
        g: (B, N, H, C) log-weights, -inf where masked.
        v: (B, N, H, C, D).
        segments: (N,) the sequence of each chunk.
        policy: see `flexformer.kernels.Kernel`.
        floor: see `flexformer.kernels.Kernel`.

    Returns:
        (B, N, H, G * C, D).
    """
    chunks = summarise(phi_k, g, v)
    # One row to a chunk is always enough, as every sequence has a chunk of its own.
    count = segments.numel() + 1
    m = chunks.m.new_full((chunks.m.shape[0], count, chunks.m.shape[2]), -torch.inf)
    m = m.scatter_reduce(1, segments[:, None].expand_as(chunks.m), chunks.m, "amax")
    scale = log_ratio(chunks.m, m.index_select(1, segments)).exp()
    sums = (_sum_by_segment(x, scale, segments, count) for x in (chunks.S, chunks.z, chunks.w))
    S, z, w = (x.index_select(1, segments) for x in sums)
    den = (z[..., None, :] @ phi_q.mT).squeeze(-2)
    return normalise(phi_q @ S, den, w[..., None].expand_as(den), policy, floor)


def _sum_by_segment(x: Tensor, scale: Tensor, segments: Tensor, count: int) -> Tensor:
    scaled = x * scale.reshape(*scale.shape, *[1] * (x.dim() - scale.dim()))
    return x.new_zeros(x.shape[0], count, *x.shape[2:]).index_add(1, segments, scaled)
