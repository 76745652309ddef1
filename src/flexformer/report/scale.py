"""From numbers to places on an axis, and the numbers worth writing beside it."""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence
from dataclasses import dataclass

MARGIN = 0.04  # of an axis that is left free beyond the outermost values


@dataclass(frozen=True)
class Scale:
    """An axis: `place` gives 0 at its beginning and 1 at its end."""

    low: float
    high: float
    log: bool = False
    ticks: tuple[float, ...] = ()

    @classmethod
    def of(
        cls, values: Iterable[float], *, log: bool = False, ticks: Sequence[float] = (), zero: bool = False
    ) -> Scale:
        """An axis that holds all values.

        Args:
            values: Finite; on a logarithmic axis those that are not positive are left out.
            log: Logarithmic.
            ticks: Numbers to write beside it; round ones by default.
            zero: Begin at zero, on a linear axis.
        """
        known = [v for v in values if math.isfinite(v) and (v > 0 or not log)]
        low, high = (min(known), max(known)) if known else (1.0, 10.0)
        if zero and not log:
            low, high = min(low, 0.0), max(high, 0.0)
        if low == high:
            low, high = (low / 2, high * 2) if log else (low - abs(low) / 2 - 0.5, high + abs(high) / 2 + 0.5)
        if log:
            room = (high / low) ** MARGIN
            low, high = low / room, high * room
        else:
            room = MARGIN * (high - low)
            low, high = (low if zero and low == 0 else low - room), high + room
        wanted = ticks or (_powers(low, high) if log else _round_numbers(low, high))
        return cls(low, high, log, tuple(t for t in wanted if low <= t <= high))

    def place(self, value: float) -> float:
        """Where a value stands between 0 and 1, beyond them if it is outside."""
        if not self.log:
            return (value - self.low) / (self.high - self.low)
        return math.log(max(value, 1e-300) / self.low) / math.log(self.high / self.low)


def number(value: float) -> str:
    """A number as one writes it beside an axis."""
    if value == 0:
        return "0"
    size = abs(value)
    if size >= 1e6 or size < 1e-3:
        mantissa, exponent = f"{value:.0e}".split("e")
        return f"{mantissa}e{int(exponent)}"
    return f"{value:,.0f}" if size >= 1000 else f"{value:.6g}"


def length(value: float) -> str:
    """A number of tokens: 4k for 4096."""
    whole = round(value)
    return f"{whole // 1024}k" if whole >= 1024 and whole % 1024 == 0 else f"{whole:,}"


def _round_numbers(low: float, high: float, about: int = 5) -> list[float]:
    raw = (high - low) / about
    power = 10.0 ** math.floor(math.log10(raw))
    step = next(m * power for m in (1, 2, 2.5, 5, 10) if m * power >= raw)
    first = math.ceil(low / step)
    return [round(i * step, 12) for i in range(first, math.floor(high / step) + 1)]


def _powers(low: float, high: float) -> list[float]:
    """Powers of ten, with steps between them where there would be too few; fewer where too many."""
    first, last = math.floor(math.log10(low)), math.ceil(math.log10(high))
    for steps in ((1,), (1, 3), (1, 2, 5), (1, 1.5, 2, 3, 5, 7)):
        found = [m * 10.0**e for e in range(first, last + 1) for m in steps if low <= m * 10.0**e <= high]
        if len(found) >= 3:
            every = -(-len(found) // 7)
            return found[::every]
    return _round_numbers(low, high)
