"""Bidirectional attention block by block, with a backward pass of its own."""

from __future__ import annotations

from typing import Any, NamedTuple

import torch
from torch import Tensor

from ..kernels import Kernel
from ..kernels.blocks import BlockFeatures
from ..kernels.policy import denominator_limit, guarded
from ..kernels.weights import full_precision
from . import traced
from .chunks import hide
from .recompute import block_length, blocks, differentiable_gradients, exact, rows_times
from .state import State, log_ratio


def blockwise_bidirectional(
    q: Tensor,
    k: Tensor,
    v: Tensor,
    kernel: Kernel,
    key_mask: Tensor | None,
    state: State,
    floor: float,
    query_start: int | Tensor,
) -> tuple[Tensor, State]:
    plan = Plan(kernel, floor, key_mask, query_start, state.length, block_length(kernel, q))
    out, S, z, w, m = Bidirectional.apply(plan, q, k, v, *state[:4], *kernel.trained_parameters())
    return out, State(S, z, w, m, state.length + k.shape[2])


class Plan(NamedTuple):
    """What does not need a gradient."""

    kernel: Kernel
    floor: float
    key_mask: Tensor | None
    query_start: int | Tensor
    key_start: Tensor | int
    block: int

    def keys(self, k: Tensor, v: Tensor, here: slice, dtype: torch.dtype) -> tuple[Tensor, Tensor, Tensor | None]:
        """Keys and values of a block, masked ones made harmless, and which these are, (B, 1, t)."""
        k, v = k[:, :, here].to(dtype), v[:, :, here].to(dtype)
        if self.key_mask is None:
            return k, v, None
        hidden = ~self.key_mask[:, None, here]
        return k.masked_fill(hidden[..., None], 0.0), v.masked_fill(hidden[..., None], 0.0), hidden

    def positions(self, here: slice, start: int | Tensor, group: int, like: Tensor) -> Tensor | None:
        if not self.kernel.uses_positions:
            return None
        return (torch.arange(here.start, here.stop, device=like.device) + start).repeat(group)


class Bidirectional(torch.autograd.Function):
    """Every query sees every visible key and the initial state."""

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
        kernel = plan.kernel
        ctx.plan, ctx.buffers = plan, dict(kernel.named_buffers())
        features = kernel.blocks(S.dtype)
        state = _fold_keys(plan, features, k, v, State(S, z, w, m))
        grouped = q.unflatten(1, (kernel.num_heads, -1))  # (B, H, G, T, D)
        group = grouped.shape[2]
        limit = denominator_limit(state.w, kernel.policy, plan.floor)[..., None]
        out = torch.empty(*grouped.shape[:4], v.shape[3], dtype=v.dtype, device=v.device)
        for here in blocks(q.shape[2], plan.block):
            x = grouped[:, :, :, here].flatten(2, 3).to(S.dtype)
            phi = features.query(x, plan.positions(here, plan.query_start, group, q))
            den = (state.z[..., None, :] @ phi.mT).squeeze(-2)
            inverse = guarded(den, limit, kernel.policy).reciprocal_()
            rows = (phi @ state.S).mul_(inverse[..., None])
            out[:, :, :, here] = rows.unflatten(2, (group, -1))
        out = out.flatten(1, 2)
        ctx.save_for_backward(q, k, v, exact(out, S), *state[:4], S, z, w, m, *parameters)
        ctx.mark_non_differentiable(state.m)
        return out, state.S, state.z, state.w, state.m

    @staticmethod
    def backward(ctx: Any, dout: Tensor, dS: Tensor, dz: Tensor, dw: Tensor, _: Tensor) -> tuple[Any, ...]:
        q, k, v, out, S, z, w, m, *before = ctx.saved_tensors[:12]
        plan: Plan = ctx.plan
        if torch.is_grad_enabled():

            def again(q: Tensor, k: Tensor, v: Tensor, state: State) -> tuple[Tensor, State]:
                state = state._replace(length=plan.key_start)
                return traced.bidirectional(q, k, v, plan.kernel, plan.key_mask, state, plan.floor, plan.query_start)

            return differentiable_gradients(ctx, again, (q, k, v, *before), ctx.saved_tensors[12:], (dout, dS, dz, dw))
        state = State(S, z, w, m)
        with plan.kernel.holding(ctx.buffers), full_precision(q):
            features = plan.kernel.blocks(S.dtype)
            dq, dS, dz, dw = _backward_queries(plan, features, q, out, dout, state, (dS, dz, dw))
            dk, dv = _backward_keys(plan, features, k, v, m, (dS, dz, dw))
        entry = log_ratio(before[3], m).exp()
        dS, dz, dw = dS * entry[..., None, None], dz * entry[..., None], dw * entry
        return None, dq, dk, dv, dS, dz, dw, None, *features.parameter_gradients()


