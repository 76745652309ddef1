"""What is left of a sentence encoder when its attention is made linear: STS-B at every step of the way.

Each map is distilled on plain text and then fine-tuned on STS-B for a short while; the reference is the model with its
own attention, fine-tuned by the same recipe.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, ClassVar

import torch
from torch.utils.data import DataLoader

from flexformer.distill import FinetuneOptions
from flexformer.distill.finetune import FinetuneJob

from .cells import Cell, Job, TrainedCell
from .experiment import Experiment
from .glue_cells import LEARNABLE, SOFTMAX
from .presets.pretrained import load_distill, load_finetune
from .pretrained_models import Subject
from .results import Result
from .stages import REFERENCE, Stage
from .tables import Column, Row, Table, Value

TASK = "stsb"
PRESETS = ("cpu", "smoke")
STEPS = ("converted", "distilled", "fine-tuned")


@dataclass(frozen=True)
class SentenceCell(TrainedCell):
    """A fine-tuned sentence encoder, and how good it was before: as it was converted, and as it was distilled."""

    def jobs(self, output: Path) -> list[Job]:
        options = self.stage.resolved(output).as_dict()
        return [*super().jobs(output), Job("scores", "flexformer.experiments.sentences:scores", {"options": options})]

    def result(self, output: Path, answer: Any, details: Mapping[str, Any]) -> Result:
        return super().result(output, answer, {**details, **answer})


def scores(options: dict[str, Any]) -> dict[str, float]:
    """Spearman correlation on the dev set before fine-tuning.

    Args:
        options: Of the fine-tuning.
    """
    given = FinetuneOptions.from_dict(options)
    found = {"converted": _score(replace(given, adapter=None))}
    if given.adapter is not None:
        found["distilled"] = _score(given)
    return found


def _score(options: FinetuneOptions) -> float:
    job = FinetuneJob(options)
    model = job.model().eval()
    size = options.training.eval_batch_size or options.training.batch_size
    loader = DataLoader(job.dataset("test"), batch_size=size, collate_fn=job.collate)
    logits, labels = [], []
    with torch.no_grad():
        for batch in loader:
            logits.append(model(**batch)["logits"])
            labels.append(batch["labels"])
    return job.metrics(torch.cat(logits).numpy(), torch.cat(labels).numpy())["spearman"]


class SentenceStudy(Experiment):
    """Maps by how much of a sentence encoder they keep.

    Args:
        preset: cpu or smoke.
        root: Folder GLUE and the text live in.
        base: A pretrained sentence encoder; default MiniLM.
        text: To distil on; default the training text of WikiText-2.
    """

    name: ClassVar[str] = "sentences"

    def __init__(self, preset: str, root: str | None = None, base: str | None = None, text: str | None = None) -> None:
        if preset not in PRESETS:
            raise ValueError(f"preset {preset!r} is unknown; use one of {', '.join(PRESETS)}")
        super().__init__(preset, root)
        self.subject = Subject.of(preset, root, base, text)

    @property
    def stem(self) -> str:
        return self.subject.stem(self.name, self.preset, self.root)

    def rows(self) -> tuple[str, ...]:
        return (SOFTMAX, *LEARNABLE)

    def cells(self, attentions: Sequence[str], seeds: Sequence[int]) -> list[Cell]:
        return [self._cell(attention, seed) for seed in seeds for attention in attentions]

    def _cell(self, attention: str, seed: int) -> Cell:
        name = f"{self.subject.slug}-{attention}-{self.preset}-seed{seed}"
        given: dict[str, Any] = {"attention": attention, "seed": seed, "data": {"root": self.root}}
        options, _ = load_finetune(self.preset, self.subject.base, TASK, head="cosine", **given)
        needs: tuple[Stage, ...] = ()
        if attention != SOFTMAX:
            learned = load_distill(self.preset, self.subject.base, self.subject.text, **given)
            needs = (Stage(f"{name}-distill", "distill", learned),)
            options = replace(options, adapter=f"{REFERENCE}{needs[0].name}/adapter")
        labels = {"attention": attention}
        return SentenceCell(self.name, name, labels, self.preset, Stage(name, "finetune", options, needs))

    def tables(self, found: Sequence[Result]) -> list[Table]:
        columns = (
            Column("KL", "distilled", 3, "lower"),
            Column("cosine", "distilled", 3),
            *(Column(step, "STS-B dev, Spearman x 100", 2) for step in STEPS),
            Column("seeds", "", 0, None),
        )
        rows = []
        for name in self.rows():
            own = _of(name, found)
            learned = [result.stages[0]["metrics"] for result in own if result.stages]
            values = (
                Value.of([metrics["after_kl"] for metrics in learned]),
                Value.of([metrics["after_embedding_cosine"] for metrics in learned]),
                *(_spearman(step, own) for step in STEPS),
                Value(float(len(own))) if own else None,
            )
            rows.append(Row(name, values, unranked=name == SOFTMAX))
        notes = (
            f"{self.subject} while it is distilled, then fine-tuned on STS-B as a sentence encoder, which compares "
            "mean hidden states by their cosine. KL is that of attention weights to softmax's, mean over layers; "
            "cosine is of sentence embeddings with those of the original, both on text that was held out. softmax is "
            "the model as it is, and fine-tuned by the same recipe.",
        )
        title = f"A sentence encoder made linear, {self.preset} scale"
        return [Table(self.stem, title, "attention", columns, tuple(rows), notes)]

    def plot(self, tables: Sequence[Table], found: Sequence[Result]) -> dict[str, bytes]:
        from flexformer.viz.sentences import plot_sentences

        means = {name: [_spearman(step, _of(name, found)) for step in STEPS] for name in self.rows()}
        original, _, reference = ((None if value is None else value.mean) for value in means.pop(SOFTMAX))
        shown = {name: [value.mean for value in values if value] for name, values in means.items() if all(values)}
        return plot_sentences(STEPS, shown, original, reference) if shown else {}


def _of(attention: str, found: Sequence[Result]) -> list[Result]:
    return [result for result in found if result.labels["attention"] == attention]


def _spearman(step: str, own: Sequence[Result]) -> Value | None:
    """In per cent, after a step."""
    if step == STEPS[-1]:
        return Value.of([100 * result.metrics["test_spearman"] for result in own])
    return Value.of([100 * result.details[step] for result in own if step in result.details])
