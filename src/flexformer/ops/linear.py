"""Kernel attention in time linear in the length: one function for every form."""

from __future__ import annotations

from typing import Literal, overload

import torch
from torch import Tensor
from torch.autograd import forward_ad

from ..kernels import Kernel
from ..kernels.held import can_be_held
from ..kernels.weights import full_precision
from . import traced
from .arguments import check_arguments, empty_state
from .blockwise_bidirectional import blockwise_bidirectional
from .blockwise_causal import blockwise_causal
from .blockwise_packed import blockwise_packed, packed_at_once
from .decode import check_overwritable, decode_step, overwrite
from .packed import pack
from .sequence_parallel import attend_over_ranks
from .split import active_split
from .state import State

CHUNK_SIZE = 64
SHORT = 64  # up to here one block holds everything, and there is nothing to save by computing features again


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
    update_state: bool = ...,
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
    update_state: bool = ...,
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
    update_state: bool = False,
) -> Tensor | tuple[Tensor, State]:
    """Attention with a kernel's weights, normalised, without ever forming them for the whole sequence.

    Accumulates in at least float32 whatever the inputs' dtype, under autocast too. Within
    `flexformer.parallel.sequence_parallel` the tensors are this rank's part of a longer sequence.

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
        floor: overrides the number of the kernel's policy. Positive kernels need none; those with a log-weight have no
            fixed unit for one.
        chunk_size: tokens whose pairs are formed at once in causal and packed form; changes speed, not results.
        query_start: position of the first query where the form is not causal, for kernels that use positions;
            causal queries are at the positions of their keys.
        update_state: overwrite `initial_state` with the state of all keys seen, for decoding in constant memory.

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
        query_start=query_start,
    )
    size = CHUNK_SIZE if chunk_size is None else chunk_size
    if isinstance(size, bool) or not isinstance(size, int) or size < 1:
        raise ValueError(f"chunk_size {chunk_size!r} is not a number of tokens; use an integer of at least 1")
    if cu_seqlens is not None and (initial_state is not None or return_state or update_state):
        raise ValueError(
            "cu_seqlens cannot go with initial_state or return_state: packed sequences have no state in common; "
            "pass sequences that go on as a batch with a key_mask"
        )
    split = active_split()
    if split is not None:
        if initial_state is not None or cu_seqlens is not None or update_state or query_start != 0:
            raise ValueError(
                "initial_state, cu_seqlens, update_state and query_start cannot go with sequence_parallel, where a "
                "sequence begins on the first rank; leave them out, or call outside of it"
            )
        out, after = attend_over_ranks(
            linear_attention, split, q, k, v, kernel, is_causal, key_mask, return_state, floor=floor, chunk_size=size
        )
        return out if after is None else (out, after)
    if update_state:
        check_overwritable(initial_state, (q, k, v, *kernel.parameters()))
    floor = kernel.floor if floor is None else floor
    with full_precision(q):
        if cu_seqlens is not None:
            # Every sequence fills chunks of its own: many short ones do better with small chunks.
            average = q.shape[2] // (cu_seqlens.numel() - 1)
            size = size if chunk_size is not None else min(size, max(8, average))
            return _packed(q, k, v, kernel, is_causal, key_mask, cu_seqlens, floor, size).to(v.dtype)
        state = empty_state(kernel, q, k, v) if initial_state is None else initial_state
        if initial_state is not None and kernel.max_length is not None:
            _check_length(kernel, initial_state, k.shape[2])
        if update_state and is_causal and q.shape[2] == 1:
            out = decode_step(q, k, v, kernel, key_mask, state, floor)
        elif is_causal and q.shape[2] > 1:
            positions = None
            if kernel.uses_positions:
                positions = torch.arange(q.shape[2], device=q.device) + state.length
            attend = traced.causal if _must_trace(kernel, q) else blockwise_causal
            out, state = attend(q, k, v, kernel, key_mask, state, floor, positions, size)
        else:
            start = state.length if is_causal else query_start
            one_block = q.shape[2] <= SHORT and k.shape[2] <= SHORT
            attend_all = traced.bidirectional if one_block or _must_trace(kernel, q) else blockwise_bidirectional
            out, state = attend_all(q, k, v, kernel, key_mask, state, floor, start)
        out = out.to(v.dtype)
        if update_state and initial_state is not None and state is not initial_state:
            overwrite(initial_state, state)
            state = initial_state
    return (out, state) if return_state else out


def _must_trace(kernel: Kernel, q: Tensor) -> bool:
    """The compiler, torch.func's transforms and forward-mode differentiation follow tensor operations, not our own
    backward pass, which also has to know all tensors that a kernel computes with, and a batch to cut into blocks.
    """
    transformed = torch.compiler.is_compiling() or torch._C._are_functorch_transforms_active()
    return transformed or _differentiates_forward() or not can_be_held(kernel) or not q.shape[0]


def _differentiates_forward() -> bool:
    return bool(getattr(forward_ad, "_current_level", -1) >= 0)


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
    if not is_causal and not _must_trace(kernel, q):
        return blockwise_packed(q, k, v, kernel, key_mask, cu_seqlens, floor, size)
    if not is_causal:
        return packed_at_once(q, k, v, kernel, key_mask, cu_seqlens, floor, size)
    packing = pack(cu_seqlens.to(q.device), q.shape[2], size)
    visible = packing.filled if key_mask is None else packing.spread(key_mask[0], 0)
    q, k, v = (packing.spread(x, 2) for x in (q, k, v))
    positions = packing.positions if kernel.uses_positions else None
    attend = traced.causal if _must_trace(kernel, q) else blockwise_causal
    state = empty_state(kernel, q, k, v)
    out, _ = attend(q, k, v, kernel, visible[None], state, floor, positions, size, packing.segments)
    return packing.gather(out, 2)


def _check_length(kernel: Kernel, state: State, new: int) -> None:
    # Reading the length waits for the device, and a compiled graph cannot branch on it.
    if not torch.compiler.is_compiling():
        kernel.check_length(int(state.length) + new, f" of initial_state and {new} more")
