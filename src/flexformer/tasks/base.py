"""The contract of a task, and what all tasks share: datasets of token ids, padding, accuracy."""

from __future__ import annotations

import abc
import os
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, ClassVar, Literal, Protocol, TypeAlias, get_args

import numpy as np
import torch
from torch import Tensor
from torch.utils.data import Dataset

from flexformer.tasks import paper
from flexformer.tasks.description import TaskDescription
from flexformer.tasks.progress import Progress, silent

Split: TypeAlias = Literal["train", "validation", "test"]
Kind: TypeAlias = Literal["classification", "pair"]
Padding: TypeAlias = Literal["longest", "max_length"]

SPLITS: tuple[Split, ...] = get_args(Split)
PAD = 0


def data_root(root: str | os.PathLike[str] | None = None) -> Path:
    """The folder data lives in: `root`, else $FLEXFORMER_DATA, else flexformer/data in the user's cache."""
    if root is not None:
        return Path(root).expanduser()
    if named := os.environ.get("FLEXFORMER_DATA"):
        return Path(named).expanduser()
    cache = os.environ.get("XDG_CACHE_HOME") or "~/.cache"
    return Path(cache).expanduser() / "flexformer" / "data"


class Sequences(Protocol):
    """Sequences by number, each a one-dimensional array of small integers."""

    def __len__(self) -> int: ...

    def __getitem__(self, index: int, /) -> np.ndarray: ...


@dataclass(frozen=True)
class Examples:
    """The content of one split.

    Args:
        inputs: One set of sequences, or two of equal length for pairs.
        labels: One integer for each sequence or pair.
        shift: Added to every element to get its token id; 1 keeps id 0 for padding.
    """

    inputs: tuple[Sequences, ...]
    labels: np.ndarray
    shift: int


class TaskDataset(Dataset[dict[str, Any]]):
    """Examples as a map-style dataset.

    An item is {"input_ids": LongTensor (T,), "labels": int}, with "input_ids_2" too where `Task.kind` is "pair".
    """

    def __init__(self, examples: Examples, max_length: int, indices: np.ndarray | None = None) -> None:
        self.examples = examples
        self.max_length = max_length
        self.indices = indices

    def __len__(self) -> int:
        return len(self.examples.labels) if self.indices is None else len(self.indices)

    def __getitem__(self, index: int) -> dict[str, Any]:
        if not -len(self) <= index < len(self):
            raise IndexError(f"index {index} is outside a dataset of {len(self)} examples")
        row = range(len(self))[index] if self.indices is None else int(self.indices[index])
        first, *second = (self._ids(sequences[row]) for sequences in self.examples.inputs)
        item: dict[str, Any] = {"input_ids": first}
        if second:
            item["input_ids_2"] = second[0]
        item["labels"] = int(self.examples.labels[row])
        return item

    @property
    def labels(self) -> np.ndarray:
        """Labels of all examples, in order (N,)."""
        return self.examples.labels if self.indices is None else self.examples.labels[self.indices]

    def _ids(self, sequence: np.ndarray) -> Tensor:
        return torch.from_numpy(sequence[: self.max_length].astype(np.int64)).add_(self.examples.shift)


