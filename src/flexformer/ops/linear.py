"""Kernel attention in time linear in the length: one function for every form."""

from __future__ import annotations

from typing import Literal, overload

import torch
from torch import Tensor

from ..kernels import Kernel
from .arguments import check_arguments, full_precision
from .bidirectional import read, summarise
from .causal import causal_block
from .packed import pack, packed_bidirectional
from .state import State, merge

CHUNK_SIZE = 64
CHUNKS_AT_ONCE = 16


@overload
def linear_attention(
    q: Tensor,
    k: Tensor,
    v: Tensor,
    kernel: Kernel,
    is_causal: bool = ...,
    key_mask: Tensor | None = ...,
    initial_state: State | None = ...,
    return_state: Literal[False] = ...,
    cu_seqlens: Tensor | None = ...,
    floor: float | None = ...,
    *,
    chunk_size: int | None = ...,
    query_start: int | Tensor = ...,
) -> Tensor: ...
@overload
def linear_attention(
    q: Tensor,
    k: Tensor,
    v: Tensor,
    kernel: Kernel,
    is_causal: bool = ...,
    key_mask: Tensor | None = ...,
    initial_state: State | None = ...,
    *,
    return_state: Literal[True],
    cu_seqlens: Tensor | None = ...,
    floor: float | None = ...,
    chunk_size: int | None = ...,
    query_start: int | Tensor = ...,
) -> tuple[Tensor, State]: ...
def linear_attention(
    q: Tensor,
    k: Tensor,
    v: Tensor,
    kernel: Kernel,
    is_causal: bool = False,
    key_mask: Tensor | None = None,
    initial_state: State | None = None,
    return_state: bool = False,
    cu_seqlens: Tensor | None = None,
    floor: float | None = None,
    *,
    chunk_size: int | None = None,
    query_start: int | Tensor = 0,
) -> Tensor | tuple[Tensor, State]:
    """Attention with a kernel's weights, normalised, without ever forming them for the whole sequence.

    Accumulates in at least float32 whatever the inputs' dtype, under autocast too.

    Args:
        q: (B, H, T, D) queries. H may be a multiple of the key heads; query head h uses key head h // group.
        k: (B, Hkv, S, D) keys, Hkv = `kernel.num_heads`.
        v: (B, Hkv, S, Dv) values.
        kernel: built with `flexformer.kernels.build`.
        is_causal: query i sees keys up to i; needs S = T.
        key_mask: (B, S) bool, True = attend. Masked keys and values count for nothing, whatever they hold.
        initial_state: of keys that come before these; all queries see them.
        return_state: also return the state of all keys seen, to go on from.
        cu_seqlens: (sequences + 1,) boundaries 0 = c_0 <= c_1 ... = T of sequences packed along T, batch 1.
            They do not see each other.
        floor: overrides the number of the kernel's policy.
        chunk_size: tokens whose pairs are formed at once in causal and packed form; changes speed, not results.
        query_start: position of the first query where the form is not causal, for kernels that use positions;
            causal queries are at the positions of their keys.

    Returns:
        (B, H, T, Dv) in the dtype of `v`, zero where no key is visible; with `return_state` also the `State`.
    """
    check_arguments(
        q,
        k,
        v,
        kernel,
        is_causal=is_causal,
        key_mask=key_mask,
        floor=floor,
        initial_state=initial_state,
        cu_seqlens=cu_seqlens,
    )
    size = CHUNK_SIZE if chunk_size is None else chunk_size
    if isinstance(size, bool) or not isinstance(size, int) or size < 1:
        raise ValueError(f"chunk_size {chunk_size!r} is not a number of tokens; use an integer of at least 1")
    if cu_seqlens is not None and (initial_state is not None or return_state):
        raise ValueError(
            "cu_seqlens cannot go with initial_state or return_state: packed sequences have no state in common; "
            "pass sequences that go on as a batch with a key_mask"
        )
    floor = kernel.floor if floor is None else floor
    with full_precision(q):
        if cu_seqlens is not None:
            return _packed(q, k, v, kernel, is_causal, key_mask, cu_seqlens, floor, size).to(v.dtype)
        state = initial_state
        if state is None:
            dtype = torch.promote_types(v.dtype, torch.float32)
            shape = (q.shape[0], kernel.num_heads, kernel.num_features, v.shape[3])
            state = State.empty(*shape, dtype=dtype, device=v.device)
        elif kernel.max_length is not None:
            _check_length(kernel.max_length, state, k.shape[2])
        if is_causal and q.shape[2] != 1:
            out, state = _causal(q, k, v, kernel, key_mask, state, floor, size)
        else:
            start = state.length if is_causal else query_start
            out, state = _bidirectional(q, k, v, kernel, key_mask, state, floor, start)
        out = out.to(v.dtype)
    return (out, state) if return_state else out


def _bidirectional(
    q: Tensor,
    k: Tensor,
    v: Tensor,
    kernel: Kernel,
    key_mask: Tensor | None,
    state: State,
    floor: float,
    query_start: int | Tensor,
) -> tuple[Tensor, State]:
    if k.shape[2]:
        state = merge(state, summarise(*_keys(k, v, kernel, key_mask, state.length)))
    batch, heads, rows, dim = q.shape
    group = heads // kernel.num_heads
    positions = _positions(kernel, rows, query_start, q)
    if positions is not None:
        positions = positions.repeat(group)
    phi = kernel.query_features(q.reshape(batch, kernel.num_heads, group * rows, dim), positions)
    out = read(phi, state, kernel.policy, floor)
    return out.reshape(batch, heads, rows, v.shape[3]), state


