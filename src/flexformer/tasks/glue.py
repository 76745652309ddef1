"""GLUE: eight tasks of one or two sentences each, read from the original TSV files or through `datasets`."""

from __future__ import annotations

import os
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from difflib import get_close_matches
from pathlib import Path
from typing import BinaryIO, Literal, TypeAlias, get_args

import numpy as np

from flexformer.tasks.base import SPLITS, Split, data_root
from flexformer.tasks.correlation import matthews, pearson, spearman
from flexformer.tasks.errors import CorruptDataError, MissingDataError
from flexformer.tasks.hub import load_split

Metric: TypeAlias = Literal["matthews", "correlation", "accuracy"]
Selection: TypeAlias = Literal["holdout", "dev"]

HOLDOUT = 0.1
LARGEST_HOLDOUT = 2000
HIGHEST_SCORE = 5.0  # of STS-B, whose labels are used as shares of it


@dataclass(frozen=True)
class GlueTask:
    """What is particular to one of the tasks.

    Args:
        name: As commands take it.
        title: As in tables, and the name of its folder.
        sentences: Columns of the sentence or the two of them.
        label: Column of the label.
        hub_sentences: The same columns in the `datasets` version, where they differ.
        classes: Labels in the order of their numbers; empty for STS-B, which has a score.
        metric: What is reported.
        dev: The file that is reported on, and the split's name in the `datasets` version.
        header: Column names of files that come without; CoLA alone.
        drops_broken_lines: Leave lines with too many or too few fields out, as in QQP, instead of stopping there.
    """

    name: str
    title: str
    sentences: tuple[str, ...]
    label: str
    classes: tuple[str, ...]
    hub_sentences: tuple[str, ...] = ()
    metric: Metric = "accuracy"
    dev: tuple[str, str] = ("dev", "validation")
    header: tuple[str, ...] = ()
    drops_broken_lines: bool = False

    @property
    def outputs(self) -> int:
        """How many numbers a model gives for an example."""
        return max(1, len(self.classes))

    @property
    def selected_by(self) -> tuple[str, bool]:
        """The validation metric that the best weights are known by, and whether more of it is better."""
        return ("accuracy", True) if self.classes else ("loss", False)

    def metrics(self, logits: np.ndarray, labels: np.ndarray) -> dict[str, float]:
        """What outputs (N, outputs) are worth; "score" is the one that is reported."""
        logits, labels = np.asarray(logits), np.asarray(labels)
        if not self.classes:
            guessed = logits.reshape(len(labels))
            found = {"pearson": pearson(guessed, labels), "spearman": spearman(guessed, labels)}
            return {"score": (found["pearson"] + found["spearman"]) / 2, **found}
        chosen = logits.argmax(-1)
        accuracy = float(np.mean(chosen == labels))
        if self.metric == "matthews":
            return {"score": matthews(chosen, labels), "accuracy": accuracy}
        return {"score": accuracy, "accuracy": accuracy}


_PAIR = ("sentence1", "sentence2")
_ENTAILS = ("entailment", "not_entailment")
_TASKS = (
    GlueTask(
        "cola",
        "CoLA",
        ("sentence",),
        "label",
        ("0", "1"),
        metric="matthews",
        header=("source", "label", "mark", "sentence"),
    ),
    GlueTask("sst2", "SST-2", ("sentence",), "label", ("0", "1")),
    GlueTask("mrpc", "MRPC", ("#1 String", "#2 String"), "Quality", ("0", "1"), hub_sentences=_PAIR),
    GlueTask("stsb", "STS-B", _PAIR, "score", (), metric="correlation"),
    GlueTask("qqp", "QQP", ("question1", "question2"), "is_duplicate", ("0", "1"), drops_broken_lines=True),
    GlueTask(
        "mnli",
        "MNLI",
        _PAIR,
        "gold_label",
        ("entailment", "neutral", "contradiction"),
        hub_sentences=("premise", "hypothesis"),
        dev=("dev_matched", "validation_matched"),
    ),
    GlueTask("qnli", "QNLI", ("question", "sentence"), "label", _ENTAILS),
    GlueTask("rte", "RTE", _PAIR, "label", _ENTAILS),
)
TASKS = {task.name: task for task in _TASKS}
"""In the order of the paper's table."""


def find(name: str) -> GlueTask:
    """A task by its name."""
    if name not in TASKS:
        near = get_close_matches(name, TASKS, n=1)
        hint = f", did you mean {near[0]!r}?" if near else ""
        raise ValueError(f"GLUE task {name!r} is unknown{hint}; use one of {', '.join(TASKS)}")
    return TASKS[name]


@dataclass(frozen=True)
class GlueExamples:
    """One split as text.

    Args:
        sentences: The first sentences, and for pairs the second ones.
        labels: (N,) class numbers, or for STS-B scores between 0 and 1.
    """

    sentences: tuple[Sequence[str], ...]
    labels: np.ndarray

    def __len__(self) -> int:
        return len(self.labels)

    def take(self, rows: np.ndarray) -> GlueExamples:
        """Some of the examples."""
        return GlueExamples(tuple([side[i] for i in rows] for side in self.sentences), self.labels[rows])


