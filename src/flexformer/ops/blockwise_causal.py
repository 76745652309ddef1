"""Causal attention block by block, with a backward pass of its own.

A block is several chunks. Their features are computed together, then chunk after chunk reads the state, forms its own
pairs and adds its keys to the state; the backward pass goes through the chunks in reverse. See `ops.causal` for the
same in plain tensor operations.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any, NamedTuple

import torch
from torch import Tensor

from ..kernels import Kernel
from ..kernels.blocks import BlockFeatures
from ..kernels.policy import denominator_limit, guarded
from ..kernels.weights import full_precision
from . import traced
from .chunks import hide
from .recompute import block_length, differentiable_gradients, exact, rows_times
from .state import State, log_ratio


def blockwise_causal(
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
    """Causal attention; with `segments`, one to a chunk, within each of several sequences."""
    plan = Plan(kernel, floor, key_mask, positions, size, block_length(kernel, q, size), segments)
    out, S, z, w, m = Causal.apply(plan, q, k, v, *state[:4], *kernel.trained_parameters())
    return out, State(S, z, w, m, state.length + k.shape[2])


class Block(NamedTuple):
    """N chunks of C tokens, G query heads to a key head, in the dtype to compute in."""

    here: slice
    chunks: int
    size: int
    q: Tensor
    """(B, H, N * G * C, D)"""
    k: Tensor
    """(B, H, N * C, D), zero where masked."""
    v: Tensor
    """(B, H, N * C, D), zero where masked."""
    hidden: Tensor | None
    """(B, 1, N * C) bool"""
    q_positions: Tensor | None
    k_positions: Tensor | None
    fresh: Tensor | None
    """(N,) bool, True where a chunk does not see what came before it; None: nowhere."""


class Weights(NamedTuple):
    """How much keys weigh for rows and states, in units of the most that each of them sees."""

    inside: Tensor
    """(B, H, N, C, C): e^{g_j - m_i} for the keys of row i's own chunk up to i, else zero."""
    entry: Tensor
    """(B, H, N, C): what the state before the chunk is multiplied by for row i."""
    keys: list[Tensor]
    """Per chunk (B, H, C): e^{g_j - m} in the state after it."""
    carry: list[Tensor]
    """Per chunk (B, H): what the state before it is multiplied by in the state after it."""
    total: Tensor
    """(B, H, N, C): each row's sum over all keys it sees."""
    w: Tensor
    """(B, H): the sum of weights in the state after the block."""
    m: Tensor
    """(B, H): the largest log-weight up to there."""


class Plan(NamedTuple):
    """What does not need a gradient."""

    kernel: Kernel
    floor: float
    key_mask: Tensor | None
    positions: Tensor | None
    size: int
    block: int
    segments: Tensor | None

    def blocks(self, q: Tensor, k: Tensor, v: Tensor, dtype: torch.dtype, backwards: bool = False) -> Iterator[Block]:
        rows = q.shape[2]
        whole = rows - rows % self.size
        pieces = [(slice(i, min(i + self.block, whole)), self.size) for i in range(0, whole, self.block)]
        if whole < rows:  # what is left over is a chunk of its own
            pieces.append((slice(whole, rows), rows - whole))
        for here, size in reversed(pieces) if backwards else pieces:
            yield self._block(q, k, v, here, size, dtype)

    def _block(self, q: Tensor, k: Tensor, v: Tensor, here: slice, size: int, dtype: torch.dtype) -> Block:
        heads, count = self.kernel.num_heads, (here.stop - here.start) // size
        x = q[:, :, here].to(dtype).unflatten(1, (heads, -1)).unflatten(3, (count, size)).transpose(2, 3)
        k, v, hidden = k[:, :, here].to(dtype), v[:, :, here].to(dtype), None
        if self.key_mask is not None:
            hidden = ~self.key_mask[:, None, here]
            k, v = k.masked_fill(hidden[..., None], 0.0), v.masked_fill(hidden[..., None], 0.0)
        q_positions = k_positions = None
        if self.positions is not None:
            k_positions = self.positions[here]
            q_positions = k_positions.unflatten(0, (count, 1, size)).expand(-1, x.shape[3], -1).flatten()
        fresh = None
        if self.segments is not None:
            first = here.start // self.size
            own = self.segments[first : first + count]
            before = self.segments[first - 1 : first + count - 1] if first else own.roll(1)
            fresh = own != before
        return Block(here, count, size, x.flatten(2, 4), k, v, hidden, q_positions, k_positions, fresh)


