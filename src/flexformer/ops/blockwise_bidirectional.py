"""Bidirectional attention block by block, with a backward pass of its own."""

from __future__ import annotations

from typing import Any, NamedTuple

import torch
from torch import Tensor

from ..kernels import Kernel
from ..kernels.blocks import BlockFeatures
from ..kernels.held import named_tensors
from ..kernels.policy import denominator_limit, guarded
from ..kernels.workspace import Workspace, fast_products
from . import recompute, traced
from .chunks import hide
from .recompute import block_length, blocks, bounded_into, exact, put, take, times_features
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
    held = named_tensors(kernel)
    plan = Plan(kernel, tuple(held), floor, key_mask, query_start, state.length, block_length(kernel, q))
    out, S, z, w, m = Bidirectional.apply(plan, q, k, v, *state[:4], *held.values())
    return out, State(S, z, w, m, state.length + k.shape[2])


class Plan(NamedTuple):
    """What does not need a gradient."""

    kernel: Kernel
    names: tuple[str, ...]
    """of the kernel's tensors"""
    floor: float
    key_mask: Tensor | None
    query_start: int | Tensor
    key_start: Tensor | int
    block: int

    def features(self, q: Tensor, dtype: torch.dtype) -> BlockFeatures:
        return self.kernel.blocks(q.shape[0], Workspace(dtype, q.device, fast_products(q.dtype, q.device)))

    def queries(self, q: Tensor, here: slice, workspace: Workspace) -> tuple[Tensor, Tensor | None]:
        """Queries of a block, (B * H, G * t, D), and their positions."""
        group = q.shape[1] // self.kernel.num_heads
        rows = self._bounded(q, here, workspace("queries", q.shape[0], q.shape[1], here.stop - here.start, q.shape[3]))
        return rows, self._positions(here, self.query_start, group, q)

    def keys(
        self, k: Tensor, v: Tensor, here: slice, workspace: Workspace
    ) -> tuple[Tensor, Tensor, Tensor | None, Tensor | None]:
        """Keys and values of a block, (B * H, t, D), masked ones made harmless, positions, and which are masked."""
        heads = self.kernel.num_heads
        keys = self._bounded(k, here, workspace("keys", *k.shape[:2], here.stop - here.start, k.shape[3]))
        values = take(v, here, heads, workspace, "values")
        positions = self._positions(here, self.key_start, 1, k)
        if self.key_mask is None:
            return keys, values, positions, None
        hidden = (~self.key_mask[:, None, here]).expand(-1, heads, -1).flatten(0, 1)
        blank = hidden[..., None]
        return keys.masked_fill_(blank, 0.0), values.masked_fill(blank, 0.0), positions, hidden

    def _bounded(self, x: Tensor, here: slice, out: Tensor) -> Tensor:
        """Tokens `here` of (B, G * H, T, D) as (B * H, G * t, D)."""
        bounded_into(x[:, :, here], out)
        return out.view(x.shape[0] * self.kernel.num_heads, -1, x.shape[3])

    def _positions(self, here: slice, start: int | Tensor, group: int, like: Tensor) -> Tensor | None:
        if not self.kernel.uses_positions:
            return None
        return (torch.arange(here.start, here.stop, device=like.device) + start).repeat(group)