class Task(abc.ABC):
    """One benchmark task, tied to a folder of data.

    `prepare()` makes sure the data is there, `dataset(split)` reads it, `collate` makes batches of its items,
    `metrics` scores logits and `describe()` tells the facts.

    Args:
        root: The folder data lives in; default $FLEXFORMER_DATA, else ~/.cache/flexformer/data.
        max_length: Tokens per sequence; default the paper's.
        pad_to: Batches are padded to their longest sequence, or all to max_length.
    """

    name: ClassVar[str]
    title: ClassVar[str]
    question: ClassVar[str]
    origin: ClassVar[str]  # where the data comes from
    kind: ClassVar[Kind] = "classification"
    num_classes: ClassVar[int]
    paper_length: ClassVar[int]
    generated: ClassVar[bool] = False  # made by `prepare`; otherwise the user brings the files
    vocab_size: int

    def __init__(
        self,
        root: str | os.PathLike[str] | None = None,
        *,
        max_length: int | None = None,
        pad_to: Padding = "longest",
    ) -> None:
        if pad_to not in get_args(Padding):
            raise ValueError(f"pad_to {pad_to!r} is unknown; use one of {', '.join(get_args(Padding))}")
        self.root = data_root(root)
        self.max_length = self.paper_length if max_length is None else max_length
        self.pad_to = pad_to
        if self.max_length < 1:
            raise ValueError(f"max_length {self.max_length} leaves nothing to read; use 1 or more")

    @abc.abstractmethod
    def prepare(self, progress: Progress = silent, *, workers: int | None = None) -> None:
        """Make the data ready: generate it unless it is there already, or see that the user's files are.

        Args:
            progress: Called as progress(done, total) while work goes on.
            workers: Processes that generate; default one for each core. The bytes do not depend on it.

        Raises:
            MissingDataError: Files the user has to bring are absent.
            CorruptDataError: Files are there and damaged.
        """

    @abc.abstractmethod
    def files(self) -> tuple[Path, ...]:
        """The files the data is read from, empty as long as they are not all there."""

    @abc.abstractmethod
    def examples(self, split: Split) -> Examples:
        """All examples of a split, before cutting to max_length."""

    @abc.abstractmethod
    def layout(self) -> tuple[str, ...]:
        """The files looked for, relative to the root, one line for each accepted form."""

    def notes(self) -> tuple[str, ...]:
        """What differs from the original benchmark, and why."""
        return ()

    def describe(self) -> TaskDescription:
        """The facts: sizes, source, settings, the paper's results."""
        row = paper.dataset_row(self.name)
        return TaskDescription(
            name=self.name,
            title=self.title,
            kind=self.kind,
            question=self.question,
            vocab_size=self.vocab_size,
            num_classes=self.num_classes,
            max_length=self.max_length,
            source=self.origin,
            layout=self.layout(),
            paper_sizes=row.paper_sizes,
            true_sizes=row.true_sizes,
            paper_accuracy=paper.accuracy(self.name),
            official=paper.OFFICIAL.get(self.name),
            recommended=paper.RECOMMENDED.get(self.name),
            notes=self.notes(),
        )

    def dataset(self, split: Split, *, max_length: int | None = None, limit: int | None = None) -> TaskDataset:
        """A split as a map-style dataset of {"input_ids": LongTensor (T,), "labels": int} (pairs: "input_ids_2" too).

        Args:
            split: "train", "validation" or "test".
            max_length: Cut sequences to this many tokens; default the task's own. Not above it.
            limit: Keep only so many examples, drawn without regard to labels and always the same ones.
        """
        if split not in SPLITS:
            raise ValueError(f"split {split!r} is unknown; use one of {', '.join(SPLITS)}")
        length = self.max_length if max_length is None else max_length
        if not 1 <= length <= self.max_length:
            raise ValueError(f"max_length {length} is not in 1..{self.max_length}, which {self.name} was built with")
        if length < self.max_length:
            self._check_cut(length)
        if limit is not None and limit < 1:
            raise ValueError(f"limit {limit} leaves no examples; use 1 or more, or None for all")
        examples = self.examples(split)
        indices = None
        if limit is not None and limit < len(examples.labels):
            # Files may be sorted by label, so the first ones would not do.
            indices = np.random.default_rng(0).permutation(len(examples.labels))[:limit]
        return TaskDataset(examples, length, indices)

    def collate(self, examples: Sequence[Mapping[str, Any]]) -> dict[str, Tensor]:
        """Items of a dataset as one batch.

        Returns:
            input_ids (B, T) padded with 0, key_mask (B, T) that is True at tokens, labels (B,); for pairs
            input_ids_2 and key_mask_2 (B, T2) too.
        """
        batch: dict[str, Tensor] = {}
        for suffix in ("", "_2") if self.kind == "pair" else ("",):
            ids = self._pad([example[f"input_ids{suffix}"] for example in examples])
            batch[f"input_ids{suffix}"] = ids
            batch[f"key_mask{suffix}"] = ids != PAD
        batch["labels"] = torch.tensor([int(example["labels"]) for example in examples])
        return batch

    def metrics(self, logits: Tensor | np.ndarray, labels: Tensor | np.ndarray) -> dict[str, float]:
        """{"accuracy": share of rows whose largest logit (B, num_classes) is at the label (B,)}."""
        predictions = torch.as_tensor(logits).argmax(dim=-1)
        expected = torch.as_tensor(labels)
        if predictions.shape != expected.shape:
            raise ValueError(
                f"logits for examples {tuple(predictions.shape)} do not fit labels {tuple(expected.shape)}"
            )
        return {"accuracy": (predictions == expected).double().mean().item()}

    def _check_cut(self, length: int) -> None:  # noqa: B027  (most tasks may be cut)
        """Raise if examples mean nothing once they are cut to fewer than max_length tokens."""

    def _pad(self, sequences: Sequence[Tensor]) -> Tensor:
        if not sequences:
            raise ValueError("collate needs at least one example")
        longest = max(1, max(len(sequence) for sequence in sequences))  # an empty text is one pad
        width = self.max_length if self.pad_to == "max_length" else longest
        ids = torch.full((len(sequences), width), PAD, dtype=torch.long)
        for row, sequence in zip(ids, sequences, strict=True):
            row[: len(sequence)] = sequence
        return ids
