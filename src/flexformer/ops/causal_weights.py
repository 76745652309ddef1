"""How much the keys of a block of chunks weigh, for its rows and for the states between its chunks."""

from __future__ import annotations

from typing import TYPE_CHECKING, NamedTuple

import torch
from torch import Tensor

from ..kernels.workspace import Workspace
from .state import log_ratio

if TYPE_CHECKING:
    from .blockwise_causal import Block


class Weights(NamedTuple):
    """Weights in units of the most that each row or state sees; shapes as in `ops.blockwise_causal`."""

    inside: Tensor
    """(M, C, C): e^{g_j - m_i} for the keys of row i's own chunk up to i, else zero."""
    entry: Tensor
    """(M, C): what the state before the chunk is multiplied by for row i."""
    keys: Tensor
    """(M, C): e^{g_j - m} in the state after the chunk."""
    carry: Tensor
    """(n, N, 1): what the state before the chunk is multiplied by in the state after it."""
    total: Tensor
    """(M, C): each row's sum over all keys it sees."""
    w: Tensor
    """(N, 1): the sum of weights in the state after the last chunk."""
    m: Tensor
    """(N, 1): the largest log-weight up to there."""

    def rows(self, x: Tensor) -> Tensor:
        """(M, G * C, ...) as (M, G, C, ...)."""
        return x.unflatten(1, (-1, self.entry.shape[1]))

    def repeated(self, x: Tensor, rows: Tensor) -> Tensor:
        """(M, C) for every query head of a group, as `rows` (M, G * C, ...) are."""
        return x.repeat(1, rows.shape[1] // x.shape[1])


def weigh(g: Tensor | None, block: Block, w: Tensor, m: Tensor, workspace: Workspace) -> Weights:
    """The weights of a block's keys, whose log-weights are `g` (M, C), after a state with `w` and `m`, (N, 1)."""
    g = block.v.new_zeros(block.v.shape[:2]) if g is None else g
    if block.hidden is not None:
        g = g.masked_fill(block.hidden, -torch.inf)
    g = g.unflatten(0, (block.chunks, -1))
    before, after = _running_maximum(g.amax(-1, keepdim=True), m, block.fresh)
    ratio = torch.sub if block.hidden is None else log_ratio  # only where keys are masked may a row see none
    carry = ratio(before, after).exp_()
    keys = ratio(g, after).exp_()
    entering = []
    for c, (added, kept) in enumerate(zip(keys.sum(-1, keepdim=True), carry, strict=True)):
        w = w if block.fresh is None else w.masked_fill(block.fresh[c], 0.0)
        entering.append(w)
        w = torch.addcmul(added, w, kept)
    rows = torch.maximum(g.cummax(-1).values, before)
    entry = ratio(before, rows).exp_()
    if block.hidden is not None:
        rows = rows.masked_fill(rows.isneginf(), 0.0)  # of no key: any number will do
    inside = workspace("weights", *g.shape, block.size)
    # Later keys may be far above a row's maximum: their weights are overwritten, not multiplied by zero.
    torch.sub(g[..., None, :], rows[..., None], out=inside).exp_().tril_()
    total = inside.sum(-1).addcmul_(torch.stack(entering), entry)
    inside, entry, keys, total = (x.flatten(0, 1) for x in (inside, entry, keys, total))
    return Weights(inside, entry, keys, carry, total, w, after[-1])


def _running_maximum(largest: Tensor, m: Tensor, fresh: Tensor | None) -> tuple[Tensor, Tensor]:
    """The largest log-weight before and after each chunk, (n, N, 1), from those of the chunks."""
    before, after = [], []
    for c, own in enumerate(largest):
        before.append(m if fresh is None else m.masked_fill(fresh[c], -torch.inf))
        m = torch.maximum(before[-1], own)
        after.append(m)
    return torch.stack(before), torch.stack(after)
