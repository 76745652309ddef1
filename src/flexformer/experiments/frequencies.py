"""How many frequencies a spectral kernel needs: accuracy or perplexity, speed and memory against n."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from statistics import mean
from typing import Any, ClassVar, TypeAlias

from flexformer import kernels
from flexformer.training import LanguageOptions, RunOptions
from flexformer.training.language_options import TASK as LANGUAGE

from . import presets
from .arena_table import TITLES, ArenaTable
from .cells import Cell, SharedCell, TrainedCell
from .experiment import Experiment, ordered
from .language_table import CORPORA, SIZES, LanguageTable
from .results import Result
from .stages import Kind, Stage
from .steps import steps_cell
from .tables import Column, Row, Table, Value

Key: TypeAlias = tuple[str, str, int]
"""task, attention and number of frequencies"""
Cost: TypeAlias = tuple[float | None, float | None]
"""seconds and peak bytes of a step"""

OPTION = "num_frequencies"
TASKS = ("lm", "image", "listops")
MULTIPLES = (0.25, 0.5, 1.0, 2.0, 4.0)
MEASURES = {
    "test_accuracy": ("test accuracy, %", 100.0, "higher"),
    "test_bits_per_byte": ("test bits per byte", 1.0, "lower"),
    "test_perplexity": ("test perplexity", 1.0, "lower"),
}


class FrequencySweep(Experiment):
    """Runs that differ in the number of frequencies alone.

    Where runs may share two cores with other work, a step is measured by itself, all numbers of frequencies in turn. At
    the paper's scale runs have a GPU to themselves, and speed and memory are their own.

    Args:
        preset: paper, cpu or smoke.
        root: Folder the data lives in.
        tasks: Names in `flexformer.tasks.names()`, or "lm".
        multiples: Numbers of frequencies as multiples of the head's width.
        corpus: The text of "lm"; by default that of table 2 at this scale.
    """

    name: ClassVar[str] = "n-sweep"

    def __init__(
        self,
        preset: str,
        root: str | None = None,
        tasks: Sequence[str] = TASKS,
        multiples: Sequence[float] = MULTIPLES,
        corpus: str | None = None,
    ) -> None:
        super().__init__(preset, root)
        self.tasks, self.multiples = list(tasks), list(multiples)
        self.corpus = CORPORA[preset] if corpus is None else corpus

    @property
    def stem(self) -> str:
        own = self.corpus == CORPORA[self.preset]
        return f"{self.name}-{self.preset}" if own else f"{self.name}-{Path(self.corpus).stem}-{self.preset}"

    def rows(self) -> tuple[str, ...]:
        return ordered([name for name in kernels.names() if OPTION in kernels.options(name)])

    def cells(self, attentions: Sequence[str], seeds: Sequence[int]) -> list[Cell]:
        runs: list[Cell] = [
            self._cell(task, attention, self._count(task, multiple), seed)
            for seed in seeds
            for task in self.tasks
            for attention in attentions
            for multiple in self.multiples
        ]
        if self.preset == "paper":
            return runs
        counts = {task: [self._count(task, multiple) for multiple in self.multiples] for task in self.tasks}
        return runs + [self._steps(task, name, counts[task]) for task in self.tasks for name in attentions]

    def planned(self, found: Sequence[Result]) -> list[Cell]:
        runs = {(r.labels["task"], r.labels["attention"], r.labels["n"], r.seed) for r in trained(found)}
        steps = {(r.labels["task"], r.labels["attention"], tuple(r.labels["counts"])) for r in measured(found)}
        return [*(self._cell(*labels) for labels in sorted(runs)), *(self._steps(*labels) for labels in sorted(steps))]

    def _count(self, task: str, multiple: float) -> int:
        width = self._head_dim(self._options(task, "flexformer-n", 0))
        count = round(multiple * width)
        if count < 1:
            raise ValueError(f"multiple {multiple} of heads of {width} leaves no frequency; use {1 / width} or more")
        return count

    def _head_dim(self, options: RunOptions | LanguageOptions) -> int:
        return options.model.head_dim or options.model.width // options.model.heads

    def _options(self, task: str, attention: str, seed: int) -> RunOptions | LanguageOptions:
        if task == LANGUAGE:
            models = LanguageTable(self.preset, self.root, self.corpus)
            return models.options(SIZES[self.preset][0], attention, seed)
        return presets.load(task, self.preset, attention=attention, seed=seed, data={"root": self.root})

    def _steps(self, task: str, attention: str, counts: Sequence[int]) -> Cell:
        cells = {str(count): self._cell(task, attention, count, 0) for count in counts}
        multiples = [f"{cell.labels['n'] / cell.labels['head_dim']:g}" for cell in cells.values()]
        name = f"{self._called(task)}-{attention}-{self.preset}-steps-n{'-'.join(cells)}"
        labels = {"task": task, "attention": attention, "counts": list(counts)}
        stages = {count: cell.stage for count, cell in cells.items()}
        command = ["flexformer", "reproduce", self.name, "--preset", self.preset, "--attention", attention]
        command += ["--tasks", task, "--multiples", *multiples]
        return steps_cell(self.name, name, labels, self.preset, stages, command)

    def _called(self, task: str) -> str:
        """Other texts than the scale's own stand beside it."""
        return task if task != LANGUAGE or self.corpus == CORPORA[self.preset] else f"lm-{Path(self.corpus).stem}"

    def _cell(self, task: str, attention: str, count: int, seed: int) -> TrainedCell:
        options = self._options(task, attention, seed)
        usual = count == self._head_dim(options)
        if not usual:
            given = options.model.attention_options | {OPTION: count}
            options = replace(options, model=replace(options.model, attention_options=given))  # type: ignore[arg-type]
        kind: Kind = "train lm" if task == LANGUAGE else "train"
        name = f"{self._called(task)}-{attention}-{self.preset}-n{count}-seed{seed}"
        labels = {"task": task, "attention": attention, "n": count, "head_dim": self._head_dim(options)}
        stage = Stage(name, kind, options)
        if usual:
            twin, *_ = self._usual_table(task).cells([attention], [seed])
            return SharedCell(self.name, name, labels, self.preset, stage, twin)
        return TrainedCell(self.name, name, labels, self.preset, stage)

    def _usual_table(self, task: str) -> Experiment:
        if task != LANGUAGE:
            return ArenaTable(self.preset, self.root, [task])
        return LanguageTable(self.preset, self.root, self.corpus)

    def tables(self, found: Sequence[Result]) -> list[Table]:
        tasks = dict.fromkeys(r.labels["task"] for r in trained(found)) or dict.fromkeys(self.tasks)
        return [self._table(task, [r for r in found if r.labels["task"] == task]) for task in tasks]

    def _table(self, task: str, found: Sequence[Result]) -> Table:
        own = trained(found)
        attentions = ordered(list(dict.fromkeys(r.labels["attention"] for r in own))) or self.rows()
        usual = "test_perplexity" if task == LANGUAGE else "test_accuracy"
        measure = next((name for name in MEASURES if own and name in own[0].metrics), usual)
        title, factor, better = MEASURES[measure]
        columns = [Column("n / d", "", 2, None)]
        for attention in attentions:
            columns.append(Column(title, attention, 2, better))  # type: ignore[arg-type]
            columns += [Column("steps / s", attention, 2, None), Column("peak MiB of a step", attention, 0, None)]
        costs = self._costs(found)
        rows = []
        for n in sorted({r.labels["n"] for r in own}):
            same = [r for r in own if r.labels["n"] == n]
            values: list[Value | None] = [Value(n / same[0].labels["head_dim"])]
            for attention in attentions:
                runs = [r for r in same if r.labels["attention"] == attention]
                values.append(Value.of([factor * r.metrics[measure] for r in runs]))
                seconds, peak = costs.get((task, attention, n), (None, None))
                values += [Value(1 / seconds) if seconds else None, Value(peak / 2**20) if peak else None]
            rows.append(Row(str(n), tuple(values)))
        seeds = ", ".join(map(str, sorted({r.seed for r in own}))) or "none yet"
        how = "those of the runs" if self.preset == "paper" else "of a step by itself, all n in turn, on one thread"
        note = (
            "Runs as in the other tables, but for the number of frequencies n in heads of width d; "
            f"seeds {seeds}. Speed and memory are {how}."
        )
        name = f"{self.stem}-{task}"
        heading = f"Number of frequencies: {title_of(task)}, {self.preset} scale"
        return Table(name, heading, "n", tuple(columns), tuple(rows), (note,))

    def _costs(self, found: Sequence[Result]) -> dict[Key, Cost]:
        """Of a step."""
        if self.preset == "paper":
            runs = {key: [r for r in trained(found) if _key(r) == key] for key in map(_key, trained(found))}
            return {
                key: (_mean([r.step_seconds for r in own]), _mean([r.peak_memory for r in own]))
                for key, own in runs.items()
            }
        by_size = sorted(measured(found), key=lambda result: len(result.labels["counts"]))
        largest = {(result.labels["task"], result.labels["attention"]): result for result in by_size}
        return {
            (*kind, int(this["row"])): (
                this["seconds"] and this["seconds"]["median"],
                this["memory"] and this["memory"]["peak_bytes"],
            )
            for kind, result in largest.items()
            for this in result.details["measurements"]
        }

    def plot(self, tables: Sequence[Table], found: Sequence[Result]) -> dict[str, bytes]:
        runs = trained(found)
        if not runs:
            return {}
        from flexformer.viz.frequencies import plot_frequencies

        costs = self._costs(found)
        points = [_point(result, *costs.get(_key(result), (None, None))) for result in runs]
        return plot_frequencies(points, self.preset)


