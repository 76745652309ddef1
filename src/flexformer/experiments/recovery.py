"""What is left of a pretrained model when its attention is made linear, at every step of the way.

Each map is distilled on plain text and then fine-tuned for a short while; the reference is the model with its own
attention, fine-tuned by the same recipe.
"""

from __future__ import annotations

import abc
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, ClassVar

import torch
from torch.utils.data import DataLoader

from flexformer.distill import DistillOptions, FinetuneOptions
from flexformer.distill.procedures import finetune_job
from flexformer.training.run import quiet_libraries

from .cells import Cell, Job, TrainedCell
from .experiment import Experiment
from .glue_cells import LEARNABLE, SOFTMAX
from .pretrained_models import Subject
from .results import Result
from .stages import REFERENCE, Stage, learned_layers
from .tables import Column, Row, Table, Value

STEPS = ("converted", "distilled", "fine-tuned")


@dataclass(frozen=True)
class RecoveredCell(TrainedCell):
    """A fine-tuned model, and how good it was before: as it was converted, and as it was distilled.

    Args:
        scorer: The function that finds out, "module:function"; takes the options of the fine-tuning and its folder.
    """

    scorer: str

    def jobs(self, output: Path) -> list[Job]:
        given = {"options": self.stage.resolved(output).as_dict(), "folder": str(self.stage.folder(output))}
        return [*super().jobs(output), Job("scores", self.scorer, given)]

    def result(self, output: Path, answer: Any, details: Mapping[str, Any]) -> Result:
        return super().result(output, answer, {**details, **answer})


@quiet_libraries()
def scores_before(options: FinetuneOptions, metric: str) -> dict[str, float]:
    """A metric on the test set before fine-tuning, as converted and, where there is an adapter, as distilled.

    Args:
        options: Of the fine-tuning.
        metric: One of those its job knows.
    """
    found = {"converted": _score(replace(options, adapter=None), metric)}
    if options.adapter is not None:
        found["distilled"] = _score(options, metric)
    return found


def _score(options: FinetuneOptions, metric: str) -> float:
    job = finetune_job(options)
    model = job.model().eval()
    size = options.training.eval_batch_size or options.training.batch_size
    loader = DataLoader(job.dataset("test"), batch_size=size, collate_fn=job.collate)
    logits, labels = [], []
    with torch.no_grad():
        for batch in loader:
            logits.append(model(**batch)["logits"])
            labels.append(batch["labels"])
    return job.metrics(torch.cat(logits).numpy(), torch.cat(labels).numpy())[metric]


