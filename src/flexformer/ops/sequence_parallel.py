"""Attention over a sequence that is divided over ranks: fold own keys, exchange states, read."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor

from ..kernels import Kernel
from . import exchange
from .arguments import empty_state
from .split import Split, suspended
from .state import State


def attend_over_ranks(
    attention: Callable[..., Any],
    split: Split,
    q: Tensor,
    k: Tensor,
    v: Tensor,
    kernel: Kernel,
    is_causal: bool,
    key_mask: Tensor | None,
    return_state: bool,
    **options: Any,
) -> tuple[Tensor, State | None]:
    """Attention of this rank's queries to the keys of all ranks, or of those up to its own positions.

    Args:
        attention: `linear_attention`, for what happens on one rank.
        split: who has which part.
        q: (B, H, T, D) the rank's queries.
        k: (B, Hkv, S, D) its keys.
        v: (B, Hkv, S, Dv) its values.
        kernel: with the same parameters on every rank; random features are taken from the first.
        is_causal: positions go on from rank to rank.
        key_mask: (B, S) the rank's part.
        return_state: also give the state of the keys of all ranks.
        **options: for `attention`.

    Returns:
        (B, H, T, Dv), and on every rank the state of the whole sequence, None unless asked for.
    """
    if kernel.training:
        for buffer in kernel.buffers():  # drawn anew by each rank for itself
            split.broadcast(buffer)
    before, after = _places(split, kernel, q, k) if kernel.uses_positions or return_state else ([0, 0], [0, 0])
    start = empty_state(kernel, q, k, v)._replace(length=torch.tensor(before[1], device=k.device))
    with suspended():
        nothing = slice(0, 0)
        _, own = attention(
            q[:, :, nothing], k, v, kernel, key_mask=key_mask, initial_state=start, return_state=True, **options
        )
        if not k.shape[2]:
            # A rank without keys takes part in the backward pass all the same, or the others would wait for it.
            own = own._replace(S=own.S + k.sum().to(own.S) + v.sum().to(own.S))
        everything = (
            exchange.total(own, split, torch.tensor(after[1], device=k.device))
            if return_state or not is_causal
            else None
        )
        if is_causal:
            earlier = exchange.prefix(own, split, start.length)
            return attention(q, k, v, kernel, True, key_mask, earlier, **options), everything
        no_keys, no_values = k[:, :, nothing], v[:, :, nothing]
        out = attention(q, no_keys, no_values, kernel, initial_state=everything, query_start=before[0], **options)
        return out, everything if return_state else None


def _places(split: Split, kernel: Kernel, q: Tensor, k: Tensor) -> tuple[list[int], list[int]]:
    """Where the rank's queries and keys start, and how many there are on all ranks together."""
    lengths = split.gather(torch.tensor([q.shape[2], k.shape[2]], device=k.device))
    after = lengths.sum(0).tolist()
    # On all ranks, not only on those that reach so far: the others would wait for them.
    kernel.check_length(max(after), f" of all {split.size} ranks")
    return lengths[: split.rank].sum(0).tolist(), after
