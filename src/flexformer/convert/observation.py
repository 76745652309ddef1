"""Looking at the attention of a converted model while it runs, and answering for it."""

from __future__ import annotations

import threading
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

_observers: dict[int, Observer] = {}
"""By thread: other threads may use other models meanwhile."""


def report(call: Call) -> Tensor | None:
    """Tell the observer, if there is one, and return its answer."""
    if not _observers:
        return None
    observer = _observers.get(threading.get_ident())
    return None if observer is None else observer(call)


@contextmanager
def observing(observer: Observer) -> Iterator[None]:
    """Call `observer` at every kernel attention of every converted model that this thread runs inside the block.

    A tensor (B, H, T, Dv) that it returns is what the attention gives; otherwise the kernel is asked.
    """
    thread = threading.get_ident()
    before = _observers.get(thread)
    _observers[thread] = observer
    try:
        yield
    finally:
        if before is None:
            del _observers[thread]
        else:
            _observers[thread] = before