def _fold_keys(plan: Plan, features: BlockFeatures, k: Tensor, v: Tensor, state: State) -> State:
    """The state after all keys."""
    S, z, w, m = state.S, state.z, state.w, state.m
    for here in blocks(k.shape[2], plan.block):
        keys, values, hidden = plan.keys(k, v, here, S.dtype)
        phi, g = features.key(keys, plan.positions(here, plan.key_start, 1, k))
        g = hide(g, hidden, phi)
        if g is None:
            largest, scale = m.clamp_min(0.0), phi.new_ones(phi.shape[:3])
        else:
            largest = torch.maximum(m, g.amax(-1))
            scale = log_ratio(g, largest[..., None]).exp_()
            values = values * scale[..., None]
        before = log_ratio(m, largest).exp_()
        S = torch.addcmul(phi.mT @ values, S, before[..., None, None])
        z = torch.addcmul((scale[..., None, :] @ phi).squeeze(-2), z, before[..., None])
        w, m = w * before + scale.sum(-1), largest
    return State(*(x.clone() if x is y else x for x, y in zip((S, z, w, m), state[:4], strict=True)))


def _backward_queries(
    plan: Plan,
    features: BlockFeatures,
    q: Tensor,
    out: Tensor | None,
    dout: Tensor,
    state: State,
    gradients: tuple[Tensor, Tensor, Tensor],
) -> tuple[Tensor, Tensor, Tensor, Tensor]:
    """The gradient of queries, and those of S, z and w with what the queries add to them."""
    policy, heads = plan.kernel.policy, plan.kernel.num_heads
    grouped, gdout = (x.unflatten(1, (heads, -1)) for x in (q, dout))
    gout = None if out is None else out.unflatten(1, (heads, -1))
    group = grouped.shape[2]
    limit = denominator_limit(state.w, policy, plan.floor)[..., None]
    sums = torch.cat((state.S, state.z[..., None]), dim=-1)
    dq = torch.empty_like(grouped)
    dS, dz, dw = (x.clone() for x in gradients)
    for here in blocks(q.shape[2], plan.block):
        x = grouped[:, :, :, here].flatten(2, 3).to(dS.dtype)
        phi, pull = features.query_vjp(x, plan.positions(here, plan.query_start, group, q))
        rows = gdout[:, :, :, here].flatten(2, 3).to(dS.dtype)
        den = (state.z[..., None, :] @ phi.mT).squeeze(-2)
        inverse = guarded(den, limit, policy).reciprocal_()
        if gout is None:
            given = (phi @ state.S).mul_(inverse[..., None])
        else:
            given = gout[:, :, :, here].flatten(2, 3)
        dden = (rows * given).sum(-1).mul_(inverse).neg_()
        free = (den.abs() if policy == "raw" else den) >= limit
        if policy != "absolute":
            dw += (dden * inverse.sign()).masked_fill_(free, 0.0).sum(-1).mul_(plan.floor)
        dden = dden * free
        dnum = rows * inverse[..., None]
        dS += phi.mT @ dnum
        dz += (dden[..., None, :] @ phi).squeeze(-2)
        dphi = rows_times(torch.cat((dnum, dden[..., None]), dim=-1), sums, features)
        dq[:, :, :, here] = pull(dphi).unflatten(2, (group, -1))
    return dq.flatten(1, 2), dS, dz, dw


def _backward_keys(
    plan: Plan,
    features: BlockFeatures,
    k: Tensor,
    v: Tensor,
    m: Tensor,
    gradients: tuple[Tensor, Tensor, Tensor],
) -> tuple[Tensor, Tensor]:
    """The gradients of keys and values from those of the state after them."""
    dS, dz, dw = gradients
    dsums = torch.cat((dS, dz[..., None]), dim=-1)
    dk, dv = torch.empty_like(k), torch.empty_like(v)
    for here in blocks(k.shape[2], plan.block):
        keys, values, hidden = plan.keys(k, v, here, dS.dtype)
        phi, g, pull = features.key_vjp(keys, plan.positions(here, plan.key_start, 1, k))
        g = hide(g, hidden, phi)
        dvalues = phi @ dS
        if g is None:
            dg, rows = None, torch.cat((values, values.new_ones(*values.shape[:3], 1)), dim=-1)
        else:
            scale = log_ratio(g, m[..., None]).exp_()
            dg = (dvalues * values).sum(-1)
            dg += (dz[..., None, :] @ phi.mT).squeeze(-2)
            dg.add_(dw[..., None]).mul_(scale)
            dvalues.mul_(scale[..., None])
            rows = torch.cat((values * scale[..., None], scale[..., None]), dim=-1)
        dkeys = pull(rows_times(rows, dsums, features), dg)
        dk[:, :, here] = dkeys if hidden is None else dkeys.masked_fill(hidden[..., None], 0.0)
        dv[:, :, here] = dvalues
    return dk, dv
