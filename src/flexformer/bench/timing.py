"""How long calls take, measured so that they can be compared.

A machine's speed drifts: other processes come and go, the clock rate changes. Calls that are to be compared are
therefore timed in turn, round after round, so that what disturbs one disturbs its neighbours too.
"""

from __future__ import annotations

import gc
import math
import statistics
import time
from collections.abc import Callable, Hashable, Iterator, Mapping
from contextlib import contextmanager
from typing import NamedTuple, TypeVar

import torch

Key = TypeVar("Key", bound=Hashable)

SHORTEST_SAMPLE = 0.01  # seconds; quicker calls are repeated within a sample until they add up to this
FEWEST_SAMPLES = 3
YARDSTICK = "yardstick"  # a call that is always the same: what changes about it is the machine
YARDSTICK_WIDTH = 512


class Timing(NamedTuple):
    """Seconds of one call over all samples."""

    median: float
    lower: float
    """first quartile"""
    upper: float
    """third quartile"""
    samples: int

    @classmethod
    def of(cls, samples: list[float]) -> Timing:
        if len(samples) == 1:
            return cls(samples[0], samples[0], samples[0], 1)
        lower, median, upper = statistics.quantiles(samples, n=4, method="inclusive")
        return cls(median, lower, upper, len(samples))


class Failure(NamedTuple):
    """Why there is no figure."""

    reason: str


def alternate(
    calls: Mapping[Key, Callable[[], object]],
    *,
    rounds: int,
    seconds: float,
    on_sample: Callable[[int, int], None] = lambda done, total: None,
) -> dict[Key, Timing | Failure]:
    """Time calls in turn.

    Args:
        calls: what to time. Each is called once beforehand, to warm up and to see how long it takes.
        rounds: how often to go through them, beginning one further each time.
        seconds: a call that has had this much time leaves the later rounds, though not before it has three samples.
        on_sample: told how many samples are done, and of how many.

    Returns:
        For every key its timing, or why there is none.
    """
    repeats: dict[Key, int] = {}
    samples: dict[Key, list[float]] = {key: [] for key in calls}
    failures: dict[Key, Failure] = {}
    order = list(calls)
    total = len(order) * (rounds + 1)
    for done, key in enumerate(order):
        on_sample(done, total)
        try:
            first = _sample(calls[key], 1)
            repeats[key] = max(1, math.ceil(SHORTEST_SAMPLE / max(first, 1e-9)))
        except Exception as error:
            failures[key] = failure_of(error)
    for number in range(rounds):
        start = number % len(order) if order else 0
        for place, key in enumerate(order[start:] + order[:start]):
            on_sample(len(order) * (number + 1) + place, total)
            taken = sum(samples[key]) * repeats.get(key, 1)
            enough = taken > seconds and len(samples[key]) >= FEWEST_SAMPLES
            if key in failures or enough:
                continue
            try:
                samples[key].append(_sample(calls[key], repeats[key]))
            except Exception as error:
                failures[key] = failure_of(error)
    return {key: failures.get(key) or Timing.of(samples[key]) for key in order}


def failure_of(error: BaseException) -> Failure:
    """An error in one line."""
    text = " ".join(str(error).split()) or type(error).__name__
    return Failure(f"failed: {text[:200]}")


def yardstick() -> Callable[[], object]:
    """A product of two square matrices, some milliseconds of work."""
    square = torch.ones(YARDSTICK_WIDTH, YARDSTICK_WIDTH)
    return lambda: square @ square


@contextmanager
def fixed_threads(count: int) -> Iterator[None]:
    """Torch on `count` threads."""
    before = torch.get_num_threads()
    torch.set_num_threads(count)
    try:
        yield
    finally:
        torch.set_num_threads(before)


def _sample(call: Callable[[], object], repeats: int) -> float:
    collecting = gc.isenabled()
    gc.disable()  # a collection would be charged to whoever happens to be timed
    try:
        started = time.perf_counter()
        for _ in range(repeats):
            call()
        return (time.perf_counter() - started) / repeats
    finally:
        if collecting:
            gc.enable()
