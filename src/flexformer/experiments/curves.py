"""How fast kernels learn softmax: divergence over steps of the kernel study's runs, and when it is stable.

A run is *stable from step s* if s is the first evaluation from which on the divergence stays as near to where it ends
as 5 % of its whole way: |KL(t) - KL(end)| <= 0.05 |KL(0) - KL(end)| for all t >= s. KL(0) is that of the kernels as
they begin.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, ClassVar

from .kernels import KernelStudy, best_cells
from .paper import printed, source
from .results import Result
from .tables import Column, Row, Table, Value

TOLERANCE = 0.05
PLAIN_MAPS = ("hedgehog", "flexformer-s", "flexformer-n", "flexformer-c, all real")
PAPERS = {"hedgehog": "hedgehog", "flexformer-n": "flexformer-n"}
"""label of a map -> the paper's"""


class DistillationCurves(KernelStudy):
    """The kernel study's runs of the maps as `convert` builds them; arguments as there."""

    name: ClassVar[str] = "distill-curves"
    source: ClassVar[str] = "kernels"

    def rows(self) -> tuple[str, ...]:
        return PLAIN_MAPS

    def tables(self, found: Sequence[Result]) -> list[Table]:
        paper = printed(self.name)
        columns = (
            Column("stable from step", self.preset, 0, "lower"),
            Column("% of all steps", self.preset, 0, None),
            Column("KL at the start", self.preset, 3, None),
            Column("KL at the end", self.preset, 4, "lower"),
            Column("stable from step", "paper", 0, "lower", False),
            Column("% of all steps", "paper", 0, None, False),
        )
        best = best_cells(found)
        rows = []
        for label in self.rows():
            own = [curve(result) for result in best.get(label, ())]
            steps = [float(stable_from(points)) for points in own]
            printed_step = paper["stable"].get(PAPERS.get(label, ""))
            values = (
                Value.of(steps),
                Value.of([100 * step / points[-1][0] for step, points in zip(steps, own, strict=True)]),
                Value.of([points[0][1] for points in own]),
                Value.of([points[-1][1] for points in own]),
                Value.printed(printed_step),
                None if printed_step is None else Value(100 * printed_step / paper["steps"]),
            )
            rows.append(Row(label, values))
        notes = (
            f"{self.subject}, the learning rate that was best for each map. Stable from "
            "the first evaluation from which on the divergence stays as near to its end as 5 % of its whole way.",
            source(self.name),
        )
        title = f"Distillation: steps until the divergence is stable, {self.preset} scale"
        return [Table(self.stem, title, "map", columns, tuple(rows), notes)]

    def plot(self, tables: Sequence[Table], found: Sequence[Result]) -> dict[str, bytes]:
        best = best_cells(found)
        if not best:
            return {}
        from flexformer.viz.curves import plot_curves

        lines: dict[str, dict[str, Any]] = {}
        for label in (label for label in self.rows() if label in best):
            curves = [curve(result) for result in best[label]]
            lines[label] = {"curves": curves, "stable": [stable_from(points) for points in curves]}
        return plot_curves(lines, f"{self.subject}, {self.preset} scale")


def curve(result: Result) -> list[tuple[int, float]]:
    """Steps and divergence, the start included."""
    start = (0, result.metrics["before_kl"])
    return [start, *((int(step), value) for step, value in result.curve)]


def stable_from(points: Sequence[tuple[int, float]], tolerance: float = TOLERANCE) -> int:
    """The first step from which on a curve stays near its end.

    Args:
        points: Steps and values; the first is the start, the last the end.
        tolerance: How near, as a share of the whole way from the first value to the last.
    """
    end = points[-1][1]
    near = tolerance * abs(points[0][1] - end)
    stable = points[-1][0]
    for step, value in reversed(points):
        if abs(value - end) > near:
            break
        stable = step
    return stable
