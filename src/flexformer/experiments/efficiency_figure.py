"""Figure 2 as an experiment: its cells, tables and picture."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any, ClassVar

from flexformer.attention import ATTENTIONS
from flexformer.bench.model import BASES, DROPPED
from flexformer.bench.operations import OURS, SDPA, UNFUSED

from .arena_table import RETRIEVAL, SUBSTITUTE, TITLES, ArenaTable, has_learned
from .cells import Cell, MeasuredCell
from .experiment import Experiment, ordered
from .results import Result
from .tables import Column, Row, Table, Value

LENGTH_ROWS = (UNFUSED, SDPA, "linear", OURS)
TOWER = {"layers": 4, "width": 128, "feed_forward": 512, "heads": 2, "pairs": 1}
TINY = {"layers": 1, "width": 32, "feed_forward": 32, "heads": 2, "pairs": 1}
LENGTHS = {
    "paper": (256, 512, 1024, 2048, 4096, 8192, 16384),
    "cpu": (256, 512, 1024, 2048, 4096, 8192),
    "smoke": (64, 128),
}
STEP_LENGTH = {"paper": 4000, "cpu": 4000, "smoke": 128}
ROUNDS = {"paper": 10, "cpu": 5, "smoke": 2}
HERE = "flexformer.experiments.efficiency"


class EfficiencyFigure(Experiment):
    """Time and memory.

    Args:
        preset: paper and cpu differ in lengths and repetitions; smoke is tiny.
        root: Not used: nothing is read.
        threads: Of torch.
        lengths: Of (a), instead of the preset's.
    """

    name: ClassVar[str] = "fig2"

    def __init__(
        self, preset: str, root: str | None = None, threads: int = 1, lengths: Sequence[int] | None = None
    ) -> None:
        super().__init__(preset, root)
        self.threads = threads
        if lengths is not None and (not lengths or min(lengths) < 1):
            raise ValueError(f"lengths {list(lengths)} must be one or more numbers of tokens, each at least 1")
        if threads < 1:
            raise ValueError(f"threads {threads} is not a positive number; use 1 or more")
        self.lengths = sorted(set(lengths or LENGTHS[preset]))
        self.accuracy: dict[str, Value] = {}
        self.accuracy_task, self.is_learned = RETRIEVAL, False

    def rows(self) -> tuple[str, ...]:
        return ordered(ATTENTIONS)

    def cells(self, attentions: Sequence[str], seeds: Sequence[int]) -> list[Cell]:
        kept = [row for row in LENGTH_ROWS if row in (UNFUSED, SDPA) or row in attentions]
        return [*(self._at(length, kept) for length in self.lengths), self._steps(attentions)]

    def planned(self, found: Sequence[Result]) -> list[Cell]:
        return [
            self._at(r.labels["length"], r.labels["rows"])
            if r.labels["part"] == "a"
            else self._steps(r.labels["attentions"])
            for r in found
        ]

    def _shared(self) -> dict[str, Any]:
        sizes = TINY if self.preset == "smoke" else TOWER
        return {**sizes, "threads": self.threads, "rounds": ROUNDS[self.preset]}

    def _command(self) -> tuple[str, ...]:
        return ("flexformer", "reproduce", self.name, "--preset", self.preset, "--threads", str(self.threads))

    def _at(self, length: int, rows: Sequence[str]) -> Cell:
        options = {"length": length, "rows": list(rows), **self._shared()}
        name = f"forward-{length}-{self.preset}-{self.threads}-threads"
        labels = {"part": "a", "length": length, "rows": list(rows)}
        command = (*self._command(), "--lengths", str(length))
        return MeasuredCell(self.name, name, labels, self.preset, f"{HERE}:measure_forward", options, command)

    def _steps(self, attentions: Sequence[str]) -> Cell:
        rows = [*reversed(BASES), *(name for name in self.rows() if name in attentions and name != SDPA)]
        length = STEP_LENGTH[self.preset]
        options = {"length": length, "rows": rows, **self._shared()}
        name = f"step-{length}-{self.preset}-{self.threads}-threads"
        labels = {"part": "b", "length": length, "attentions": list(attentions)}
        command = (*self._command(), "--attention", *attentions)
        return MeasuredCell(self.name, name, labels, self.preset, f"{HERE}:measure_steps", options, command)

    def results(self, folder: Path) -> tuple[list[Result], list[Result]]:
        self._join(folder)
        return super().results(folder)

    def _join(self, folder: Path) -> None:
        """Accuracy on Retrieval, or on what stands in for it, from table 1's cells at this scale."""
        found, _ = ArenaTable(self.preset, self.root).results(folder)
        tasks = {result.labels["task"] for result in found}
        self.accuracy_task = RETRIEVAL if RETRIEVAL in tasks else SUBSTITUTE
        own = [result for result in found if result.labels["task"] == self.accuracy_task]
        self.is_learned = any(map(has_learned, own))
        self.accuracy = {}
        for name in dict.fromkeys(result.labels["attention"] for result in own):
            values = [100 * r.metrics["test_accuracy"] for r in own if r.labels["attention"] == name]
            if (value := Value.of(values)) is not None:
                self.accuracy[name] = value

    def tables(self, found: Sequence[Result]) -> list[Table]:
        has_steps = not found or any(result.labels["part"] == "b" for result in found)
        return [self._over_lengths(found), *([self._of_attentions(found)] if has_steps else [])]

    def _over_lengths(self, found: Sequence[Result]) -> Table:
        measured = {
            (m["row"], m["length"]): m for r in found if r.labels["part"] == "a" for m in r.details["measurements"]
        }
        rows = [row for row in LENGTH_ROWS if any(row == known for known, _ in measured)] or list(LENGTH_ROWS)
        # Rows are lengths: there is no best one.
        columns = [Column(row, "ms", 1, None) for row in rows] + [Column(row, "peak MiB", 1, None) for row in rows]
        lines = []
        for length in sorted({length for _, length in measured}):
            here = [measured.get((row, length)) for row in rows]
            lines.append(Row(f"{length:,}", (*map(_milliseconds, here), *map(_mebibytes, here))))
        note = (
            "Forward pass of the Retrieval model, two documents of N tokens, measured in turn on "
            f"{_threads(self.threads)}. softmax-unfused forms all weights, softmax is torch's fused attention. Each "
            "length was measured by itself: times are to be compared at one length; flexformer bench scaling measures "
            "growth."
        )
        title = f"Figure 2 (a): one forward pass over N tokens, {self.preset} scale"
        return Table(f"{self.stem}-a", title, "N", tuple(columns), tuple(lines), (note,))

    def _of_attentions(self, found: Sequence[Result]) -> Table:
        measured = {m["row"]: m for r in found if r.labels["part"] == "b" for m in r.details["measurements"]}
        columns = (
            Column("steps / s", "training step", 2, "higher"),
            Column("peak MiB", "training step", 0, "lower"),
            Column("times softmax-unfused", "training step", 2, "higher"),
            # Where nobody has learned the task there is no best.
            Column(
                f"{TITLES[self.accuracy_task]}, %", f"table 1, {self.preset}", 2, "higher" if self.is_learned else None
            ),
        )
        rows = []
        base = _seconds(measured.get(UNFUSED))
        for name in (*reversed(BASES), *(each for each in self.rows() if each != SDPA)):
            this, seconds = measured.get(name), _seconds(measured.get(name))
            accuracy = self.accuracy.get(name)
            speed = None if seconds is None else Value(1 / seconds)
            ratio = None if seconds is None or base is None else Value(base / seconds)
            rows.append(Row(name, (speed, _mebibytes(this), ratio, accuracy)))
        length = STEP_LENGTH[self.preset]
        smaller = ", of a smaller model on shorter documents" if self.preset == "cpu" else ""
        unlearned = "; no run has learned the task" if self.accuracy and not self.is_learned else ""
        note = (
            f"Training step of the Retrieval model, one pair of documents of {length:,} tokens, all measured in turn "
            f"on {_threads(self.threads)}. {DROPPED} drops a tenth of its weights, as the original does. "
            f"Accuracy is that of table 1{smaller}, where it was run{unlearned}."
        )
        title = f"Figure 2 (b): every attention at N = {length:,}, {self.preset} scale"
        return Table(f"{self.stem}-b", title, "attention", columns, tuple(rows), (note,))

    def plot(self, tables: Sequence[Table], found: Sequence[Result]) -> dict[str, bytes]:
        if not found:
            return {}
        from flexformer.viz.efficiency import plot_efficiency

        first, second = (
            [m for r in found if r.labels["part"] == part for m in r.details["measurements"]] for part in "ab"
        )
        # Where nobody has learned the task, accuracies would be a picture of noise.
        accuracy = {name: value.mean for name, value in self.accuracy.items() if self.is_learned}
        return plot_efficiency(first, second, accuracy, TITLES[self.accuracy_task], f"{self.preset} scale")


def _threads(count: int) -> str:
    return "one thread" if count == 1 else f"{count} threads"


def _seconds(measured: dict[str, Any] | None) -> float | None:
    return None if measured is None or not measured["seconds"] else measured["seconds"]["median"]


def _milliseconds(measured: dict[str, Any] | None) -> Value | None:
    seconds = _seconds(measured)
    return None if seconds is None else Value(1e3 * seconds)


def _mebibytes(measured: dict[str, Any] | None) -> Value | None:
    if measured is None or not measured["memory"] or measured["memory"]["peak_bytes"] is None:
        return None
    return Value(measured["memory"]["peak_bytes"] / 2**20)
