"""How many frequencies a spectral kernel needs: accuracy or perplexity, speed and memory against n."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from statistics import mean
from typing import Any, ClassVar

from flexformer import kernels
from flexformer.training import LanguageOptions, RunOptions
from flexformer.training.language_options import TASK as LANGUAGE

from . import presets
from .arena_table import ArenaTable
from .cells import Cell, SharedCell, TrainedCell
from .experiment import Experiment, ordered
from .language_table import CORPORA, SIZES, LanguageTable
from .results import Result
from .stages import Kind, Stage
from .tables import Column, Row, Table, Value

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
        return [
            self._cell(task, attention, self._count(task, multiple), seed)
            for seed in seeds
            for task in self.tasks
            for attention in attentions
            for multiple in self.multiples
        ]

    def planned(self, found: Sequence[Result]) -> list[Cell]:
        known = {(r.labels["task"], r.labels["attention"], r.labels["n"], r.seed) for r in found}
        return [self._cell(*labels) for labels in sorted(known)]

    def _count(self, task: str, multiple: float) -> int:
        width = self._head_dim(self._options(task, "flexformer-n", 0))
        count = round(multiple * width)
        if count < 1:
            raise ValueError(f"multiple {multiple} of heads of {width} leaves no frequency; use {1 / width} or more")
        return count

    def _head_dim(self, options: RunOptions | LanguageOptions) -> int:
        return options.model.head_dim or options.model.width // options.model.heads

    def _options(self, task: str, attention: str, seed: int) -> RunOptions | LanguageOptions:
        data: dict[str, Any] = {"root": self.root}
        if task != LANGUAGE:
            return presets.load(task, self.preset, attention=attention, seed=seed, data=data)
        data["source"] = self.corpus
        return presets.load_language(SIZES[self.preset][0], attention=attention, seed=seed, data=data)

    def _cell(self, task: str, attention: str, count: int, seed: int) -> Cell:
        options = self._options(task, attention, seed)
        usual = count == self._head_dim(options)
        if not usual:
            given = options.model.attention_options | {OPTION: count}
            options = replace(options, model=replace(options.model, attention_options=given))  # type: ignore[arg-type]
        kind: Kind = "train lm" if task == LANGUAGE else "train"
        # Other texts than the scale's own stand beside it.
        which = task if task != LANGUAGE or self.corpus == CORPORA[self.preset] else f"lm-{Path(self.corpus).stem}"
        name = f"{which}-{attention}-{self.preset}-n{count}-seed{seed}"
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
        tasks = dict.fromkeys(r.labels["task"] for r in found) or dict.fromkeys(self.tasks)
        return [self._table(task, [r for r in found if r.labels["task"] == task]) for task in tasks]

    def _table(self, task: str, own: Sequence[Result]) -> Table:
        attentions = ordered(list(dict.fromkeys(r.labels["attention"] for r in own))) or self.rows()
        usual = "test_perplexity" if task == LANGUAGE else "test_accuracy"
        measure = next((name for name in MEASURES if own and name in own[0].metrics), usual)
        title, factor, better = MEASURES[measure]
        columns = [Column("n / d", "", 2, None)]
        for attention in attentions:
            columns.append(Column(title, attention, 2, better))  # type: ignore[arg-type]
            columns += [Column("steps / s", attention, 2, None), Column("peak MiB of a step", attention, 0, None)]
        rows = []
        for n in sorted({r.labels["n"] for r in own}):
            same = [r for r in own if r.labels["n"] == n]
            values: list[Value | None] = [Value(n / same[0].labels["head_dim"])]
            for attention in attentions:
                runs = [r for r in same if r.labels["attention"] == attention]
                speeds = [1 / r.step_seconds for r in runs if r.step_seconds]
                peaks = [r.peak_memory / 2**20 for r in runs if r.peak_memory]
                values.append(Value.of([factor * r.metrics[measure] for r in runs]))
                values += [Value(mean(each)) if each else None for each in (speeds, peaks)]
            rows.append(Row(str(n), tuple(values)))
        seeds = ", ".join(map(str, sorted({r.seed for r in own}))) or "none yet"
        note = (
            f"Runs of {task} as in the other tables, but for the number of frequencies n in heads of width d; seeds "
            f"{seeds}. Speed and memory are those of the training runs, which may be of different machines, with other "
            "work beside."
        )
        name = f"{self.stem}-{task}"
        return Table(
            name, f"Number of frequencies: {task}, {self.preset} scale", "n", tuple(columns), tuple(rows), (note,)
        )

    def plot(self, tables: Sequence[Table], found: Sequence[Result]) -> dict[str, bytes]:
        if not found:
            return {}
        from flexformer.viz.frequencies import plot_frequencies

        return plot_frequencies([_point(result) for result in found], self.preset)


def _point(result: Result) -> dict[str, Any]:
    byte = "test_bits_per_byte" in result.metrics
    return {
        "task": result.labels["task"],
        "attention": result.labels["attention"],
        "frequencies": result.labels["n"],
        "head_dim": result.labels["head_dim"],
        "seed": result.seed,
        "test_accuracy": result.metrics.get("test_accuracy"),
        "test_bits_per_byte": result.metrics.get("test_bits_per_byte"),
        "test_perplexity": None if byte else result.metrics.get("test_perplexity"),
        "steps_per_second": None if result.step_seconds is None else 1 / result.step_seconds,
        "peak_memory": result.peak_memory,
    }