def weigh(g: Tensor | None, block: Block, w: Tensor, m: Tensor) -> Weights:
    """The weights of a block's keys, whose log-weights are `g` (B, H, N * C), after a state with `w` and `m`."""
    g = block.v.new_zeros(block.v.shape[:3]) if g is None else g
    g = hide(g, block.hidden, block.v)
    assert g is not None
    g = g.unflatten(2, (block.chunks, block.size))
    largest = g.amax(-1)
    before, sums_before, keys, carry = [], [], [], []
    for c in range(block.chunks):
        if block.fresh is not None:
            m, w = m.masked_fill(block.fresh[c], -torch.inf), w.masked_fill(block.fresh[c], 0.0)
        before.append(m)
        sums_before.append(w)
        m = torch.maximum(m, largest[:, :, c])
        carry.append(log_ratio(before[c], m).exp())
        keys.append(log_ratio(g[:, :, c], m[..., None]).exp_())
        w = w * carry[c] + keys[c].sum(-1)
    entering = torch.stack(before, dim=2)[..., None]
    rows = torch.maximum(g.cummax(-1).values, entering)
    order = torch.arange(block.size, device=g.device)
    inside = log_ratio(g[..., None, :], rows[..., None]).exp_().masked_fill_(order[:, None] < order, 0.0)
    entry = log_ratio(entering, rows).exp_()
    total = inside.sum(-1) + torch.stack(sums_before, dim=2)[..., None] * entry
    return Weights(inside, entry, keys, carry, total, w, m)