class Sums(NamedTuple):
    """A state with batch and heads as one dimension, N = B * H; or the gradient of one, without `m`."""

    S: Tensor
    """(N, F, D)"""
    z: Tensor
    """(N, 1, F)"""
    w: Tensor
    """(N, 1)"""
    m: Tensor
    """(N, 1)"""

    @classmethod
    def of(cls, S: Tensor, z: Tensor, w: Tensor, m: Tensor) -> Sums:
        """A copy, to be added to."""
        flat = (x.flatten(0, 1).clone(memory_format=torch.contiguous_format) for x in (S, z, w, m))
        S, z, w, m = flat
        return cls(S, z[:, None], w[:, None], m[:, None])

    def split(self, heads: int) -> tuple[Tensor, ...]:
        flat = (self.S, self.z[:, 0], self.w[:, 0], self.m[:, 0])
        return tuple(x.unflatten(0, (-1, heads)) for x in flat)


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
        *held: Tensor,
    ) -> tuple[Tensor, ...]:
        kernel = plan.kernel
        features = plan.features(q, S.dtype)
        workspace = features.workspace
        sums = _fold_keys(plan, features, k, v, Sums.of(S, z, w, m))
        limit = denominator_limit(sums.w, kernel.policy, plan.floor / features.scale)
        out = v.new_empty(*q.shape[:3], v.shape[3])
        for here in blocks(q.shape[2], plan.block):
            phi = features.query(*plan.queries(q, here, workspace))
            den = torch.bmm(sums.z, phi.mT)[:, 0]
            inverse = guarded(den, limit, kernel.policy).reciprocal_()
            rows = workspace.multiply(phi, sums.S, workspace("rows", *phi.shape[:2], v.shape[3]))
            part = out[:, :, here]
            torch.mul(rows.view(part.shape), inverse.view(part.shape[:3])[..., None], out=part)
        after = sums.split(kernel.num_heads)
        recompute.remember(ctx, plan, held, q, k, v, exact(out, workspace), *after, S, z, w, m)
        ctx.mark_non_differentiable(after[3])
        return out, *after

    @staticmethod
    def backward(ctx: Any, dout: Tensor, dS: Tensor, dz: Tensor, dw: Tensor, _: Tensor) -> tuple[Any, ...]:
        plan, held, (q, k, v, out, S, z, w, m, *before) = recompute.recall(ctx)
        if torch.is_grad_enabled():

            def again(kernel: Kernel, q: Tensor, k: Tensor, v: Tensor, state: State) -> tuple[Tensor, State]:
                state = state._replace(length=plan.key_start)
                return traced.bidirectional(q, k, v, kernel, plan.key_mask, state, plan.floor, plan.query_start)

            return recompute.differentiable_gradients(ctx, plan, again, (q, k, v, *before), held, (dout, dS, dz, dw))
        sums, dsums = Sums.of(S, z, w, m), Sums.of(dS, dz, dw, m)
        with recompute.as_it_was(ctx, plan, held, q) as plan:
            features = plan.features(q, S.dtype)
            dq = _backward_queries(plan, features, (q, out, dout), sums, dsums)
            dk, dv = _backward_keys(plan, features, k, v, dsums)
        dS, dz, dw, _ = dsums.split(plan.kernel.num_heads)
        entry = log_ratio(before[3], m).exp()
        dS, dz, dw = dS * entry[..., None, None], dz * entry[..., None], dw * entry
        return None, dq, dk, dv, dS, dz, dw, None, *recompute.in_order(ctx, plan, held, features.parameter_gradients())


def _fold_keys(plan: Plan, features: BlockFeatures, k: Tensor, v: Tensor, sums: Sums) -> Sums:
    """Add all keys to `sums`, in place."""
    S, z, w, m = sums
    workspace = features.workspace
    for here in blocks(k.shape[2], plan.block):
        keys, values, positions, hidden = plan.keys(k, v, here, workspace)
        phi, g = features.key(keys, positions)
        g = hide(g, hidden, phi)
        largest = m.clamp_min(0.0) if g is None else torch.maximum(m, g.amax(-1, keepdim=True))
        before = log_ratio(m, largest).exp_()
        weight = values.new_ones(values.shape[:2]) if g is None else log_ratio(g, largest).exp_()
        w.mul_(before).add_(weight.sum(-1, keepdim=True))
        scale = weight.mul_(features.scale)
        if g is not None or features.scale != 1.0:
            values = torch.mul(values, scale[..., None], out=workspace("scaled values", *values.shape))
        workspace.add_product(S.mul_(before[..., None]), phi.mT, values)
        z.mul_(before[..., None]).baddbmm_(scale[:, None], phi)
        m.copy_(largest)
    return sums


