"""Whether attentions differ, seed by seed.

Runs of one seed see the same data in the same order, and are good or bad together: their differences vary less than the
runs themselves do.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from statistics import mean, stdev

import numpy as np

LEVEL = 0.05


@dataclass(frozen=True)
class Difference:
    """Of two attentions, over the seeds that both have.

    Args:
        mean: Of the differences.
        seeds: How many there are.
        error: The mean's standard error; None where nothing tells what runs vary by.
        freedom: Degrees of freedom of the error.
    """

    mean: float
    seeds: int
    error: float | None = None
    freedom: int = 0

    @classmethod
    def of(cls, first: Mapping[int, float], second: Mapping[int, float]) -> Difference | None:
        """Of values by seed, the first's less the second's; None without a seed in common."""
        common = sorted(set(first) & set(second))
        if not common:
            return None
        found = [first[seed] - second[seed] for seed in common]
        if len(found) == 1:
            return cls(found[0], 1)
        return cls(mean(found), len(found), stdev(found) / math.sqrt(len(found)), len(found) - 1)

    @property
    def is_clear(self) -> bool:
        """Further from zero than equal attentions would be in 95 of 100 cases."""
        return self.is_clear_among(1)

    def is_clear_among(self, comparisons: int) -> bool:
        """The same where the furthest of several was picked."""
        if self.error is None:
            return False
        if self.error == 0:
            return self.mean != 0
        return chance(abs(self.mean) / self.error, self.freedom) < LEVEL / comparisons


@dataclass(frozen=True)
class Panel:
    """Scores of several attentions by seed, higher is better.

    What a run scores is taken for the sum of what its attention and its seed do, and of noise that is equally large for
    all: so an attention that was run once can be compared too, once others were run several times. Attentions that may
    or may not learn a task vary by more; they are compared by their own differences alone.

    Args:
        scores: By attention and seed.
        unsteady: Names of such attentions.
    """

    scores: Mapping[str, Mapping[int, float]]
    unsteady: frozenset[str] = frozenset()

    def __contains__(self, name: str) -> bool:
        return name in self.scores

    def has(self, *names: str) -> bool:
        """Whether all of them were run."""
        return all(name in self.scores for name in names)

    def only(self, *names: str) -> Panel:
        """Some of the attentions, where others' noise is known to be of another size."""
        return Panel({name: self.scores[name] for name in names if name in self.scores}, self.unsteady)

    def common(self, *names: str) -> list[int]:
        """Seeds that all of them have."""
        return sorted(set.intersection(*(set(self.scores[name]) for name in names)))

    @cached_property
    def noise(self) -> tuple[float, int] | None:
        """Standard deviation and its degrees of freedom; None where no seed repeats another."""
        names = sorted(self.scores.keys() - self.unsteady)
        seeds = sorted({seed for name in names for seed in self.scores[name]})
        runs = [(name, seed) for name in names for seed in sorted(self.scores[name])]
        effects = np.array([[*(name == n for n in names), *(seed == s for s in seeds)] for name, seed in runs], float)
        values = np.array([self.scores[name][seed] for name, seed in runs])
        freedom = len(runs) - int(np.linalg.matrix_rank(effects)) if runs else 0
        if freedom == 0:
            return None
        left = values - effects @ np.linalg.lstsq(effects, values, rcond=None)[0]
        return math.sqrt(float(left @ left) / freedom), freedom

    def difference(self, first: str, second: str, share: float = 1.0, margin: float = 0.0) -> Difference | None:
        """The first's scores less a share of the second's and a margin; None without a seed in common."""
        common = self.common(first, second)
        if not common:
            return None
        if self.unsteady & {first, second}:
            wanted = {seed: share * value + margin for seed, value in self.scores[second].items()}
            return Difference.of(self.scores[first], wanted)
        apart = mean(self.scores[first][seed] - share * self.scores[second][seed] for seed in common) - margin
        if self.noise is None:
            return Difference(apart, len(common))
        deviation, freedom = self.noise
        return Difference(apart, len(common), deviation * math.sqrt((1 + share**2) / len(common)), freedom)


def fitted_line(places: Sequence[float], heights: Sequence[float], seeds: int = 1) -> Difference:
    """The slope of the straight line through three points or more, and how far it is from zero."""
    x, y = np.asarray(places, float) - np.mean(places), np.asarray(heights, float) - np.mean(heights)
    slope = float(x @ y / (x @ x))
    left, freedom = y - slope * x, len(x) - 2
    return Difference(slope, seeds, math.sqrt(float(left @ left) / freedom / float(x @ x)), freedom)


def chance(t: float, freedom: int) -> float:
    """How often Student's t is as far from zero, by the sums for whole degrees of freedom."""
    angle = math.atan(t / math.sqrt(freedom))
    cosine, sine = math.cos(angle), math.sin(angle)
    odd = freedom % 2
    term, total = (cosine, 0.0) if odd else (1.0, 0.0)
    for i in range(2 + odd, freedom + 1, 2):
        total += term
        term *= cosine**2 * (i - 1) / i
    within = 2 / math.pi * (angle + sine * total) if odd else sine * total
    return max(0.0, 1.0 - within)
