"""Causal attention block by block, with a backward pass of its own."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any, NamedTuple

import torch
from torch import Tensor

from ..kernels import Kernel
from ..kernels.weights import full_precision
from . import traced
from .causal import causal_block
from .chunks import Chunks, cut, hide, join_keys, join_queries
from .recompute import block_length, differentiable_gradients
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
    plan = Plan(kernel, floor, key_mask, positions, size, block_length(kernel, q, size), segments)
    out, S, z, w, m = Causal.apply(plan, q, k, v, *state[:4], *kernel.trained_parameters())
    return out, State(S, z, w, m, state.length + k.shape[2])


class Plan(NamedTuple):
    """What does not need a gradient."""

    kernel: Kernel
    floor: float
    key_mask: Tensor | None
    positions: Tensor | None
    size: int
    block: int
    segments: Tensor | None

    def cut(self, q: Tensor, k: Tensor, v: Tensor, here: slice, size: int, dtype: torch.dtype) -> Chunks:
        mask = None if self.key_mask is None else self.key_mask[:, here]
        where = None if self.positions is None else self.positions[here]
        return cut(q[:, :, here], k[:, :, here], v[:, :, here], self.kernel, mask, where, size, dtype)

    def segments_of(self, here: slice) -> tuple[Tensor | None, Tensor | None]:
        """Those of the chunks in a block, and that of the state before it."""
        if self.segments is None:
            return None, None
        first = here.start // self.size
        return self.segments[first : here.stop // self.size], self.segments[first - 1] if first else None


def pieces(rows: int, size: int, block: int) -> Iterator[tuple[slice, int]]:
    """Blocks of whole chunks, and what is left over as a chunk of its own: (where, chunk size)."""
    whole = rows - rows % size
    for start in range(0, whole, block):
        yield slice(start, min(start + block, whole)), size
    if whole < rows:
        yield slice(whole, rows), rows - whole


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
        kernel, split, group = plan.kernel, (q.shape[0], -1), q.shape[1] // plan.kernel.num_heads
        ctx.plan, ctx.buffers = plan, dict(kernel.named_buffers())
        features = kernel.blocks(S.dtype)
        keep = any(ctx.needs_input_grad)
        out = torch.empty(*q.shape[:3], v.shape[3], dtype=v.dtype, device=v.device)
        state, before = State(S, z, w, m), []
        for here, size in pieces(q.shape[2], plan.size, plan.block):
            if keep:
                before.append(state)
            chunks = plan.cut(q, k, v, here, size, S.dtype)
            phi_q = features.query(chunks.q, chunks.q_positions).unflatten(0, split)
            phi_k, g = features.key(chunks.k, chunks.k_positions)
            phi_k, g = phi_k.unflatten(0, split), None if g is None else g.unflatten(0, split)
            g = hide(g, chunks.hidden, phi_k)
            block, state = causal_block(
                phi_q, phi_k, g, chunks.v, state, kernel.policy, plan.floor, *plan.segments_of(here)
            )
            out[:, :, here] = join_queries(block, group)
        ctx.count = len(before)
        ctx.save_for_backward(q, k, v, *(x for state in before for x in state[:4]), *parameters)
        ctx.mark_non_differentiable(state.m)
        return out, state.S, state.z, state.w, state.m

    @staticmethod
    def backward(ctx: Any, dout: Tensor, dS: Tensor, dz: Tensor, dw: Tensor, _: Tensor) -> tuple[Any, ...]:
        plan: Plan = ctx.plan
        kernel = plan.kernel
        q, k, v, *rest = ctx.saved_tensors
        if torch.is_grad_enabled():

            def again(q: Tensor, k: Tensor, v: Tensor, state: State) -> tuple[Tensor, State]:
                return traced.causal(
                    q, k, v, kernel, plan.key_mask, state, plan.floor, plan.positions, plan.size, plan.segments
                )

            return differentiable_gradients(ctx, again, (q, k, v, *rest[:4]), rest[4 * ctx.count :], (dout, dS, dz, dw))
        group, split = q.shape[1] // kernel.num_heads, (q.shape[0], -1)
        dq, dk, dv = torch.empty_like(q), torch.empty_like(k), torch.empty_like(v)
        steps = list(enumerate(pieces(q.shape[2], plan.size, plan.block)))
        with kernel.holding(ctx.buffers), full_precision(q):
            features = kernel.blocks(dS.dtype)
            for i, (here, size) in reversed(steps):
                chunks = plan.cut(q, k, v, here, size, dS.dtype)
                phi_q, pull_q = features.query_vjp(chunks.q, chunks.q_positions)
                phi_k, g, pull_k = features.key_vjp(chunks.k, chunks.k_positions)
                leaves = [phi_q, phi_k, chunks.v, *rest[4 * i : 4 * i + 3]]
                leaves += [] if g is None else [g]
                leaves = [x.detach().requires_grad_() for x in leaves]
                with torch.enable_grad():
                    phi_q, phi_k, values, S, z, w = leaves[:6]
                    phi_q, phi_k = phi_q.unflatten(0, split), phi_k.unflatten(0, split)
                    g = None if g is None else leaves[6].unflatten(0, split)
                    g = hide(g, chunks.hidden, phi_k)
                    state = State(S, z, w, rest[4 * i + 3])
                    segments = plan.segments_of(here)
                    out, after = causal_block(phi_q, phi_k, g, values, state, kernel.policy, plan.floor, *segments)
                    out = join_queries(out, group)
                outputs, gradients = [out, *after[:3]], [dout[:, :, here].to(out.dtype), dS, dz, dw]
                needed = [(x, d) for x, d in zip(outputs, gradients, strict=True) if x.requires_grad]
                found = torch.autograd.grad([x for x, _ in needed], leaves, [d for _, d in needed], allow_unused=True)
                dphi_q, dphi_k, dvalues, dS, dz, dw, *dg = (
                    torch.zeros_like(x) if d is None else d for x, d in zip(leaves, found, strict=True)
                )
                dqb = pull_q(dphi_q)
                dkb = pull_k(dphi_k, dg[0] if dg else None).unflatten(0, split)
                if chunks.hidden is not None:
                    dkb = dkb.masked_fill(chunks.hidden[..., None], 0.0)
                    dvalues = dvalues.masked_fill(chunks.hidden[..., None], 0.0)
                dq[:, :, here] = join_queries(dqb.unflatten(0, split), group)
                dk[:, :, here] = join_keys(dkb)
                dv[:, :, here] = join_keys(dvalues)
        return None, dq, dk, dv, dS, dz, dw, None, *features.parameter_gradients()
