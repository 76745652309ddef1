"""One sequence divided over several processes: who has which part."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor

_active: Split | None = None


class Split:
    """A sequence whose parts lie on the ranks of a process group, in order.

    Parts may have different lengths, none at all too. Every rank makes the same calls in the same order, the backward
    pass included.

    Args:
        group: a process group, or a `DeviceMesh` of one dimension; by default all processes.
    """

    def __init__(self, group: Any = None) -> None:
        if not (dist.is_available() and dist.is_initialized()):
            raise RuntimeError(
                "group needs torch.distributed: call torch.distributed.init_process_group first, or start with torchrun"
            )
        if hasattr(group, "get_group"):
            if group.ndim != 1:
                raise ValueError(f"group is a device mesh of {group.ndim} dimensions; pass one of them, mesh['name']")
            group = group.get_group()
        self.group: Any = dist.group.WORLD if group is None else group
        self.rank, self.size = dist.get_rank(self.group), dist.get_world_size(self.group)
        if self.rank < 0:
            raise ValueError(f"group does not hold this process, rank {dist.get_rank()}; pass one that does")
        self.bytes_sent = 0
        """By this rank so far. For reductions, as a ring sends them: what others must know, once each way."""

    def bounds(self, length: int) -> slice:
        """Where this rank's part of `length` tokens lies when they are divided evenly, longer parts first."""
        share, more = divmod(length, self.size)
        start = self.rank * share + min(self.rank, more)
        return slice(start, start + share + (self.rank < more))

    def part(self, x: Tensor, dim: int = 1) -> Tensor:
        """This rank's part of a tensor that every rank has as a whole."""
        here = self.bounds(x.shape[dim])
        return x.narrow(dim, here.start, here.stop - here.start)

    def gather(self, x: Tensor) -> Tensor:
        """(size, ...) what each rank has, without gradients; the same shape everywhere."""
        found = [torch.empty_like(x, memory_format=torch.contiguous_format) for _ in range(self.size)]
        dist.all_gather(found, x.contiguous(), group=self.group)
        self.bytes_sent += (self.size - 1) * _bytes(x)
        return torch.stack(found)

    def before(self, counts: Tensor) -> Tensor:
        """The sum of what earlier ranks have, without gradients."""
        return self.gather(counts)[: self.rank].sum(0)

    def all_reduce(self, x: Tensor, op: Any = dist.ReduceOp.SUM) -> Tensor:
        """`x` reduced over ranks in place, without gradients."""
        if self.size > 1:
            dense = x.contiguous()  # ranks may have laid it out differently, and memory is what is exchanged
            dist.all_reduce(dense, op, group=self.group)
            x.copy_(dense)
            self.bytes_sent += 2 * _bytes(x) * (self.size - 1) // self.size
        return x

    def broadcast(self, x: Tensor) -> None:
        """Overwrite `x` with what the first rank has."""
        if self.size > 1:
            received = x.clone(memory_format=torch.contiguous_format)
            dist.broadcast(received, dist.get_global_rank(self.group, 0), group=self.group)
            if not torch.equal(received, x):  # else a backward pass to come may need `x` untouched
                x.copy_(received)
            self.bytes_sent += _bytes(x) if self.rank < self.size - 1 else 0  # from rank to rank

    def shift(self, x: Tensor, distance: int, first: int = 0) -> Tensor | None:
        """Send `x` to the rank `distance` further on; return what came from as far the other way, None if nothing did.

        Ranks before `first` take no part.
        """
        operations, found = [], None
        to, origin = self.rank + distance, self.rank - distance
        if self.rank >= first and first <= to < self.size:
            operations.append(dist.P2POp(dist.isend, x, self._global(to), self.group))
            self.bytes_sent += _bytes(x)
        if self.rank >= first and first <= origin < self.size:
            found = torch.empty_like(x)
            operations.append(dist.P2POp(dist.irecv, found, self._global(origin), self.group))
        for work in dist.batch_isend_irecv(operations) if operations else ():
            work.wait()
        return found

    def _global(self, rank: int) -> int:
        return dist.get_global_rank(self.group, rank)


def _bytes(x: Tensor) -> int:
    return x.numel() * x.element_size()


@contextmanager
def sequence_parallel(group: Any = None) -> Iterator[Split]:
    """Attention over sequences that are divided over the ranks of `group`.

    Inside, `flexformer.linear_attention` and all that uses it, `MultiheadAttention`, `flexformer.models.CausalLM` and
    converted models, take this rank's part of queries, keys, values and masks and give its part of the result, exactly
    as if the whole were in one place. In cross attention the context is divided as well. What is exchanged does not
    depend on the length. The backward pass may follow outside, except with gradient checkpointing.

    Args:
        group: see `Split`.
    """
    with _activated(Split(group)) as split:
        assert split is not None
        yield split


@contextmanager
def _activated(split: Split | None) -> Iterator[Split | None]:
    # Of the process, not of a thread: backward passes may run in threads of their own.
    global _active
    outer, _active = _active, split
    try:
        yield split
    finally:
        _active = outer


def suspended() -> Any:
    """A context in which sequences are whole again."""
    return _activated(None)


def active_split() -> Split | None:
    """How sequences are divided here; None if they are whole."""
    return _active
