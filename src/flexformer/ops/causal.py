"""Attention of every query to the keys up to its own position, in chunks."""

from __future__ import annotations

import torch
from torch import Tensor

from .bidirectional import summarise
from .guard import normalise
from .state import State, log_ratio

FEW, GROUP = 64, 16  # chunks that one matrix combines, and how many make a group where there are more


def causal_block(
    phi_q: Tensor,
    phi_k: Tensor,
    g: Tensor | None,
    v: Tensor,
    state: State,
    policy: str,
    floor: float,
    segments: Tensor | None = None,
) -> tuple[Tensor, State]:
    """Causal attention over consecutive chunks, from and to a state.

    Inside a chunk all pairs are formed and masked; earlier chunks are seen through their sums. Every row has
    the largest log-weight among its own visible keys as its unit, as in online softmax, so that a later key
    of any size leaves earlier rows untouched to the bit.

    Args:
        phi_q: (B, N, H, G * C, F) features of N chunks of C queries, G query heads to a key head.
        phi_k: (B, N, H, C, F).
        g: (B, N, H, C) log-weights, -inf where masked, or None where all are zero.
        v: (B, N, H, C, D).
        state: of the keys before.
        policy: see `flexformer.kernels.Kernel`.
        floor: see `flexformer.kernels.Kernel`.
        segments: (N,) the sequence each chunk belongs to, where several are packed; they come in order, and `state`
            belongs to none of them.

    Returns:
        (B, N, H, G * C, D) and the state after the last chunk, in that chunk's segment.
    """
    count, size = phi_k.shape[1], phi_k.shape[3]
    group = phi_q.shape[3] // size
    before, last = _states_before(summarise(phi_k, g, v), state, segments)
    last = last._replace(length=state.length + count * size)
    S, z, w, m, _ = before

    order = torch.arange(size, device=v.device)
    future = order[:, None] < order
    if g is None:
        largest = m.clamp_min(0.0)[..., None]
        inside = (~future).to(v.dtype).expand(*m.shape, size, size)
    else:
        largest = torch.maximum(g.detach().cummax(-1).values, m[..., None])
        inside = log_ratio(g[..., None, :].masked_fill(future, -torch.inf), largest[..., None]).exp()
    entry = log_ratio(m[..., None], largest).exp().expand(*m.shape, size)
    total = inside.sum(-1) + w[..., None] * entry
    if group > 1:  # the same for every query head of the group
        inside, entry, total = (
            inside.repeat(1, 1, 1, group, 1),
            entry.repeat(1, 1, 1, group),
            total.repeat(1, 1, 1, group),
        )

    weights = phi_q @ phi_k.mT * inside
    num = weights @ v + (phi_q @ S) * entry[..., None]
    den = weights.sum(-1) + (z[..., None, :] @ phi_q.mT).squeeze(-2) * entry
    return normalise(num, den, total.expand_as(den), policy, floor), last


def _states_before(chunks: State, state: State, segments: Tensor | None) -> tuple[State, State]:
    """The states before each of N chunks, (B, N, H, ...), and the one after the last, (B, H, ...)."""
    batch, count, heads = chunks.m.shape
    if segments is not None or count <= FEW:
        return _combined(chunks, state, segments)
    # A matrix over all chunks would take time in the square of their number: first whole groups, then within each.
    groups = count // GROUP + 1  # there is always something to fill up, or compiled graphs would be two
    fill = groups * GROUP - count
    S, z, w = (
        torch.cat((x, x.new_zeros(batch, fill, *x.shape[2:])), 1).unflatten(1, (groups, GROUP))
        for x in (chunks.S, chunks.z, chunks.w)
    )
    m = torch.cat((chunks.m, chunks.m.new_full((batch, fill, heads), -torch.inf)), 1).unflatten(1, (groups, GROUP))
    largest = m.amax(2)
    scale = log_ratio(m, largest[:, :, None]).exp()
    whole = State(
        torch.einsum("bgnh,bgnhfd->bghfd", scale, S),
        torch.einsum("bgnh,bgnhf->bghf", scale, z),
        torch.einsum("bgnh,bgnh->bgh", scale, w),
        largest,
    )
    starts, last = _combined(whole, state, None)
    inner, _ = _combined(_flat(State(S, z, w, m)), _flat(starts), None)
    S, z, w, m = (x.unflatten(0, (batch, groups)).flatten(1, 2)[:, :count] for x in inner[:4])
    return State(S, z, w, m), last


def _flat(states: State) -> State:
    """Batch and groups as one dimension."""
    S, z, w, m = (x.flatten(0, 1) for x in states[:4])
    return State(S, z, w, m)


def _combined(chunks: State, state: State, segments: Tensor | None) -> tuple[State, State]:
    """As `_states_before`, by one matrix over all pairs of chunks."""
    count = chunks.m.shape[1]
    order = torch.arange(count, device=chunks.m.device)
    earlier = torch.arange(count + 1, device=chunks.m.device)[:, None] > order
    carry = state.m[:, :, None].expand(-1, -1, count + 1)
    if segments is not None:
        earlier = earlier & (torch.cat((segments, segments[-1:]))[:, None] == segments)
        carry = torch.full_like(carry, -torch.inf)

    logs = chunks.m.mT[:, :, None, :].masked_fill(~earlier, -torch.inf)  # (B, H, N + 1, N)
    m = torch.maximum(logs.amax(-1), carry)
    scale = log_ratio(logs, m[..., None]).exp()
    carry = log_ratio(carry, m).exp().mT  # (B, N + 1, H)
    S = torch.einsum("bhmn,bnhfd->bmhfd", scale, chunks.S) + state.S[:, None] * carry[..., None, None]
    z = torch.einsum("bhmn,bnhf->bmhf", scale, chunks.z) + state.z[:, None] * carry[..., None]
    w = torch.einsum("bhmn,bnh->bmh", scale, chunks.w) + state.w[:, None] * carry
    m = m.mT
    # Copies of the last ones: views would keep the states of all chunks alive.
    last = State(S[:, -1].clone(), z[:, -1].clone(), w[:, -1].clone(), m[:, -1].clone())
    return State(S[:, :-1], z[:, :-1], w[:, :-1], m[:, :-1]), last