def _backward_queries(
    plan: Plan,
    features: BlockFeatures,
    rows: tuple[Tensor, Tensor | None, Tensor],
    sums: Sums,
    dsums: Sums,
) -> Tensor:
    """The gradient of queries; what they add to that of the state is added to `dsums`. Rows are q, out and dout."""
    q, out, dout = rows
    workspace = features.workspace
    policy, heads, width = plan.kernel.policy, plan.kernel.num_heads, dout.shape[3]
    floor = plan.floor / features.scale
    limit = denominator_limit(sums.w, policy, floor)
    columns = torch.cat((sums.S, sums.z.mT), dim=-1)
    dq = torch.empty_like(q, memory_format=torch.contiguous_format)
    for here in blocks(q.shape[2], plan.block):
        phi, pull = features.query_vjp(*plan.queries(q, here, workspace))
        do = take(dout, here, heads, workspace, "output gradients")
        den = torch.bmm(sums.z, phi.mT)[:, 0]
        inverse = guarded(den, limit, policy).reciprocal_()
        product = workspace("rows", *do.shape)
        if out is None:
            given = workspace.multiply(phi, sums.S, product).mul_(inverse[..., None])
        else:
            given = take(out, here, heads, workspace, "outputs")
        dden = torch.mul(do, given, out=product).sum(-1).mul_(inverse).neg_()
        free = (den.abs() if policy == "raw" else den) >= limit
        if policy != "absolute":
            dsums.w.add_((dden * inverse.sign()).masked_fill_(free, 0.0).sum(-1, keepdim=True), alpha=floor)
        dden *= free
        dcolumns = workspace("columns", *do.shape[:2], width + 1)
        dnum = torch.mul(do, inverse[..., None], out=dcolumns[..., :width])
        dcolumns[..., width] = dden
        workspace.add_product(dsums.S, phi.mT, dnum)
        dsums.z.baddbmm_(dden[:, None], phi)
        put(pull(times_features(dcolumns, columns, features, workspace, "feature gradients")), dq, here)
    return dq


def _backward_keys(plan: Plan, features: BlockFeatures, k: Tensor, v: Tensor, dsums: Sums) -> tuple[Tensor, Tensor]:
    """The gradients of keys and values from those of the state after them, whose `m` is `dsums.m`."""
    dS, dz, dw, m = dsums
    workspace = features.workspace
    width = v.shape[3]
    columns = torch.cat((dS, dz.mT), dim=-1)
    dk, dv = (torch.empty_like(x, memory_format=torch.contiguous_format) for x in (k, v))
    for here in blocks(k.shape[2], plan.block):
        keys, values, positions, hidden = plan.keys(k, v, here, workspace)
        phi, g, pull = features.key_vjp(keys, positions)
        g = hide(g, hidden, phi)
        dvalues = workspace.multiply(phi, dS, workspace("rows", *values.shape))
        rows = workspace("columns", *values.shape[:2], width + 1)
        weight = values.new_ones(values.shape[:2]) if g is None else log_ratio(g, m).exp_()
        scale = weight * features.scale
        torch.mul(values, scale[..., None], out=rows[..., :width])
        rows[..., width] = scale
        dg = None
        if g is not None:
            dg = torch.mul(dvalues, values, out=workspace("products", *values.shape)).sum(-1)
            dg.add_(torch.bmm(dz, phi.mT)[:, 0]).mul_(scale).addcmul_(weight, dw)
        dvalues.mul_(scale[..., None])
        dkeys = pull(times_features(rows, columns, features, workspace, "feature gradients"), dg)
        if hidden is not None:
            dkeys = dkeys.masked_fill(hidden[..., None], 0.0)
        put(dkeys, dk, here)
        put(dvalues, dv, here)
    return dk, dv
