"""Whether attentions differ, seed by seed.

Runs of one seed see the same data in the same order, and are good or bad together: their differences vary less than the
runs themselves do.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from statistics import mean, stdev

import numpy as np

LEVEL = 0.05


@dataclass(frozen=True)
class Difference:
    """Of two attentions.

    Args:
        mean: Of the differences.
        seeds: How many there are of the one that has fewer.
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
    def fit(self) -> Fit:
        """What steady attentions and seeds do, by least squares."""
        names = sorted(self.scores.keys() - self.unsteady)
        return Fit({name: self.scores[name] for name in names})

    @property
    def noise(self) -> tuple[float, int] | None:
        """Standard deviation and its degrees of freedom; None where no seed repeats another."""
        return self.fit.noise

    def difference(self, first: str, second: str, share: float = 1.0, margin: float = 0.0) -> Difference | None:
        """The first's scores less a share of the second's and a margin; None where no seeds connect them."""
        if self.unsteady & {first, second}:
            wanted = {seed: share * value + margin for seed, value in self.scores[second].items()}
            return Difference.of(self.scores[first], wanted)
        found = self.contrast({first: 1.0, second: -share})
        return found and replace(found, mean=found.mean - margin)

    def contrast(self, weights: Mapping[str, float]) -> Difference | None:
        """A sum of steady attentions, by their weights; None where no seeds connect them.

        Seeds that only some of them have count as well, as far as others tell what these seeds do.
        """
        found = self.fit.contrast(weights)
        if found is None:
            return None
        total, spread = found
        fewest = min(len(self.scores[name]) for name in weights)
        if self.noise is None:
            return Difference(total, fewest)
        deviation, freedom = self.noise
        return Difference(total, fewest, deviation * spread, freedom)


class Fit:
    """Scores as sums of what their attention and what their seed does.

    Args:
        scores: By attention and seed.
    """

    def __init__(self, scores: Mapping[str, Mapping[int, float]]) -> None:
        self.names = list(scores)
        self.seeds = sorted({seed for own in scores.values() for seed in own})
        runs = [(name, seed) for name, own in scores.items() for seed in own]
        width = len(self.names) + len(self.seeds)
        self.effects = np.array([self._row({name: 1.0}, [seed]) for name, seed in runs]).reshape(len(runs), width)
        self.values = np.array([scores[name][seed] for name, seed in runs])
        self.inverse = np.linalg.pinv(self.effects)

    def _row(self, weights: Mapping[str, float], seeds: Sequence[int]) -> list[float]:
        """A sum of attentions, each with the mean of some seeds, in terms of effects."""
        share = sum(weights.values()) / len(seeds) if seeds else 0.0
        return [*(weights.get(name, 0.0) for name in self.names), *(share * (seed in seeds) for seed in self.seeds)]

    @cached_property
    def noise(self) -> tuple[float, int] | None:
        """Standard deviation of what is left, and its degrees of freedom."""
        freedom = len(self.values) - int(np.linalg.matrix_rank(self.effects)) if len(self.values) else 0
        if freedom == 0:
            return None
        left = self.values - self.effects @ (self.inverse @ self.values)
        return self._rounded(math.sqrt(float(left @ left) / freedom)), freedom

    def contrast(self, weights: Mapping[str, float]) -> tuple[float, float] | None:
        """A sum of attentions, by their weights, over the seeds they have, and its error in units of the noise.

        None where the runs do not tell it.
        """
        named = [self.names.index(name) for name in weights]
        runs = self.effects[:, named].any(axis=1)
        seeds = [seed for i, seed in enumerate(self.seeds, len(self.names)) if self.effects[runs, i].any()]
        row = np.array(self._row(weights, seeds))
        needed = row @ self.inverse  # of each run's score
        if not np.allclose(needed @ self.effects, row):
            return None
        return self._rounded(float(needed @ self.values)), math.sqrt(float(needed @ needed))

    def _rounded(self, value: float) -> float:
        """Nothing, where rounding made it: it would be told from nothing."""
        return 0.0 if abs(value) < 1e-9 * np.abs(self.values).max(initial=0.0) else value


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
