"""Attention of every query to the keys up to its own position, in chunks."""

from __future__ import annotations

import torch
from torch import Tensor

from .bidirectional import summarise
from .guard import normalise
from .state import State, log_ratio


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
    S, z, w, m = _states_before(summarise(phi_k, g, v), state, segments)
    # Copies: a view would keep the states of all chunks alive.
    after = [x[:, -1].clone() for x in (S, z, w, m)]
    last = State(after[0], after[1], after[2], after[3], state.length + count * size)
    S, z, w, m = S[:, :-1], z[:, :-1], w[:, :-1], m[:, :-1]

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


def _states_before(chunks: State, state: State, segments: Tensor | None) -> tuple[Tensor, Tensor, Tensor, Tensor]:
    """S, z, w and m before each of N chunks and after the last one: (B, N + 1, H, ...)."""
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
    return (
        torch.einsum("bhmn,bnhfd->bmhfd", scale, chunks.S) + state.S[:, None] * carry[..., None, None],
        torch.einsum("bhmn,bnhf->bmhf", scale, chunks.z) + state.z[:, None] * carry[..., None],
        torch.einsum("bhmn,bnh->bmh", scale, chunks.w) + state.w[:, None] * carry,
        m.mT,
    )
