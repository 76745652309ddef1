"""States of the parts of a sequence combined across ranks, with gradients.

Every rank has the state of its own keys. Bidirectional attention needs the sum of all (`total`), causal attention that
of the ranks before (`prefix`). Either way a rank sends a few states, whatever the length of the sequence: about two for
the sum, and for the prefix one more each time the number of ranks doubles.
"""

from __future__ import annotations

from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor
from torch.autograd.function import once_differentiable

from .split import Split
from .state import State, log_ratio, merge


def total(state: State, split: Split, length: Tensor) -> State:
    """The state of the keys of all ranks, on each of them."""
    S, z, w, m = _Total.apply(split, *state[:4])
    return State(S, z, w, m, length)


def prefix(state: State, split: Split, length: Tensor | int) -> State:
    """The state of the keys of all ranks before this one."""
    S, z, w, m = _Prefix.apply(split, *state[:4])
    return State(S, z, w, m, length)


class _Total(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, split: Split, S: Tensor, z: Tensor, w: Tensor, m: Tensor) -> tuple[Tensor, ...]:
        largest = split.all_reduce(m.clone(), dist.ReduceOp.MAX)
        scale = log_ratio(m, largest).exp()
        message = _pack(S, z, w) * scale[..., None]
        ctx.split = split
        ctx.save_for_backward(scale)
        ctx.mark_non_differentiable(largest)
        return *_unpack(split.all_reduce(message), S.shape[3]), largest

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, dS: Tensor, dz: Tensor, dw: Tensor, _: Tensor) -> tuple[Any, ...]:
        (scale,) = ctx.saved_tensors
        message = ctx.split.all_reduce(_pack(dS, dz, dw)) * scale[..., None]
        return None, *_unpack(message, dS.shape[3]), None


class _Prefix(torch.autograd.Function):
    """A scan by doubling: after the step of length d a rank knows the 2d ranks before it."""

    @staticmethod
    def forward(ctx: Any, split: Split, S: Tensor, z: Tensor, w: Tensor, m: Tensor) -> tuple[Tensor, ...]:
        width = S.shape[3]
        own = _pack(S, z, w, m)
        received = split.shift(own, 1)
        known = _nothing(own) if received is None else received
        for distance in _doubling(split.size - 1):
            received = split.shift(known, distance, first=1)
            if received is not None:
                known = _pack(*merge(_state(received, width), _state(known, width))[:4])
        *sums, largest = _unpack(known, width, with_maximum=True)
        ctx.split = split
        ctx.save_for_backward(m, largest)
        ctx.mark_non_differentiable(largest)
        return *sums, largest

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, dS: Tensor, dz: Tensor, dw: Tensor, _: Tensor) -> tuple[Any, ...]:
        split: Split = ctx.split
        m, largest = ctx.saved_tensors
        # The same scan the other way. A gradient is in units of e^-m of its own prefix, which can only grow from rank
        # to rank: what comes back is always scaled down.
        known = _pack(dS, dz, dw, largest)
        for distance in _doubling(split.size - 1):
            received = split.shift(known, -distance, first=1)
            if received is not None:
                known[..., :-1] += received[..., :-1] * log_ratio(largest, received[..., -1]).exp()[..., None]
        received = split.shift(known, -1)
        if received is None:  # nobody comes after the last rank
            found = torch.zeros_like(known[..., :-1])
        else:
            found = received[..., :-1] * log_ratio(m, received[..., -1]).exp()[..., None]
        return None, *_unpack(found, dS.shape[3]), None


def _doubling(count: int) -> list[int]:
    """1, 2, 4 ... below `count`."""
    return [1 << i for i in range(max(count - 1, 0).bit_length())]


def _pack(*fields: Tensor) -> Tensor:
    """S (B, H, F, D), z (B, H, F), w and perhaps m (B, H) as one message (B, H, F * D + F + 1 or 2)."""
    S, z, *scalars = fields
    return torch.cat((S.flatten(2), z, *(x[..., None] for x in scalars)), dim=-1)


def _unpack(message: Tensor, width: int, with_maximum: bool = False) -> tuple[Tensor, ...]:
    """The reverse of `_pack`, for values of `width`. Copies, so that nothing keeps the message alive."""
    features = (message.shape[-1] - 1 - with_maximum) // (width + 1)
    S, z, *scalars = message.split([features * width, features, *[1] * (1 + with_maximum)], dim=-1)
    return S.unflatten(-1, (features, width)).contiguous(), z.contiguous(), *(x[..., 0].contiguous() for x in scalars)


def _state(message: Tensor, width: int) -> State:
    S, z, w, m = _unpack(message, width, with_maximum=True)
    return State(S, z, w, m)


def _nothing(message: Tensor) -> Tensor:
    """The state of no key at all."""
    empty = torch.zeros_like(message)
    empty[..., -1] = -torch.inf
    return empty