class Causal(torch.autograd.Function):
    """Every query sees the keys up to its own and the initial state."""

    @staticmethod
    def forward(
        ctx: Any,
        plan: Plan,
        q: Tensor,
        k: Tensor,
        v: Tensor,
        S: Tensor,
        z: Tensor,
        w: Tensor,
        m: Tensor,
        *parameters: Tensor,
    ) -> tuple[Tensor, ...]:
        kernel, policy = plan.kernel, plan.kernel.policy
        ctx.plan, ctx.buffers = plan, dict(kernel.named_buffers())
        features, keep, before = kernel.blocks(S.dtype), any(ctx.needs_input_grad), []
        start = (S, z, w, m)
        group = q.shape[1] // kernel.num_heads
        out = v.new_empty(q.shape[0], kernel.num_heads, group, q.shape[2], v.shape[3])
        for block in plan.blocks(q, k, v, S.dtype):
            if keep:
                before += [S, z, w, m]
            phi_q = features.query(block.q, block.q_positions)
            phi_k, g = features.key(block.k, block.k_positions)
            weights = weigh(g, block, w, m)
            limit = denominator_limit(weights.total, policy, plan.floor)
            for c in range(block.chunks):
                rows, keys = chunk_of(phi_q, c, block.chunks), chunk_of(phi_k, c, block.chunks)
                values = chunk_of(block.v, c, block.chunks)
                inside, entry, low = grouped_rows(c, group, weights.inside, weights.entry, limit)
                pairs = (rows @ keys.mT).mul_(inside)
                den = pairs.sum(-1).addcmul_((z[..., None, :] @ rows.mT).squeeze(-2), entry)
                num = (pairs @ values).addcmul_(rows @ S, entry[..., None])
                num.mul_(guarded(den, low, policy).reciprocal_()[..., None])
                at = block.here.start + c * block.size
                out[:, :, :, at : at + block.size] = num.unflatten(2, (group, -1))
                S, z = add_keys(S, z, keys, values, weights, c)
            w, m = weights.w, weights.m
        ctx.count = len(before) // 4
        out = out.flatten(1, 2)
        ctx.save_for_backward(q, k, v, exact(out, S), *before, *parameters)
        S, z, w, m = (x.clone() if x is y else x for x, y in zip((S, z, w, m), start, strict=True))
        ctx.mark_non_differentiable(m)
        return out, S, z, w, m

    @staticmethod
    def backward(ctx: Any, dout: Tensor, dS: Tensor, dz: Tensor, dw: Tensor, _: Tensor) -> tuple[Any, ...]:
        plan: Plan = ctx.plan
        q, k, v, out, *rest = ctx.saved_tensors
        before, parameters = rest[: 4 * ctx.count], rest[4 * ctx.count :]
        if torch.is_grad_enabled():

            def again(q: Tensor, k: Tensor, v: Tensor, state: State) -> tuple[Tensor, State]:
                return traced.causal(
                    q, k, v, plan.kernel, plan.key_mask, state, plan.floor, plan.positions, plan.size, plan.segments
                )

            return differentiable_gradients(ctx, again, (q, k, v, *before[:4]), parameters, (dout, dS, dz, dw))
        dq, dk, dv = torch.empty_like(q), torch.empty_like(k), torch.empty_like(v)
        heads = plan.kernel.num_heads
        with plan.kernel.holding(ctx.buffers), full_precision(q):
            features = plan.kernel.blocks(dS.dtype)
            for block in plan.blocks(q, k, v, dS.dtype, backwards=True):
                state, before = before[-4:], before[:-4]
                gouts = [None if x is None else x[:, :, block.here].unflatten(1, (heads, -1)) for x in (dout, out)]
                dqb, dkb, dvb, dS, dz, dw = _backward_block(plan, features, block, state, gouts, (dS, dz, dw))
                dq[:, :, block.here] = dqb.flatten(1, 2)
                dk[:, :, block.here], dv[:, :, block.here] = dkb, dvb
        return None, dq, dk, dv, dS, dz, dw, None, *features.parameter_gradients()