class Glue:
    """The examples of one task.

    GLUE keeps the labels of its test sets, so the dev set is what results are reported on. By default weights are not
    chosen by it: a tenth of the training set, at most 2000 examples, is held out for that.

    Args:
        name: One of `TASKS`.
        root: The folder data lives in; default $FLEXFORMER_DATA, else ~/.cache/flexformer/data. The task's folder is in
            it or in its folder "glue", with train.tsv and dev.tsv as GLUE's download has them.
        source: A `datasets` id with GLUE's layout, "nyu-mll/glue", instead of files.
        select: "holdout": validation is held out of the training set. "dev": validation is the dev set too, as in
            fairseq's recipe, and training has all of its examples.
    """

    def __init__(
        self,
        name: str,
        root: str | os.PathLike[str] | None = None,
        *,
        source: str | None = None,
        select: Selection = "holdout",
    ) -> None:
        self.task = find(name)
        self.root = data_root(root)
        self.source = source
        if select not in get_args(Selection):
            raise ValueError(f"select {select!r} is unknown; use holdout or dev")
        self.select = select

    def examples(self, split: Split, limit: int | None = None) -> GlueExamples:
        """A split: "train", "validation", or "test", which is GLUE's dev set.

        Args:
            split: Which.
            limit: Keep only so many, drawn without regard to labels and always the same ones.
        """
        if split not in SPLITS:
            raise ValueError(f"split {split!r} is unknown; use one of {', '.join(SPLITS)}")
        if limit is not None and limit < 1:
            raise ValueError(f"limit {limit} leaves no examples; use 1 or more, or None for all")
        if split == "test" or (split == "validation" and self.select == "dev"):
            found = self._read("dev")
        else:
            found = self._read("train")
            if self.select == "holdout":
                found = found.take(held_out(found.labels, bool(self.task.classes))[split == "validation"])
        if limit is not None and limit < len(found):
            found = found.take(np.random.default_rng(0).permutation(len(found))[:limit])
        return found

    def _read(self, which: Literal["train", "dev"]) -> GlueExamples:
        if self.source is not None:
            return self._from_hub(which)
        file = "train" if which == "train" else self.task.dev[0]
        places = [folder / self.task.title / f"{file}.tsv" for folder in (self.root / "glue", self.root)]
        path = next((place for place in places if place.is_file()), None)
        if path is None:
            raise MissingDataError(
                f"{self.task.title} is not in {self.root}: {places[0]} is missing; get GLUE from "
                "https://gluebenchmark.com and unpack it there, or name a datasets id, nyu-mll/glue, as the source"
            )
        return self._encoded(_rows(path, self.task), str(path))

    def _from_hub(self, which: Literal["train", "dev"]) -> GlueExamples:
        assert self.source is not None
        split = "train" if which == "train" else self.task.dev[1]
        columns = self.task.hub_sentences or self.task.sentences
        rows = load_split(f"{self.source}:{self.task.name}", split, (*columns, "label"))
        sides = tuple(list(rows[column]) for column in columns)
        if self.task.classes:
            return GlueExamples(sides, np.asarray(rows["label"], np.int64))
        return GlueExamples(sides, np.asarray(rows["label"], np.float32) / HIGHEST_SCORE)

    def _encoded(self, rows: Iterator[tuple[list[str], str]], where: str) -> GlueExamples:
        numbers = {label: i for i, label in enumerate(self.task.classes)}
        sides: list[list[str]] = [[] for _ in self.task.sentences]
        labels: list[float] = []
        for sentences, label in rows:
            try:
                labels.append(numbers[label] if numbers else float(label) / HIGHEST_SCORE)
            except (KeyError, ValueError):
                right = " or ".join(self.task.classes) or "a number"
                raise CorruptDataError(f"{where} has the label {label!r}; it should be {right}") from None
            for side, sentence in zip(sides, sentences, strict=True):
                side.append(sentence)
        if not labels:
            raise CorruptDataError(f"{where} has no examples")
        return GlueExamples(tuple(sides), np.asarray(labels, np.int64 if numbers else np.float32))


def _rows(path: Path, task: GlueTask) -> Iterator[tuple[list[str], str]]:
    """Sentences and label of every line. Quotation marks are text: GLUE's files do not quote."""
    with path.open("rb") as content:
        file = _decoded(content, path)
        header = list(task.header) or next(file, "").rstrip("\r\n").split("\t")
        for column in (*task.sentences, task.label):
            if column not in header:
                raise CorruptDataError(f"{path} has the columns {', '.join(header)}; {column!r} is needed")
        sentences, label = [header.index(column) for column in task.sentences], header.index(task.label)
        for number, line in enumerate(file, start=1 if task.header else 2):
            fields = line.rstrip("\r\n").split("\t")
            if len(fields) == len(header):
                yield [fields[i] for i in sentences], fields[label]
            elif not task.drops_broken_lines:
                raise CorruptDataError(
                    f"{path}, line {number} has {len(fields)} fields instead of {len(header)}; get the file again"
                )


def _decoded(content: BinaryIO, path: Path) -> Iterator[str]:
    """Lines of UTF-8 text."""
    for number, line in enumerate(content, start=1):
        try:
            yield line.decode("utf-8-sig" if number == 1 else "utf-8")
        except UnicodeDecodeError:
            raise CorruptDataError(f"{path}, line {number} is not UTF-8; get the file again") from None


def held_out(labels: np.ndarray, by_class: bool) -> tuple[np.ndarray, np.ndarray]:
    """Rows to train on and rows to choose weights by: a tenth, at most 2000, always the same ones.

    Args:
        labels: (N,)
        by_class: Take the same share of each class.
    """
    rng = np.random.default_rng(0)
    share = min(HOLDOUT, LARGEST_HOLDOUT / max(len(labels), 1))
    groups = [np.flatnonzero(labels == label) for label in np.unique(labels)] if by_class else [np.arange(len(labels))]
    aside = np.sort(np.concatenate([rng.permutation(rows)[: int(share * len(rows))] for rows in groups]))
    return np.setdiff1d(np.arange(len(labels)), aside), aside
