"""Whether two attentions differ, seed by seed.

Runs of one seed see the same data in the same order, and are good or bad together: their differences vary less than the
runs themselves do.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass
from statistics import mean, stdev

# 97.5 per cent points of Student's distribution by degrees of freedom.
STUDENT = {1: 12.71, 2: 4.30, 3: 3.18, 4: 2.78, 5: 2.57, 6: 2.45, 7: 2.36, 8: 2.31, 9: 2.26}


@dataclass(frozen=True)
class Difference:
    """Of two attentions, over the seeds that both have.

    Args:
        mean: Of the differences.
        seeds: How many there are.
        is_clear: Further from zero than equal attentions would be in 95 of 100 cases; False for one seed.
    """

    mean: float
    seeds: int
    is_clear: bool

    @classmethod
    def of(cls, first: Mapping[int, float], second: Mapping[int, float]) -> Difference | None:
        """Of values by seed, the first's less the second's; None without a seed in common."""
        common = sorted(set(first) & set(second))
        if not common:
            return None
        found = [first[seed] - second[seed] for seed in common]
        if len(found) == 1:
            return cls(found[0], 1, False)
        point = STUDENT.get(len(found) - 1, STUDENT[max(STUDENT)])  # of many seeds the nearest that is too strict
        limit = point * stdev(found) / math.sqrt(len(found))
        return cls(mean(found), len(found), abs(mean(found)) > limit)