class RecoveryStudy(Experiment):
    """Maps by how much of a pretrained model they keep.

    Args:
        preset: cpu or smoke.
        root: Folder the data lives in.
        subject: The model and the text it is distilled on.
    """

    presets: ClassVar[tuple[str, ...]] = ("cpu", "smoke")
    metric: ClassVar[str]
    """what models are scored by"""
    scorer: ClassVar[str]
    """see `RecoveredCell`"""
    cell_class: ClassVar[type[RecoveredCell]] = RecoveredCell
    factor: ClassVar[float] = 1.0
    """that it is shown with"""

    def __init__(self, preset: str, root: str | None, subject: Subject) -> None:
        super().__init__(preset, root)
        self.subject = subject

    @abc.abstractmethod
    def options(self, **given: Any) -> tuple[DistillOptions, FinetuneOptions]:
        """Of the distillation and of the fine-tuning.

        Args:
            **given: What they share: attention, seed and data.
        """

    @abc.abstractmethod
    def score_column(self, step: str) -> Column:
        """What a step's scores stand under."""

    @abc.abstractmethod
    def distilled_columns(self) -> dict[str, Column]:
        """Figures of the distillation, by name."""

    @abc.abstractmethod
    def headings(self) -> tuple[str, str]:
        """The table's title, and a note that says what was done."""

    def rows(self) -> tuple[str, ...]:
        return (SOFTMAX, *LEARNABLE)

    def cells(self, attentions: Sequence[str], seeds: Sequence[int]) -> list[Cell]:
        return [self._cell(attention, seed) for seed in seeds for attention in attentions]

    def _cell(self, attention: str, seed: int) -> Cell:
        name = f"{self.subject.slug}-{attention}-{self.preset}-seed{seed}"
        learned, options = self.options(attention=attention, seed=seed, data={"root": self.root})
        needs: tuple[Stage, ...] = ()
        if attention != SOFTMAX:
            needs = (Stage(f"{name}-distill", "distill", learned),)
            options = replace(options, adapter=f"{REFERENCE}{needs[0].name}/adapter")
        stage = Stage(name, "finetune", options, needs)
        return self.cell_class(self.name, name, {"attention": attention}, self.preset, stage, self.scorer)

    def details(self, cell: Cell, output: Path) -> Mapping[str, Any]:
        assert isinstance(cell, TrainedCell)
        if not cell.stage.needs:
            return {}
        layers = learned_layers(cell.stage.needs[0], output)
        return {f"{name}_by_layer": [layer[name] for layer in layers] for name in ("kl", "output_error")}

    def tables(self, found: Sequence[Result]) -> list[Table]:
        learned = self.distilled_columns()
        columns = (*learned.values(), *map(self.score_column, STEPS), Column("seeds", "", 0, None))
        rows = []
        for name in self.rows():
            own = of_attention(name, found)
            metrics = [result.stages[0]["metrics"] for result in own if result.stages]
            values = (
                *(Value.of([each[key] for each in metrics]) for key in learned),
                *(self._score(step, own) for step in STEPS),
                Value(float(len(own))) if own else None,
            )
            rows.append(Row(name, values, unranked=name == SOFTMAX))
        title, note = self.headings()
        title = f"{title}, {self.preset} scale"
        return [Table(self.stem, title, "attention", columns, tuple(rows), (note,)), *self._layers(found)]

    def _layers(self, found: Sequence[Result]) -> list[Table]:
        """Divergence and output error layer by layer, where there are any."""
        runs = {
            name: [r.details for r in of_attention(name, found) if "kl_by_layer" in r.details] for name in LEARNABLE
        }
        count = max((len(each["kl_by_layer"]) for own in runs.values() for each in own), default=0)
        titles = {
            "kl": "KL of attention weights by layer, after the distillation",
            "output_error": "Relative error of the output of attention by layer, in its linear form",
        }
        columns = tuple(Column(str(i), "layer", 3, "lower") for i in range(count))
        tables = []
        for name, title in titles.items() if count else ():
            rows = [
                Row(label, tuple(Value.of([run[f"{name}_by_layer"][i] for run in own]) for i in range(count)))
                for label, own in runs.items()
            ]
            tables.append(Table(f"{self.stem}-{name}", title, "attention", columns, tuple(rows), ()))
        return tables

    def plot(self, tables: Sequence[Table], found: Sequence[Result]) -> dict[str, bytes]:
        from flexformer.viz.recovery import plot_recovery

        means = {name: [self._score(step, of_attention(name, found)) for step in STEPS] for name in self.rows()}
        original, _, reference = ((None if value is None else value.mean) for value in means.pop(SOFTMAX))
        shown = {name: [value.mean for value in values if value] for name, values in means.items() if all(values)}
        if not shown:
            return {}
        title, column = self.headings()[0], self.score_column(STEPS[0])
        return plot_recovery(STEPS, shown, original, reference, title, column.group, column.better == "lower")

    def _score(self, step: str, own: Sequence[Result]) -> Value | None:
        if step == STEPS[-1]:
            return Value.of([self.factor * result.metrics[f"test_{self.metric}"] for result in own])
        return Value.of([self.factor * result.details[step] for result in own if step in result.details])


def of_attention(attention: str, found: Sequence[Result]) -> list[Result]:
    """The results of one row, all seeds."""
    return [result for result in found if result.labels["attention"] == attention]
