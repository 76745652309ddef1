"""Learning rates over time."""

from __future__ import annotations

import math
from collections.abc import Callable

from torch.optim import Optimizer
from torch.optim.lr_scheduler import LambdaLR

from .options import ScheduleName, ScheduleOptions


def factor(name: ScheduleName, step: int, warmup: int, steps: int) -> float:
    """What the base learning rate is multiplied with at a step, counted from 1.

    Args:
        name: Which schedule; `ScheduleOptions` has the formulas.
        step: t.
        warmup: w.
        steps: T.
    """
    rising = min(1.0, step / warmup) if warmup else 1.0
    if name == "rsqrt":
        return rising / math.sqrt(max(step, warmup))
    if name == "cosine":
        return rising * 0.5 * (1.0 + math.cos(math.pi * (max(0.0, (step - warmup) / steps) % 1.0)))
    if name == "inverse-sqrt":
        return rising * min(1.0, math.sqrt(max(warmup, 1) / step))
    if name == "linear":
        return rising * min(1.0, max(0.0, (steps - step + 1) / max(steps - warmup, 1)))
    if name == "constant":
        return rising
    raise ValueError(f"schedule.name {name!r} is unknown; use one of rsqrt, cosine, inverse-sqrt, linear, constant")


def scheduler(optimizer: Optimizer, options: ScheduleOptions, steps: int) -> LambdaLR:
    """The schedule as torch applies it; its first step is t = 1, where torch counts from 0."""
    multiply: Callable[[int], float] = lambda done: factor(options.name, done + 1, options.warmup, steps)  # noqa: E731
    return LambdaLR(optimizer, multiply)