def _causal(
    q: Tensor,
    k: Tensor,
    v: Tensor,
    kernel: Kernel,
    key_mask: Tensor | None,
    state: State,
    floor: float,
    size: int,
) -> tuple[Tensor, State]:
    rows = q.shape[2]
    whole = rows - rows % size
    starts = list(range(0, whole, size * CHUNKS_AT_ONCE))
    ends = [min(start + size * CHUNKS_AT_ONCE, whole) for start in starts]
    if whole < rows:
        starts, ends = [*starts, whole], [*ends, rows]
    outs = []
    for start, end in zip(starts, ends, strict=True):
        mask = None if key_mask is None else key_mask[:, start:end]
        positions = _positions(kernel, end - start, state.length, q)
        phi_k, g, values = _keys(k[:, :, start:end], v[:, :, start:end], kernel, mask, state.length)
        length = min(size, end - start)
        count = (end - start) // length
        phi_q = _chunked_queries(q[:, :, start:end], kernel, positions, length)
        out, state = causal_block(
            phi_q,
            phi_k.unflatten(2, (count, length)),
            None if g is None else g.unflatten(2, (count, length)),
            values.unflatten(2, (count, length)),
            state,
            kernel.policy,
            floor,
        )
        outs.append(_unchunked(out))
    out = torch.cat(outs, dim=2) if outs else q.new_zeros(*q.shape[:3], v.shape[3])
    return out, state


def _packed(
    q: Tensor,
    k: Tensor,
    v: Tensor,
    kernel: Kernel,
    is_causal: bool,
    key_mask: Tensor | None,
    cu_seqlens: Tensor,
    floor: float,
    size: int,
) -> Tensor:
    packing = pack(cu_seqlens.to(q.device), q.shape[2], size)
    visible = packing.filled if key_mask is None else packing.spread(key_mask[0], 0)
    q, k, v = (packing.spread(x, 2) for x in (q, k, v))
    positions = packing.positions if kernel.uses_positions else None
    phi_k, g, values = _keys(k, v, kernel, visible[None], positions)
    assert g is not None
    phi_q = _chunked_queries(q, kernel, positions, size)
    chunks = (phi_k.unflatten(2, (-1, size)), g.unflatten(2, (-1, size)), values.unflatten(2, (-1, size)))
    if not is_causal:
        out = packed_bidirectional(phi_q, *chunks, packing.segments, kernel.policy, floor)
        return packing.gather(_unchunked(out), 2)
    shape = (1, kernel.num_heads, kernel.num_features, v.shape[3])
    state, state_segment = State.empty(*shape, dtype=values.dtype, device=v.device), None
    outs = []
    for start in range(0, packing.segments.numel(), CHUNKS_AT_ONCE):
        here = slice(start, start + CHUNKS_AT_ONCE)
        segments = packing.segments[here]
        block_k, block_g, block_v = (x[:, :, here] for x in chunks)
        out, state = causal_block(
            phi_q[:, :, here], block_k, block_g, block_v, state, kernel.policy, floor, segments, state_segment
        )
        state_segment = segments[-1]
        outs.append(_unchunked(out))
    return packing.gather(torch.cat(outs, dim=2), 2)


def _keys(
    k: Tensor, v: Tensor, kernel: Kernel, key_mask: Tensor | None, positions: Tensor | None
) -> tuple[Tensor, Tensor | None, Tensor]:
    """Features, log-weights and values of keys, masked ones made harmless first."""
    if key_mask is not None:
        hidden = ~key_mask[:, None, :, None]
        k, v = k.masked_fill(hidden, 0.0), v.masked_fill(hidden, 0.0)
    if positions is not None and positions.dim() == 0:
        positions = _positions(kernel, k.shape[2], positions, k)
    phi, g = kernel.key_features(k, positions)
    if key_mask is not None:
        g = phi.new_zeros(phi.shape[:3]) if g is None else g
        g = g.masked_fill(~key_mask[:, None, :], -torch.inf)
    return phi, g, v.to(phi.dtype)


def _chunked_queries(q: Tensor, kernel: Kernel, positions: Tensor | None, size: int) -> Tensor:
    """Query features as (B, H, N, G, C, F)."""
    batch, heads, rows, dim = q.shape
    group = heads // kernel.num_heads
    q = q.reshape(batch, kernel.num_heads, group * rows, dim)
    phi = kernel.query_features(q, None if positions is None else positions.repeat(group))
    return phi.unflatten(2, (group, rows // size, size)).transpose(2, 3)


def _unchunked(out: Tensor) -> Tensor:
    """(B, Hkv, N, G, C, D) to (B, H, T, D)."""
    return out.transpose(2, 3).flatten(3, 4).flatten(1, 2)


def _positions(kernel: Kernel, count: int, start: int | Tensor, like: Tensor) -> Tensor | None:
    return torch.arange(count, device=like.device) + start if kernel.uses_positions else None


def _check_length(max_length: int, state: State, new: int) -> None:
    # Reading the length waits for the device, and a compiled graph cannot branch on it.
    if torch.compiler.is_compiling():
        return
    if int(state.length) + new > max_length:
        raise ValueError(
            f"initial_state has length {int(state.length)}; with {new} more it exceeds the kernel's max_length "
            f"{max_length}; build the kernel with a larger one"
        )
