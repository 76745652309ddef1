"""How fast kernels learn softmax: divergence over steps, and when it is stable.

A run is *stable from step s* if s is the first evaluation from which on the divergence stays as near to where it ends
as 5 % of its whole way: |KL(t) - KL(end)| <= 0.05 |KL(0) - KL(end)| for all t >= s. KL(0) is that of the kernels as
they begin.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from statistics import mean
from typing import Any, ClassVar

from flexformer.training import RunFolder
from flexformer.training.callbacks import read_log

from .cells import Cell, TrainedCell
from .maps import PRESETS, MapExperiment
from .paper import printed, source
from .presets.pretrained import load_distill
from .results import Result
from .tables import Column, Row, Table, Value

TOLERANCE = 0.05
EVALUATIONS = 40
"""of a run: the step from which on it is stable is found this finely"""
PLAIN_MAPS = ("hedgehog", "hedgehog, two maps", "flexformer-s", "flexformer-n", "flexformer-c, all real")
PAPERS = {"hedgehog": "hedgehog", "flexformer-n": "flexformer-n"}
"""label of a map -> the paper's"""


class DistillationCurves(MapExperiment):
    """The maps as `convert` builds them, and Hedgehog as it was published, at the rate of the distillation's preset and
    evaluated often."""

    name: ClassVar[str] = "distill-curves"

    def rows(self) -> tuple[str, ...]:
        return PLAIN_MAPS

    def cells(self, attentions: Sequence[str], seeds: Sequence[int]) -> list[Cell]:
        return [self._curve(label, seed) for seed in seeds for label in attentions]

    def _curve(self, label: str, seed: int) -> Cell:
        steps = load_distill(PRESETS[self.preset], self.subject.base, self.subject.text).training.steps
        return self.cell(label, "", seed, training={"evaluate_every": max(1, steps // EVALUATIONS)})

    def details(self, cell: Cell, output: Path) -> Mapping[str, Any]:
        """Also every layer's divergence at every evaluation."""
        assert isinstance(cell, TrainedCell)
        entries = read_log(RunFolder(cell.stage.folder(output)).log_file)
        kept = super().details(cell, output)
        names = [f"eval_kl_of_layer_{i}" for i in range(len(kept["kl_by_layer"]))]
        curves = [[e["step"], [e[name] for name in names]] for e in entries if names[0] in e]
        return {**kept, "curve_by_layer": curves}

    def tables(self, found: Sequence[Result]) -> list[Table]:
        paper = printed(self.name)
        columns = (
            Column("lr", self.preset, 3, None),
            Column("stable from step", self.preset, 0, "lower"),
            Column("% of all steps", self.preset, 0, None),
            Column("KL at the start", self.preset, 3, None),
            Column("KL at the end", self.preset, 4, "lower"),
            Column("stable from step", "paper", 0, "lower", False),
            Column("% of all steps", "paper", 0, None, False),
        )
        rows = []
        for label in self.rows():
            runs = _of(found, label)
            own = [curve(result) for result in runs]
            steps = [float(stable_from(points)) for points in own]
            printed_step = paper["stable"].get(PAPERS.get(label, ""))
            values = (
                Value(runs[0].labels["lr"]) if runs else None,
                Value.of(steps),
                Value.of([100 * step / points[-1][0] for step, points in zip(steps, own, strict=True)]),
                Value.of([points[0][1] for points in own]),
                Value.of([points[-1][1] for points in own]),
                Value.printed(printed_step),
                None if printed_step is None else Value(100 * printed_step / paper["steps"]),
            )
            rows.append(Row(label, values))
        notes = (
            f"{self.subject}, {EVALUATIONS} evaluations a run, each map at the rate `flexformer distill` has for it. "
            "Stable is a run from the first of them after which the divergence stays within 5 % of its whole way down "
            "from where it ends.",
            source(self.name),
        )
        title = f"Distillation: steps until the divergence is stable, {self.preset} scale"
        return [Table(self.stem, title, "map", columns, tuple(rows), notes)]

    def plot(self, tables: Sequence[Table], found: Sequence[Result]) -> dict[str, bytes]:
        if not found:
            return {}
        from flexformer.viz.curves import plot_curves

        lines: dict[str, dict[str, Any]] = {}
        for label in dict.fromkeys(result.labels["map"] for result in found):
            runs = _of(found, label)
            curves = [curve(result) for result in runs]
            stable = [stable_from(points) for points in curves]
            lines[label] = {"curves": curves, "stable": stable, "layers": _by_layer(runs)}
        return plot_curves(lines, f"{self.subject}, {self.preset} scale")


def _of(found: Sequence[Result], label: str) -> list[Result]:
    return [result for result in found if result.labels["map"] == label]


def _by_layer(runs: Sequence[Result]) -> list[list[tuple[int, float]]]:
    """A curve for each layer, means over seeds."""
    kept = [result.details["curve_by_layer"] for result in runs]
    layers = range(len(kept[0][0][1]))
    return [[(same[0][0], mean(values[i] for _, values in same)) for same in zip(*kept, strict=True)] for i in layers]


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