def title_of(task: str) -> str:
    """What readers call a task of the sweep."""
    return "Language model" if task == LANGUAGE else TITLES[task]


def trained(found: Sequence[Result]) -> list[Result]:
    """Results of runs, without those of measurements."""
    return [result for result in found if "n" in result.labels]


def measured(found: Sequence[Result]) -> list[Result]:
    """Results of measurements, without those of runs."""
    return [result for result in found if "counts" in result.labels]


def _mean(values: Sequence[float | None]) -> float | None:
    known = [value for value in values if value is not None]
    return mean(known) if known else None


def _key(result: Result) -> Key:
    return result.labels["task"], result.labels["attention"], result.labels["n"]


def _point(result: Result, seconds: float | None, peak: float | None) -> dict[str, Any]:
    byte = "test_bits_per_byte" in result.metrics
    return {
        "task": title_of(result.labels["task"]),
        "attention": result.labels["attention"],
        "frequencies": result.labels["n"],
        "head_dim": result.labels["head_dim"],
        "seed": result.seed,
        "test_accuracy": result.metrics.get("test_accuracy"),
        "test_bits_per_byte": result.metrics.get("test_bits_per_byte"),
        "test_perplexity": None if byte else result.metrics.get("test_perplexity"),
        "steps_per_second": seconds and 1 / seconds,
        "peak_memory": peak,
    }
