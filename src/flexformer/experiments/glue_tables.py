"""The paper's tables 3 and 4: softmax recovered on GLUE, and kernels carried from one task to another."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import ClassVar

from flexformer.tasks import glue

from .arena_table import average, clearly_above
from .cells import Cell, TrainedCell
from .experiment import Experiment
from .glue_cells import LEARNABLE, SOFTMAX, TASKS, TWICE, GlueRuns, checked, swapped
from .paper import printed, source
from .pretrained_models import default_base
from .results import Result
from .stages import Stage
from .tables import Column, Row, Table, Value

SOURCES = {"paper": ("stsb", "qqp", "mnli", "qnli"), "cpu": ("stsb", "sst2"), "smoke": ("stsb",)}
KINDS = {
    SOFTMAX: "softmax (reference)",
    TWICE: "softmax (fine-tuned twice)",
    **{name: f"{name} (distilled)" for name in LEARNABLE},
}
HERE = "here"
# How often the more frequent answer is right, of how many examples of the dev set.
COMMONER = {"sst2": (444, 872), "mrpc": (279, 408), "rte": (146, 277)}
MEASURES = "Matthews correlation on CoLA, mean of Pearson and Spearman correlation on STS-B, else accuracy; in per cent"


class _GlueExperiment(Experiment):
    """What both have.

    Args:
        preset: paper, cpu or smoke.
        root: Folder GLUE lives in.
        base: The pretrained model; default RoBERTa for paper, else MiniLM.
        tasks: Some of the tasks; default all the scale has.
    """

    def __init__(
        self, preset: str, root: str | None = None, base: str | None = None, tasks: Sequence[str] | None = None
    ) -> None:
        super().__init__(preset, root)
        self.runs = GlueRuns(preset, base or default_base(preset), root)
        self.tasks = checked(tasks, TASKS[preset])
        self.shown = checked([*TASKS[preset], *self.tasks], ())

    @property
    def stem(self) -> str:
        own = f"{self.name}-{self.preset}"
        return own if self.runs.is_default else f"{self.name}-{self.runs.slug}-{self.preset}"

    def plot(self, tables: Sequence[Table], found: Sequence[Result]) -> dict[str, bytes]:
        return super().plot(tables[:1], found)

    def budget(self, found: Sequence[Result]) -> str:
        """What a reader has to know."""
        seeds = sorted({result.seed for result in found})
        shown = f"; seeds {', '.join(map(str, seeds))}" if seeds else ""
        return (
            f"{self.runs.slug}. {MEASURES}, on the dev sets; weights were chosen by accuracy, of STS-B by loss, the "
            f"first of the best, on a tenth of the training set{shown}. "
            "The recipe of fine-tuning is the same for all attentions, and so is distillation but for its rate, which "
            "is the preset's for each map. Mean ± standard deviation where there are several seeds; an empty cell was "
            "not run."
        )


def guesses(found: Sequence[Result]) -> list[str]:
    """Tasks that tell little of attentions: no run is clearly better than the more frequent answer."""
    told = {}
    for task, (right, size) in COMMONER.items():
        own = [r.metrics["test_score"] for r in found if r.labels["task"] == task]
        if own and max(own) < clearly_above(right / size, size):
            told[glue.find(task).title] = f"{100 * right / size:.1f} %"
    if not told:
        return []
    shares = " and ".join(told.values())
    return [f"On {' and '.join(told)} no run is clearly better than the more frequent answer, right in {shares}."]


class RecoveryTable(_GlueExperiment):
    """Fine-tuned with softmax; swapped and fine-tuned; fine-tuned, distilled and fine-tuned again."""

    name: ClassVar[str] = "table3"

    def rows(self) -> tuple[str, ...]:
        return (SOFTMAX, TWICE, *swapped(), *LEARNABLE)

    def cells(self, attentions: Sequence[str], seeds: Sequence[int]) -> list[Cell]:
        return [self._cell(task, name, seed) for seed in seeds for task in self.tasks for name in attentions]

    def planned(self, found: Sequence[Result]) -> list[Cell]:
        seeds = sorted({result.seed for result in found})
        return [self._cell(task, name, seed) for seed in seeds for task in glue.TASKS for name in self.rows()]

    def _cell(self, task: str, attention: str, seed: int) -> Cell:
        stage = self._stage(task, attention, seed)
        labels = {"base": self.runs.slug, "task": task, "attention": attention}
        return TrainedCell(self.name, stage.name, labels, self.preset, stage)

    def _stage(self, task: str, attention: str, seed: int) -> Stage:
        if attention == TWICE:
            return self.runs.finetuned_twice(task, seed)
        return (self.runs.recovered if attention in LEARNABLE else self.runs.finetuned)(task, attention, seed)

    def tables(self, found: Sequence[Result]) -> list[Table]:
        where, paper = HERE, printed(self.name)
        columns = [Column(glue.find(task).title, where, 1) for task in self.shown] + [Column("average", where, 1)]
        columns += [
            Column(glue.TASKS[name].title if name in glue.TASKS else name, "paper", 1, "higher", False, 2)
            for name in paper["columns"]
        ]
        rows = []
        for name in self.rows():
            by_task = [_scores(found, task=task, attention=name) for task in self.shown]
            values = [*(Value.of(list(scores.values())) for scores in by_task), average(by_task)]
            values += map(Value.printed, paper["rows"].get(name, [None] * len(paper["columns"])))
            rows.append(Row(KINDS.get(name, f"{name} (swapped)"), tuple(values), unranked=name in (SOFTMAX, TWICE)))
        title = f"Table 3: softmax attention recovered on GLUE, {self.preset} scale"
        notes = (
            self.budget(found),
            "The reference and swapped attentions are fine-tuned once, from the pretrained model; distilled ones are "
            "fine-tuned with softmax, distilled, and fine-tuned as long again. softmax fine-tuned twice, which the "
            "paper does not have, shows what the second time alone gives.",
            *guesses(found),
            source(self.name),
        )
        scores = Table(self.stem, title, "attention", tuple(columns), tuple(rows), notes)
        return [scores, self._divergences(found)]

    def _divergences(self, found: Sequence[Result]) -> Table:
        """How near distillation came to softmax, on the way to these scores."""
        columns = [Column(glue.find(task).title, "KL", 3, "lower") for task in self.shown]
        rows = []
        for name in LEARNABLE:
            by_task = [divergences(found, task=task, attention=name) for task in self.shown]
            rows.append(Row(name, tuple(Value.of(list(own.values())) for own in by_task)))
        return Table(
            f"{self.stem}-distillation",
            f"Table 3, on the way: divergence of distilled attention from softmax, {self.preset} scale",
            "attention",
            tuple(columns),
            tuple(rows),
            (
                "On sentences of the task that were held out, after distillation and before the second fine-tuning; in "
                "nats, mean over layers.",
            ),
        )


class TransferTable(_GlueExperiment):
    """Kernels distilled on a source task, fine-tuned on every other.

    Args:
        preset: paper, cpu or smoke.
        root: Folder GLUE lives in.
        base: The pretrained model; default RoBERTa for paper, else MiniLM.
        tasks: Targets; default all the scale has.
        sources: Where kernels are distilled.
    """

    name: ClassVar[str] = "table4"

    def __init__(
        self,
        preset: str,
        root: str | None = None,
        base: str | None = None,
        tasks: Sequence[str] | None = None,
        sources: Sequence[str] | None = None,
    ) -> None:
        super().__init__(preset, root, base, tasks)
        self.sources = checked(sources, SOURCES[preset])

    def rows(self) -> tuple[str, ...]:
        return LEARNABLE

    def cells(self, attentions: Sequence[str], seeds: Sequence[int]) -> list[Cell]:
        return [
            self._cell(start, target, name, seed)
            for seed in seeds
            for start in self.sources
            for target in self.tasks
            for name in attentions
            if start != target
        ]

    def planned(self, found: Sequence[Result]) -> list[Cell]:
        known = {(r.labels["source"], r.labels["task"], r.labels["attention"], r.seed) for r in found}
        return [self._cell(*each) for each in sorted(known)]

    def _cell(self, start: str, target: str, attention: str, seed: int) -> Cell:
        stage = self.runs.transferred(start, target, attention, seed)
        labels = {"base": self.runs.slug, "source": start, "task": target, "attention": attention}
        return TrainedCell(self.name, stage.name, labels, self.preset, stage)

    def tables(self, found: Sequence[Result]) -> list[Table]:
        paper = printed(self.name)
        columns = [Column(glue.find(task).title, HERE, 1) for task in self.shown]
        columns += [Column(glue.find(task).title, "paper", 1, "higher", False) for task in paper["columns"]]
        starts = checked([*self.sources, *(r.labels["source"] for r in found)], ())
        notes = (self.budget(found), *guesses(found), source(self.name))
        scale = f"{self.preset} scale"
        means = [self._means(name, starts, found) for name in self.rows()]
        averages = Table(
            self.stem,
            f"Table 4: kernels carried to other tasks, mean over sources, {scale}",
            "attention",
            tuple(columns),
            tuple(means),
            (f"Sources: {', '.join(glue.find(s).title for s in starts)}.",),
        )
        every = [start for start in glue.TASKS if start in starts or start in paper["full"]]
        rows = [self._full(start, name, found) for start in every for name in self.rows()]
        whole = Table(
            f"{self.stem}-full",
            f"Table 4 in full: source x target, {scale}",
            "source: attention",
            tuple(replace(column, better=None) for column in columns),  # a best one across sources means nothing
            tuple(row for row in rows if any(row.values)),
            notes,
        )
        return [averages, whole]

    def _means(self, name: str, starts: Sequence[str], found: Sequence[Result]) -> Row:
        """Mean over sources other than the target; empty where one is missing."""
        values: list[Value | None] = []
        for target in self.shown:
            others = [start for start in starts if start != target]
            scores = [_scores(found, source=start, task=target, attention=name) for start in others]
            values.append(average(scores) if scores else None)
        numbers = printed(self.name)["average"].get(name)
        values += map(Value.printed, numbers or [None] * len(printed(self.name)["columns"]))
        return Row(name, tuple(values))

    def _full(self, start: str, name: str, found: Sequence[Result]) -> Row:
        values = [
            Value.of(list(_scores(found, source=start, task=target, attention=name).values())) for target in self.shown
        ]
        numbers = printed(self.name)["full"].get(start, {}).get(name)
        values += map(Value.printed, numbers or [None] * len(printed(self.name)["columns"]))
        return Row(f"{glue.find(start).title}: {name}", tuple(values))


def divergences(found: Sequence[Result], **labels: str) -> dict[int, float]:
    """By seed, how far from softmax the distillation left what a cell was fine-tuned from."""
    own = [r for r in found if all(r.labels.get(key) == value for key, value in labels.items())]
    metrics = [(result.seed, stage["metrics"]) for result in own for stage in result.stages]
    return {seed: stage["after_kl"] for seed, stage in metrics if "after_kl" in stage}


def _scores(found: Sequence[Result], **labels: str) -> dict[int, float]:
    """Scores in per cent by seed."""
    own = [r for r in found if all(r.labels.get(key) == value for key, value in labels.items())]
    return {result.seed: 100 * result.metrics["test_score"] for result in own}
