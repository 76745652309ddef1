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

    g: Tensor
    """(n, N, C): log-weights of the keys, -inf where they are masked."""
    largest: Tensor
    """(n, N, C): the largest log-weight that each row sees; any number where it sees none."""
    entry: Tensor
    """(M, C): what the state before the chunk is multiplied by for each row."""
    keys: Tensor
    """(M, C): e^{g - m} in the state after the chunk."""
    carry: Tensor
    """(n, N, 1): what the state before the chunk is multiplied by in the state after it."""

    def inside(self, workspace: Workspace) -> Tensor:
        """(M, C, C): e^{g_j - m_i} for the keys j of row i's own chunk up to i, else zero."""
        inside = workspace("weights", *self.g.shape, self.g.shape[2])
        # Later keys may be far above a row's maximum: their weights are overwritten, not multiplied by zero.
        torch.sub(self.g[..., None, :], self.largest[..., None], out=inside).exp_().tril_()
        return inside.flatten(0, 1)

    def rows(self, x: Tensor) -> Tensor:
        """(M, G * C, ...) as (M, G, C, ...)."""
        size = self.g.shape[2]
        return x.view(x.shape[0], x.shape[1] // size, size, *x.shape[2:])

    def repeated(self, x: Tensor, rows: Tensor) -> Tensor:
        """(M, C) for every query head of a group, as `rows` (M, G * C, ...) are."""
        group = rows.shape[1] // x.shape[1]
        return x if group == 1 else x.repeat(1, group)


def weigh(g: Tensor | None, block: Block, w: Tensor, m: Tensor) -> tuple[Weights, Tensor, Tensor, Tensor]:
    """The weights of a block's keys after a state.

    Args:
        g: (M, C), log-weights; None: all zero.
        block: where the keys are.
        w: (N, 1), the sum of weights in the state.
        m: (N, 1), the largest log-weight there.

    Returns:
        the weights; w before each chunk (n, N, 1); w and m after the last.
    """
    g = block.v.new_zeros(block.v.shape[:2]) if g is None else g
    if block.hidden is not None:
        g = g.masked_fill(block.hidden, -torch.inf)
    g = g.view(block.chunks, len(m), block.size)
    before, after = _running_maximum(g.amax(-1, keepdim=True), m, block.fresh)
    ratio = torch.sub if block.hidden is None else log_ratio  # only where keys are masked may a row see none
    carry = ratio(before, after).exp_()
    keys = ratio(g, after).exp_()
    entering = []
    for c, (added, kept) in enumerate(zip(keys.sum(-1, keepdim=True), carry, strict=True)):
        w = w if block.fresh is None else w.masked_fill(block.fresh[c], 0.0)
        entering.append(w)
        w = torch.addcmul(added, w, kept)
    largest = torch.maximum(g.cummax(-1).values, before)
    entry = ratio(before, largest).exp_()
    if block.hidden is not None:
        largest = largest.masked_fill(largest.isneginf(), 0.0)
    weights = Weights(g, largest, entry.flatten(0, 1), keys.flatten(0, 1), carry)
    return weights, torch.stack(entering), w, after[-1]


def _running_maximum(largest: Tensor, m: Tensor, fresh: Tensor | None) -> tuple[Tensor, Tensor]:
    """The largest log-weight before and after each chunk, (n, N, 1), from those of the chunks."""
    if fresh is None:
        running = torch.cat((m[None], largest)).cummax(0).values
        return running[:-1], running[1:]
    before, after = [], []
    for c, own in enumerate(largest):
        before.append(m.masked_fill(fresh[c], -torch.inf))
        m = torch.maximum(before[-1], own)
        after.append(m)
    return torch.stack(before), torch.stack(after)