def _backward_block(
    plan: Plan,
    features: BlockFeatures,
    block: Block,
    state: list[Tensor],
    gouts: list[Tensor | None],
    gradients: tuple[Tensor, Tensor, Tensor],
) -> tuple[Tensor, ...]:
    """Gradients of a block's queries (B, H, G, T, D), keys and values, and of the state before it."""
    gdout, gout = gouts
    assert gdout is not None
    policy, group = plan.kernel.policy, gdout.shape[2]
    dS, dz, dw = gradients
    S, z, w, m = state
    phi_q, pull_q = features.query_vjp(block.q, block.q_positions)
    phi_k, g, pull_k = features.key_vjp(block.k, block.k_positions)
    weights = weigh(g, block, w, m)
    limits = denominator_limit(weights.total, policy, plan.floor)
    states = []
    for c in range(block.chunks):
        states.append((S, z))
        if c + 1 < block.chunks:
            keys, values = chunk_of(phi_k, c, block.chunks), chunk_of(block.v, c, block.chunks)
            S, z = add_keys(S, z, keys, values, weights, c)

    dphi_q, dphi_k = torch.empty_like(phi_q), torch.empty_like(phi_k)
    dv, dg = torch.empty_like(block.v), block.v.new_empty(block.v.shape[:3])
    for c in reversed(range(block.chunks)):
        S, z = states[c]
        rows, keys, values = (chunk_of(x, c, block.chunks) for x in (phi_q, phi_k, block.v))
        tokens = slice(c * block.size, (c + 1) * block.size)
        do = gdout[:, :, :, tokens].flatten(2, 3).to(dS.dtype)
        inside, entry, limit = grouped_rows(c, group, weights.inside, weights.entry, limits)
        scale, carry = weights.keys[c], weights.carry[c]

        pairs = (rows @ keys.mT).mul_(inside)
        den = pairs.sum(-1).addcmul_((z[..., None, :] @ rows.mT).squeeze(-2), entry)
        inverse = guarded(den, limit, policy).reciprocal_()
        free = (den.abs() if policy == "raw" else den) >= limit
        if gout is None:
            given = (pairs @ values).addcmul_(rows @ S, entry[..., None]).mul_(inverse[..., None])
        else:
            given = gout[:, :, :, tokens].flatten(2, 3)
        dden = (do * given).sum(-1).mul_(inverse).neg_()
        dtotal = None
        if policy != "absolute":
            dtotal = (dden * inverse.sign()).masked_fill_(free, 0.0).mul_(plan.floor)
        dden = dden * free
        dnum = do * inverse[..., None]

        dpairs = (dnum @ values.mT).add_(dden[..., None])
        dgc = (pairs * dpairs).sum(-2)
        dpairs.mul_(inside)
        dread = torch.cat((dnum * entry[..., None], (dden * entry)[..., None]), dim=-1)
        added = torch.cat((values * scale[..., None], scale[..., None]), dim=-1)
        sums, dsums = torch.cat((S, z[..., None]), dim=-1), torch.cat((dS, dz[..., None]), dim=-1)
        dread_phi, dpair_phi = rows_times(dread, sums, features), rows_times(dpairs, keys.mT, features)
        torch.add(dread_phi, dpair_phi, out=chunk_of(dphi_q, c, block.chunks))
        dread_phi, dpair_phi = rows_times(added, dsums, features), rows_times(dpairs.mT, rows.mT, features)
        torch.add(dread_phi, dpair_phi, out=chunk_of(dphi_k, c, block.chunks))

        dvalues = keys @ dS
        dscale = (dvalues * values).sum(-1).add_((dz[..., None, :] @ keys.mT).squeeze(-2)).add_(dw[..., None])
        dgc.add_(dscale.mul_(scale))
        torch.addcmul(pairs.mT @ dnum, dvalues, scale[..., None], out=chunk_of(dv, c, block.chunks))
        dw = dw * carry
        if dtotal is not None:
            dgc.add_((dtotal[..., None, :] @ inside).squeeze(-2))
            dw = dw + (dtotal * entry).sum(-1)
        dg[:, :, tokens] = dgc
        dsums = torch.addcmul(rows.mT @ dread, dsums, carry[..., None, None])
        dS, dz = dsums[..., :-1], dsums[..., -1]
    dq = pull_q(dphi_q).unflatten(2, (block.chunks, group, block.size)).transpose(2, 3).flatten(3, 4)
    dk = pull_k(dphi_k, dg)
    if block.hidden is not None:
        dk, dv = dk.masked_fill(block.hidden[..., None], 0.0), dv.masked_fill(block.hidden[..., None], 0.0)
    return dq, dk, dv, dS, dz, dw


def chunk_of(x: Tensor, c: int, count: int) -> Tensor:
    """Chunk `c` of `count` along the tokens of (B, H, T, ...)."""
    size = x.shape[2] // count
    return x[:, :, c * size : (c + 1) * size]


def grouped_rows(c: int, group: int, *tensors: Tensor) -> list[Tensor]:
    """Chunk `c` of (B, H, N, C, ...), repeated for every query head of a group: (B, H, G * C, ...)."""
    rows = [x[:, :, c] for x in tensors]
    return rows if group == 1 else [x.repeat(1, 1, group, *[1] * (x.dim() - 3)) for x in rows]


def add_keys(S: Tensor, z: Tensor, keys: Tensor, values: Tensor, weights: Weights, c: int) -> tuple[Tensor, Tensor]:
    """S and z after chunk `c`."""
    scale, carry = weights.keys[c], weights.carry[c]
    S = torch.addcmul(keys.mT @ (values * scale[..., None]), S, carry[..., None, None])
    z = torch.addcmul((scale[..., None, :] @ keys).squeeze(-2), z, carry[..., None])
    return S, z
