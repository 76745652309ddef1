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
    state_segment: Tensor | None = None,
) -> tuple[Tensor, State]:
    """Causal attention over consecutive chunks, from and to a state.

    Inside a chunk all pairs are formed and masked; earlier chunks are seen through their sums. Every row has
    the largest log-weight among its own visible keys as its unit, as in online softmax, so that a later key
    of any size leaves earlier rows untouched to the bit.

    Args:
        phi_q: (B, H, N, G, C, F) features of N chunks of C queries, G query heads to a key head.
        phi_k: (B, H, N, C, F).
        g: (B, H, N, C) log-weights, -inf where masked, or None where all are zero.
        v: (B, H, N, C, D).
        state: of the keys before.
        policy: see `flexformer.kernels.Kernel`.
        floor: see `flexformer.kernels.Kernel`.
        segments: (N,) the sequence each chunk belongs to, where several are packed; they come in order.
        state_segment: () the sequence `state` belongs to, None for none of them.

    Returns:
        (B, H, N, G, C, D) and the state after the last chunk, in that chunk's segment.
    """
    count, size = phi_k.shape[2], phi_k.shape[3]
    chunks = summarise(phi_k, g, v)
    before = _states_before(chunks, state, segments, state_segment)
    S, z, w, m = (
        before.S[:, :, :count],
        before.z[:, :, :count],
        before.w[:, :, :count],
        before.m[:, :, :count],
    )
    last = State(
        S=before.S[:, :, count],
        z=before.z[:, :, count],
        w=before.w[:, :, count],
        m=before.m[:, :, count],
        length=state.length + count * size,
    )

    order = torch.arange(size, device=v.device)
    future = order[:, None] < order
    if g is None:
        largest = m.clamp_min(0.0)[..., None]
        inside = (~future).to(v.dtype)
    else:
        largest = torch.maximum(g.detach().cummax(-1).values, m[..., None])
        inside = log_ratio(g[..., None, :].masked_fill(future, -torch.inf), largest[..., None]).exp()
        inside = inside[..., None, :, :]  # the same for every query head of the group
    entry = log_ratio(m[..., None], largest).exp()[..., None, :]  # (B, H, N, 1, C)

    weights = phi_q @ phi_k[..., None, :, :].transpose(-1, -2) * inside
    num = weights @ v[..., None, :, :] + (phi_q @ S[:, :, :, None]) * entry[..., None]
    den = weights.sum(-1) + (phi_q @ z[:, :, :, None, :, None]).squeeze(-1) * entry
    total = inside.sum(-1) + w[..., None, None] * entry
    return normalise(num, den, total.expand_as(den), policy, floor), last


def _states_before(chunks: State, state: State, segments: Tensor | None, state_segment: Tensor | None) -> State:
    """The state before each of N chunks and after the last one: (B, H, N + 1, ...)."""
    count = chunks.m.shape[2]
    order = torch.arange(count, device=chunks.m.device)
    earlier = torch.arange(count + 1, device=chunks.m.device)[:, None] > order
    carried = torch.ones(count + 1, dtype=torch.bool, device=chunks.m.device)
    if segments is not None:
        reader = torch.cat((segments, segments[-1:]))
        earlier = earlier & (reader[:, None] == segments)
        carried = reader.eq(-1 if state_segment is None else state_segment)

    logs = chunks.m[:, :, None, :].masked_fill(~earlier, -torch.inf)
    carry = state.m[:, :, None].masked_fill(~carried, -torch.inf)
    m = torch.maximum(logs.amax(-1), carry)
    scale = log_ratio(logs, m[..., None]).exp()
    carry = log_ratio(carry, m).exp()

    S = (scale @ chunks.S.flatten(3)).unflatten(-1, chunks.S.shape[3:])
    return State(
        S=S + state.S[:, :, None] * carry[..., None, None],
        z=scale @ chunks.z + state.z[:, :, None] * carry[..., None],
        w=(scale @ chunks.w[..., None]).squeeze(-1) + state.w[:, :, None] * carry,
        m=m,
        length=state.length,
    )
