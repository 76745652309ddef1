"""The paper's table 2: perplexity of language models, softmax and every attention with a causal form."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from statistics import mean
from typing import Any, ClassVar

from flexformer.tasks.paper_language import PERPLEXITY, Size
from flexformer.training import LanguageOptions, RunFolder
from flexformer.training.callbacks import read_log

from . import presets
from .cells import Cell, TrainedCell
from .experiment import Experiment, ordered
from .parameters import causal_attentions
from .results import Result
from .stages import Stage
from .tables import Column, Row, Table, Value

CORPORA = {"paper": "wikitext103", "cpu": "wikitext2", "smoke": "python"}
TITLES = {
    "wikitext103": "WikiText-103",
    "wikitext2": "WikiText-2",
    "enwik8": "enwik8",
    "python": "Python's standard library",
}
SIZES: dict[str, tuple[str, ...]] = {"paper": ("paper-small", "paper-big"), "cpu": ("cpu",), "smoke": ("smoke",)}
# Blocks of validation and of test data, where scoring all of them would take longer than training.
SCORED = {("cpu", "enwik8"): 1000}
SOURCE = "The paper's numbers are those of its table of WikiText-103 perplexities (table 2), three seeds."


class LanguageTable(Experiment):
    """Language models on one text.

    Args:
        preset: paper (two sizes), cpu or smoke.
        root: Folder the data lives in.
        corpus: As `flexformer train lm --data.source`; the scale's own by default.
    """

    name: ClassVar[str] = "table2"

    def __init__(self, preset: str, root: str | None = None, corpus: str | None = None) -> None:
        super().__init__(preset, root)
        self.corpus = CORPORA[preset] if corpus is None else corpus
        self.slug = Path(self.corpus).stem

    @property
    def stem(self) -> str:
        own = self.corpus == CORPORA[self.preset]
        return f"{self.name}-{self.preset}" if own else f"{self.name}-{self.slug}-{self.preset}"

    def rows(self) -> tuple[str, ...]:
        return ordered(causal_attentions())

    def cells(self, attentions: Sequence[str], seeds: Sequence[int]) -> list[Cell]:
        return [
            self._cell(size, attention, seed)
            for seed in seeds
            for size in SIZES[self.preset]
            for attention in attentions
        ]

    def options(self, size: str, attention: str, seed: int) -> LanguageOptions:
        """What a model of this text is trained with."""
        data: dict[str, Any] = {"source": self.corpus, "root": self.root}
        if scored := SCORED.get((self.preset, self.corpus)):
            data |= {"validation_limit": scored, "test_limit": scored}
        return presets.load_language(size, attention=attention, seed=seed, data=data)

    def _cell(self, size: str, attention: str, seed: int) -> Cell:
        name = f"{self.slug}-{attention}-{size}-seed{seed}"
        labels = {"corpus": self.corpus, "size": size, "attention": attention}
        stage = Stage(name, "train lm", self.options(size, attention, seed))
        return TrainedCell(self.name, name, labels, self.preset, stage)

    def details(self, cell: Cell, output: Path) -> Mapping[str, Any]:
        assert isinstance(cell, TrainedCell)
        log = read_log(RunFolder(cell.stage.folder(output)).log_file)
        return {"largest_rise": largest_rise([entry["loss"] for entry in log if "loss" in entry])}

    def tables(self, found: Sequence[Result]) -> list[Table]:
        in_words = not any("test_bits_per_byte" in r.metrics for r in found) if found else "wikitext" in self.slug
        measure = "perplexity" if in_words else "bits_per_byte"
        columns: list[Column] = []
        for size in SIZES[self.preset]:
            where = f"{TITLES.get(self.corpus, self.slug)}, {size}"
            columns += [Column(split, where, 2, "lower") for split in ("dev", "test")]
            columns += [Column("largest rise", where, 2, None), Column("M parameters", where, 2, None)]
        sizes: tuple[Size, ...] = ("small", "big") if in_words else ()
        for paper_size in sizes:
            group = f"paper, {paper_size}"
            columns += [Column(split, group, 1, "lower", False, 2) for split in ("dev", "test")]
        rows = [self._row(name, found, measure, sizes) for name in self.rows()]
        notes = (self._budget(found), SOURCE) if in_words else (self._budget(found),)
        title = f"Table 2: {measure.replace('_', ' ')} of language models, {self.preset} scale"
        return [Table(self.stem, title, "attention", tuple(columns), tuple(rows), notes)]

    def _row(self, name: str, found: Sequence[Result], measure: str, sizes: Sequence[Size]) -> Row:
        values: list[Value | None] = []
        for size in SIZES[self.preset]:
            own = [r for r in found if (r.labels["size"], r.labels["attention"]) == (size, name)]
            values += [Value.of([r.metrics[f"{split}_{measure}"] for r in own]) for split in ("validation", "test")]
            rises = [r.details["largest_rise"] for r in own if "largest_rise" in r.details]  # early cells have none
            values.append(Value(max(rises)) if rises else None)
            values.append(Value(own[0].parameters / 1e6) if own else None)
        for paper_size in sizes:
            printed = PERPLEXITY.get(name, {}).get(paper_size)
            values += [None, None] if printed is None else [Value.printed(pair) for pair in printed]
        return Row(name, tuple(values))

    def _budget(self, found: Sequence[Result]) -> str:
        parts = []
        for size in SIZES[self.preset]:
            options = presets.load_language(size)
            blocks = f"{options.training.batch_size} blocks of {options.data.length} tokens"
            parts.append(f"{options.training.steps:,} steps of {blocks} ({size})")
        if scored := SCORED.get((self.preset, self.corpus)):
            parts.append(f"scored on the first {scored:,} blocks of validation and test data")
        seeds = sorted({result.seed for result in found})
        shown = f"seeds {', '.join(map(str, seeds))}; " if seeds else ""
        return (
            f"Equal for all: {', '.join(parts)}; {shown}mean ± standard deviation where there are several, "
            "an empty cell was not run. The largest rise is that of the training loss above the mean of the five "
            "entries of the log before it, in nats, in any run: a large one would be a sign of instability."
        )


def largest_rise(losses: Sequence[float]) -> float:
    """How far a loss ever was above the mean of the five before it; 0 if it never was."""
    return max([0.0, *(loss - mean(losses[i - 5 : i]) for i, loss in enumerate(losses) if i >= 5)])
