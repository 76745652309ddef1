"""Causal attention block by block, with a backward pass of its own.

A block is several chunks. Chunks join the batch, chunks first, so that all of a block is computed together; only the
state goes from chunk to chunk, and its gradient back. Sums of weights are treated as one more column of values, which
holds ones: a state's z is then the last column of its S. See `ops.causal` for the same in plain tensor operations.

Shapes: n chunks of C tokens to a block, N = B * H key heads with G query heads each, and M = n * N.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any, NamedTuple

import torch
from torch import Tensor

from ..kernels import Kernel
from ..kernels.blocks import BlockFeatures
from ..kernels.held import named_tensors
from ..kernels.policy import denominator_limit, guarded
from ..kernels.workspace import Workspace, fast_products
from . import recompute, traced
from .causal_weights import Weights, weigh
from .recompute import block_length, bounded_into, exact, scaled_into, times_features
from .state import State


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
    held = named_tensors(kernel)
    plan = Plan(kernel, tuple(held), floor, key_mask, positions, size, block_length(kernel, q, size), segments)
    out, S, z, w, m = Causal.apply(plan, q, k, v, *state[:4], *held.values())
    return out, State(S, z, w, m, state.length + k.shape[2])


class Block(NamedTuple):
    """Inputs of a block in the dtype to compute in."""

    chunks: int
    size: int
    q: Tensor
    """(M, G * C, D)"""
    k: Tensor
    """(M, C, D), zero where masked."""
    v: Tensor
    """(M, C, D + 1), zero where masked; the last column holds ones. All times the scale of features."""
    hidden: Tensor | None
    """(M, C) bool"""
    positions: Tensor | None
    """(n * B, 1, C)"""
    fresh: Tensor | None
    """(n,) bool, True where a chunk does not see what came before it; None: nowhere."""

    def q_positions(self) -> Tensor | None:
        return None if self.positions is None else self.positions.repeat(1, 1, self.q.shape[1] // self.size)


class Plan(NamedTuple):
    """What does not need a gradient."""

    kernel: Kernel
    names: tuple[str, ...]
    """of the kernel's tensors"""
    floor: float
    key_mask: Tensor | None
    positions: Tensor | None
    size: int
    block: int
    segments: Tensor | None

    def features(self, q: Tensor, dtype: torch.dtype) -> BlockFeatures:
        chunks = max(1, min(self.block, q.shape[2]) // self.size)
        return self.kernel.blocks(chunks * q.shape[0], Workspace(dtype, q.device, fast_products(q.dtype, q.device)))

    def cut(self, x: Tensor) -> list[Tensor]:
        """(B, H * G, T, D) as one (n, B, H, G, C, D) to a block; what is left over is a chunk of its own."""
        heads, length = self.kernel.num_heads, x.shape[2]
        whole = length - length % self.size
        found: list[Tensor] = []
        for part, size in ((x[:, :, :whole], self.size), (x[:, :, whole:], length - whole)):
            if part.shape[2]:
                shape = x.shape[0], heads, x.shape[1] // heads, part.shape[2] // size, size, x.shape[3]
                found += part.view(shape).permute(3, 0, 1, 2, 4, 5).split(self.block // self.size)
        return found

    def blocks(
        self, q: Tensor, k: Tensor, v: Tensor, features: BlockFeatures, backwards: bool = False
    ) -> Iterator[Block]:
        pieces, start = [], 0
        for piece in zip(self.cut(q), self.cut(k), self.cut(v), strict=True):
            pieces.append((start, *piece))
            start += piece[0].shape[0] * piece[0].shape[4]
        for place in reversed(pieces) if backwards else pieces:
            yield self._block(*place, features)

    def _block(self, start: int, q: Tensor, k: Tensor, v: Tensor, features: BlockFeatures) -> Block:
        workspace, scale = features.workspace, features.scale
        count, batch, heads, group, size = q.shape[:5]
        here = slice(start, start + count * size)
        keys = workspace("keys", count * batch * heads, size, k.shape[5])
        bounded_into(k, keys.view(k.shape))
        values = workspace("values", *keys.shape[:2], v.shape[5] + 1)
        scaled_into(v, scale, values[..., :-1].view(v.shape))
        values[..., -1] = scale
        hidden = positions = fresh = None
        if self.key_mask is not None:
            hidden = ~self.key_mask[:, None, here].unflatten(2, (count, size)).permute(2, 0, 1, 3)
            hidden = hidden.expand(-1, -1, heads, -1).flatten(0, 2)
            keys.masked_fill_(hidden[..., None], 0.0)
            values[..., :-1].masked_fill_(hidden[..., None], 0.0)
        if self.positions is not None:
            positions = self.positions[here].view(count, 1, size).repeat_interleave(batch, dim=0)
        if self.segments is not None:
            first = start // self.size
            own = self.segments[first : first + count]
            before = self.segments[first - 1 : first + count - 1] if first else own.roll(1)
            fresh = own != before
        rows = workspace("queries", keys.shape[0], group * size, q.shape[5])
        bounded_into(q, rows.view(q.shape))
        return Block(count, size, rows, keys, values, hidden, positions, fresh)


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
        *held: Tensor,
    ) -> tuple[Tensor, ...]:
        heads, policy, keep = plan.kernel.num_heads, plan.kernel.policy, any(ctx.needs_input_grad)
        features = plan.features(q, S.dtype)
        state = torch.cat((S, z[..., None]), dim=-1).flatten(0, 1)
        weight, largest = w.flatten()[:, None], m.flatten()[:, None]
        out, kept = v.new_empty(*q.shape[:3], v.shape[3]), []
        workspace, floor = features.workspace, plan.floor / features.scale
        for block, o in zip(plan.blocks(q, k, v, features), plan.cut(out), strict=True):
            phi_q = features.query(block.q, block.q_positions())
            phi_k, g = features.key(block.k, block.positions)
            weights, entering, weight, largest = weigh(g, block, weight, largest)
            inside = weights.inside(workspace)
            total = inside.sum(-1).addcmul_(entering.flatten(0, 1), weights.entry)
            pairs = _pairs(phi_q, phi_k, inside, workspace)
            states = _states(state, phi_k, _weighted(block, weights, workspace), weights, workspace)
            rows = _rows(phi_q, pairs, block.v, states[:-1].flatten(0, 1), weights, workspace)
            num, den = rows[..., :-1], rows[..., -1]
            limit = weights.repeated(denominator_limit(total, policy, floor), rows)
            inverse = guarded(den, limit, policy).reciprocal_()
            o.copy_(num.mul_(inverse[..., None]).view(o.shape))
            if keep:
                free = (den.abs() if policy == "raw" else den) >= limit
                kept += [states[0].clone(), inverse, free, *weights]
            state = states[-1]
        recompute.remember(ctx, plan, held, q, k, v, exact(out, workspace), S, z, w, m, *kept)
        S, z = (x.contiguous().unflatten(0, (-1, heads)) for x in (state[..., :-1], state[..., -1]))
        # Without a token they are the inputs still, which must not be returned as they are.
        w, m = (x.clone().view_as(w) for x in (weight, largest))
        ctx.mark_non_differentiable(m)
        return out, S, z, w, m

    @staticmethod
    def backward(ctx: Any, dout: Tensor, dS: Tensor, dz: Tensor, dw: Tensor, _: Tensor) -> tuple[Any, ...]:
        plan, held, (q, k, v, out, S, z, w, m, *kept) = recompute.recall(ctx)
        if torch.is_grad_enabled():

            def again(kernel: Kernel, q: Tensor, k: Tensor, v: Tensor, state: State) -> tuple[Tensor, State]:
                return traced.causal(
                    q, k, v, kernel, plan.key_mask, state, plan.floor, plan.positions, plan.size, plan.segments
                )

            return recompute.differentiable_gradients(ctx, plan, again, (q, k, v, S, z, w, m), held, (dout, dS, dz, dw))
        gradients = [torch.empty_like(x, memory_format=torch.contiguous_format) for x in (q, k, v)]
        dstate = torch.cat((dS, dz[..., None]), dim=-1).flatten(0, 1)
        dweight = dw.flatten()[:, None]
        with recompute.as_it_was(ctx, plan, held, q) as plan:
            features = plan.features(q, dS.dtype)
            outs = [None] * len(plan.cut(q)) if out is None else plan.cut(out)
            pieces = zip(outs, *(plan.cut(x) for x in (dout, *gradients)), strict=True)
            blocks = plan.blocks(q, k, v, features, backwards=True)
            for block, (o, do, *dqkv) in zip(blocks, reversed([*pieces]), strict=True):
                own, kept = kept[-KEPT:], kept[:-KEPT]
                step = _Backward(plan, features, block, own)
                step.through_division(o, do)
                dstate, dweight = step.run(dstate, dweight, dqkv)
        dS, dz = dstate[..., :-1].reshape(dS.shape), dstate[..., -1].reshape(dz.shape)
        found = recompute.in_order(ctx, plan, held, features.parameter_gradients())
        return None, *gradients, dS, dz, dweight.view_as(dw), None, *found


KEPT = 3 + len(Weights._fields)


class _Backward:
    """The gradients of one block.

    Args:
        plan: of the whole.
        features: which sum the gradients of parameters.
        block: its inputs.
        kept: S and z as one, before the block; one over the rows' denominators (M, G * C) and whether these are above
            their floor; the fields of the weights.
    """

    def __init__(self, plan: Plan, features: BlockFeatures, block: Block, kept: list[Tensor]) -> None:
        self.plan, self.features, self.block = plan, features, block
        workspace = self.workspace = features.workspace
        self.phi_q, self.pull_q = features.query_vjp(block.q, block.q_positions())
        self.phi_k, _, self.pull_k = features.key_vjp(block.k, block.positions)
        state, self.inverse, self.free = kept[:3]
        self.weights = Weights(*kept[3:])
        self.inside = self.weights.inside(workspace)
        self.added = _weighted(block, self.weights, workspace)
        self.pairs = _pairs(self.phi_q, self.phi_k, self.inside, workspace)
        self.before = _states(state, self.phi_k, self.added, self.weights, workspace)[:-1].flatten(0, 1)

    def through_division(self, out: Tensor | None, dout: Tensor) -> None:
        """From the output's gradient to those of numerator and denominator, and of the sum in the floor."""
        workspace, inverse = self.workspace, self.inverse
        self.drows, self.dread = (
            workspace(name, *self.phi_q.shape[:2], dout.shape[5] + 1) for name in ("rows", "read")
        )
        dnum, product = (x[..., :-1].view(dout.shape) for x in (self.drows, self.dread))
        if out is None:
            rows = _rows(self.phi_q, self.pairs, self.block.v, self.before, self.weights, workspace)
            out = rows[..., :-1].mul_(inverse[..., None]).view(dout.shape)
        torch.mul(dout, out, out=product)
        dden = self.dread[..., :-1].sum(-1).mul_(inverse).neg_()
        self.dtotal = None
        if self.plan.kernel.policy != "absolute":
            floor = self.plan.floor / self.features.scale
            dtotal = (dden * inverse.sign()).masked_fill_(self.free, 0.0).mul_(floor)
            self.dtotal = self.weights.rows(dtotal).sum(1)
        torch.mul(dout, inverse.view(dout.shape[:5])[..., None], out=dnum)
        torch.mul(dden, self.free, out=self.drows[..., -1])
        rows, read = self.weights.rows(self.drows), self.weights.rows(self.dread)
        torch.mul(rows, self.weights.entry[:, None, :, None], out=read)

    def run(self, dstate: Tensor, dweight: Tensor, gradients: list[Tensor]) -> tuple[Tensor, Tensor]:
        """Write the gradients of q, k and v; return those of the state before the block, and of its sum of weights."""
        block, weights, workspace = self.block, self.weights, self.workspace
        dstates = self._state_gradients(dstate)
        after = dstates[1:].flatten(0, 1)
        dpairs = workspace.multiply(self.drows, block.v.mT, workspace("pair gradients", *self.pairs.shape))
        dvalues = workspace.multiply(self.pairs.mT, self.drows, workspace("value gradients", *block.v.shape))
        through = workspace.multiply(self.phi_k, after, workspace("added gradients", *block.v.shape))
        dvalues.addcmul_(through, weights.keys[..., None])
        dg = self.pairs.mul_(dpairs).sum(-2)
        weights.rows(dpairs).mul_(self.inside[:, None])
        if self.dtotal is not None:
            dg += torch.bmm(self.dtotal[:, None], self.inside)[:, 0]
        dweights = self._weight_gradients(dweight)
        dscale = through.mul_(block.v).sum(-1).add_(torch.cat(dweights[1:]))
        dg.addcmul_(dscale, weights.keys)

        dphi_q = self._products(self.dread, self.before, dpairs, self.phi_k, "query features'")
        dphi_k = self._products(self.added, after, dpairs.mT, self.phi_q, "key features'")
        dqueries, dkeys = self.pull_q(dphi_q), self.pull_k(dphi_k, dg)
        if block.hidden is not None:
            dkeys, dvalues = (x.masked_fill(block.hidden[..., None], 0.0) for x in (dkeys, dvalues))
        dvalues = dvalues[..., :-1].mul_(self.features.scale)
        for rows, x in zip((dqueries, dkeys, dvalues), gradients, strict=True):
            x.copy_(rows.view(x.shape))
        return dstates[0], dweights[0]

    def _state_gradients(self, dstate: Tensor) -> Tensor:
        """(n + 1, N, F, D + 1): of the state before each chunk and after the last."""
        chunks = self.block.chunks
        found = self.workspace("state gradients", chunks + 1, *dstate.shape)
        *before, after = found
        after.copy_(dstate)
        reads = self.workspace.multiply(self.phi_q.mT, self.dread, self.workspace("gained", *self.before.shape))
        by_chunk = zip(reads.view(chunks, *dstate.shape), self.weights.carry[..., None], before, strict=True)
        for read, carry, preceding in reversed(list(by_chunk)):
            after = torch.addcmul(read, after, carry, out=preceding)
        return found

    def _weight_gradients(self, dweight: Tensor) -> list[Tensor]:
        """Of the sum of weights w before each chunk and after the last, (N, 1) each."""
        if self.dtotal is None:
            reads = torch.zeros_like(self.weights.carry)
        else:
            reads = (self.dtotal * self.weights.entry).sum(-1, keepdim=True).view_as(self.weights.carry)
        found = [dweight]
        for read, carry in reversed(list(zip(reads, self.weights.carry, strict=True))):
            found.append(torch.addcmul(read, found[-1], carry))
        return found[::-1]

    def _products(self, rows: Tensor, matrix: Tensor, pairs: Tensor, phi: Tensor, name: str) -> Tensor:
        """rows (M, R, D) times matrix (M, F, D)^T plus pairs (M, R, C) times phi (M, C, F), laid out as features."""
        found = times_features(rows, matrix, self.features, self.workspace, name)
        if self.features.feature_major:
            self.workspace.add_product(found.mT, phi.mT, pairs.mT)
        else:
            self.workspace.add_product(found, pairs, phi)
        return found


def _pairs(phi_q: Tensor, phi_k: Tensor, inside: Tensor, workspace: Workspace) -> Tensor:
    """(M, G * C, C): what keys of its own chunk weigh for each row."""
    pairs = workspace.multiply(phi_q, phi_k.mT, workspace("pairs", *phi_q.shape[:2], phi_k.shape[1]))
    pairs.view(len(inside), pairs.shape[1] // inside.shape[1], *inside.shape[1:]).mul_(inside[:, None])
    return pairs


def _weighted(block: Block, weights: Weights, workspace: Workspace) -> Tensor:
    """(M, C, D + 1): values times what they weigh in the state after their chunk."""
    return torch.mul(block.v, weights.keys[..., None], out=workspace("weighted values", *block.v.shape))


def _rows(
    phi_q: Tensor, pairs: Tensor, values: Tensor, before: Tensor, weights: Weights, workspace: Workspace
) -> Tensor:
    """(M, G * C, D + 1): numerators and, last, denominators."""
    rows, read = (workspace(name, *phi_q.shape[:2], values.shape[2]) for name in ("rows", "read"))
    workspace.multiply(pairs, values, rows)
    workspace.multiply(phi_q, before, read)
    weights.rows(rows).addcmul_(weights.rows(read), weights.entry[:, None, :, None])
    return rows


def _states(state: Tensor, phi_k: Tensor, added: Tensor, weights: Weights, workspace: Workspace) -> Tensor:
    """(n + 1, N, F, D + 1): S and z before each chunk and after the last."""
    gained = workspace.multiply(phi_k.mT, added, workspace("gained", phi_k.shape[0], *state.shape[1:]))
    gained = gained.view(len(weights.carry), *state.shape)
    states = workspace("states", len(gained) + 1, *state.shape)
    before, *after = states
    before.copy_(state)
    for more, carry, following in zip(gained, weights.carry[..., None], after, strict=True):
        before = torch.addcmul(more, before, carry, out=following)
    return states
