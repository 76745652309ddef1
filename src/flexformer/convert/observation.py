"""Looking at the attention of a converted model while it runs, and answering for it."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import NamedTuple

from torch import Tensor

from ..kernels import Kernel


class Call(NamedTuple):
    """One call of a kernel attention in a converted model."""

    layer: int
    """Which attention module, in the order they run."""
    kernel: Kernel
    query: Tensor
    """(B, H, T, D)"""
    key: Tensor
    """(B, Hkv, S, D)"""
    value: Tensor
    """(B, Hkv, S, Dv)"""
    scaling: float
    """Of the softmax that the model was trained with."""
    is_causal: bool
    key_mask: Tensor | None
    """(B, S) bool, True = attend."""


Observer = Callable[[Call], "Tensor | None"]

_observer: Observer | None = None


def report(call: Call) -> Tensor | None:
    """Tell the observer, if there is one, and return its answer."""
    return None if _observer is None else _observer(call)


@contextmanager
def observing(observer: Observer) -> Iterator[None]:
    """Call `observer` at every kernel attention of every converted model inside the block.

    A tensor (B, H, T, Dv) that it returns is what the attention gives; otherwise the kernel is asked.
    """
    global _observer
    before, _observer = _observer, observer
    try:
        yield
    finally:
        _observer = before
