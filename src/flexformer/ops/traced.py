"""The forms in plain tensor operations, which autograd and the compiler follow."""

from __future__ import annotations

import torch
from torch import Tensor
from torch.nn import functional as F

from ..kernels import Kernel
from .bidirectional import read, summarise
from .causal import causal_block
from .chunks import Chunks, cut, hide, join_queries
from .packed import packed_bidirectional
from .state import State, merge


def bidirectional(
    q: Tensor,
    k: Tensor,
    v: Tensor,
    kernel: Kernel,
    key_mask: Tensor | None,
    state: State,
    floor: float,
    query_start: int | Tensor,
) -> tuple[Tensor, State]:
    batch, heads, rows, dim = q.shape
    group, dtype = heads // kernel.num_heads, state.S.dtype
    if k.shape[2]:
        hidden = None
        if key_mask is not None:
            hidden = ~key_mask[:, None, :]
            k, v = k.masked_fill(hidden[..., None], 0.0), v.masked_fill(hidden[..., None], 0.0)
        phi, g = kernel.key_features(k.to(dtype), _positions(kernel, k.shape[2], state.length, k))
        state = merge(state, summarise(phi, hide(g, hidden, phi), v.to(dtype)))
    else:
        # A copy: what is returned may be overwritten.
        state = State(state.S.clone(), state.z.clone(), state.w.clone(), state.m.clone(), state.length + 0)
    where = _positions(kernel, rows, query_start, q)
    grouped = q.to(dtype).reshape(batch, kernel.num_heads, group * rows, dim)
    phi = kernel.query_features(grouped, None if where is None else where.repeat(group))
    return read(phi, state, kernel.policy, floor).reshape(batch, heads, rows, v.shape[3]), state


def causal(
    q: Tensor,
    k: Tensor,
    v: Tensor,
    kernel: Kernel,
    key_mask: Tensor | None,
    state: State,
    floor: float,
    positions: Tensor | None,
    size: int,
    segments: Tensor | None = None,
) -> tuple[Tensor, State]:
    """Causal attention; with `segments`, one to a chunk, within each of several sequences.

    All chunks at once, so that a compiled graph serves many lengths; see `causal_block` for how their states are
    combined.
    """
    rows = q.shape[2]
    if segments is None and rows % size:
        # What is left over becomes a whole chunk too: shapes then depend on the length in one way only.
        fill = size - rows % size
        q, k, v = (F.pad(x, (0, 0, 0, fill)) for x in (q, k, v))
        key_mask = torch.ones(q.shape[0], rows, dtype=torch.bool, device=q.device) if key_mask is None else key_mask
        key_mask = F.pad(key_mask, (0, fill), value=False)
        positions = None if positions is None else F.pad(positions, (0, fill))
    chunks = cut(q, k, v, kernel, key_mask, positions, size, state.S.dtype)
    phi_q, phi_k, g = _features(chunks, kernel)
    out, after = causal_block(phi_q, phi_k, g, chunks.v, state, kernel.policy, floor, segments)
    out = join_queries(out, q.shape[1] // kernel.num_heads)[:, :, :rows]
    return out, State(after.S, after.z, after.w, after.m, state.length + rows)


def packed(
    q: Tensor,
    k: Tensor,
    v: Tensor,
    kernel: Kernel,
    key_mask: Tensor,
    floor: float,
    positions: Tensor | None,
    size: int,
    segments: Tensor,
    dtype: torch.dtype,
) -> Tensor:
    """Bidirectional attention within sequences of whole chunks, one segment number to a chunk."""
    chunks = cut(q, k, v, kernel, key_mask, positions, size, dtype)
    phi_q, phi_k, g = _features(chunks, kernel)
    assert g is not None  # there is a mask
    out = packed_bidirectional(phi_q, phi_k, g, chunks.v, segments, kernel.policy, floor)
    return join_queries(out, q.shape[1] // kernel.num_heads)


def _features(chunks: Chunks, kernel: Kernel) -> tuple[Tensor, Tensor, Tensor | None]:
    """Of queries and of keys, (B, N, H, ...), and the keys' log-weights."""
    split = chunks.v.shape[:2]
    phi_q = kernel.query_features(chunks.q, chunks.q_positions).unflatten(0, split)
    phi_k, g = kernel.key_features(chunks.k, chunks.k_positions)
    phi_k, g = phi_k.unflatten(0, split), None if g is None else g.unflatten(0, split)
    return phi_q, phi_k, hide(g, chunks.hidden, phi_k)


def _positions(kernel: Kernel, count: int, start: int | Tensor, like: Tensor) -> Tensor | None:
    return torch.arange(count, device=like.device) + start if kernel.uses_positions else None
