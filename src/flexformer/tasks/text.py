"""Text: is a film review good or bad? IMDb, read byte by byte."""

from __future__ import annotations

import json
import os
from collections.abc import Iterator
from pathlib import Path

import numpy as np

from flexformer.tasks.arrays import Ragged, Selection
from flexformer.tasks.base import Examples, Padding, Split, Task
from flexformer.tasks.errors import CorruptDataError, MissingDataError
from flexformer.tasks.hub import load_split
from flexformer.tasks.progress import Progress, silent

_SENTIMENTS = ("neg", "pos")


class Text(Task):
    """IMDb reviews as UTF-8 bytes, id = byte + 1; the label is 1 for a good review.

    Args:
        root: The folder data lives in; default $FLEXFORMER_DATA, else ~/.cache/flexformer/data.
        max_length: Bytes read of a review; the paper's 4000.
        holdout: Share of the training reviews set aside for validation. 0, as in the original code: the test set
            serves for validation too, so a checkpoint must not be chosen by it.
        source: A Hugging Face `datasets` id such as "stanfordnlp/imdb" instead of files under the root.
        pad_to: Batches are padded to their longest sequence, or all to max_length.
    """

    name = "text"
    title = "Text"
    num_classes = 2
    paper_length = 4000
    vocab_size = 257
    question = "Is this film review good or bad?"
    origin = "IMDb reviews, aclImdb_v1.tar.gz from https://ai.stanford.edu/~amaas/data/sentiment/"

    def __init__(
        self,
        root: str | os.PathLike[str] | None = None,
        *,
        max_length: int = 4000,
        holdout: float = 0.0,
        source: str | None = None,
        pad_to: Padding = "longest",
    ) -> None:
        super().__init__(root, max_length=max_length, pad_to=pad_to)
        if not 0 <= holdout < 1:
            raise ValueError(f"holdout {holdout} is not a share of the training reviews; use 0 up to, not including, 1")
        self.holdout = holdout
        self.source = source

    def prepare(self, progress: Progress = silent, *, workers: int | None = None) -> None:
        if self.source is None:
            self._found()
        else:
            for split in ("train", "test"):
                load_split(self.source, split, ("text", "label"))

    def files(self) -> tuple[Path, ...]:
        folder = self.root / "aclImdb"
        if all((folder / split / sentiment).is_dir() for split in ("train", "test") for sentiment in _SENTIMENTS):
            return (folder / "train", folder / "test")
        lines = tuple(self.root / "imdb" / f"{split}.jsonl" for split in ("train", "test"))
        return lines if all(path.is_file() for path in lines) else ()

    def examples(self, split: Split) -> Examples:
        if split == "test" or (split == "validation" and self.holdout == 0):
            return self._read("test")
        everything = self._read("train")
        if self.holdout == 0:
            return everything
        rows = _split_off(everything.labels, self.holdout)[split == "validation"]
        reviews = everything.inputs[0]
        assert isinstance(reviews, Ragged)
        return Examples((Selection(reviews, rows),), everything.labels[rows], shift=1)

    def layout(self) -> tuple[str, ...]:
        return (
            "aclImdb/{train,test}/{pos,neg}/*.txt, the archive as it unpacks",
            'imdb/{train,test}.jsonl with {"text": ..., "label": 0 or 1} on each line',
        )

    def notes(self) -> tuple[str, ...]:
        if self.holdout:
            return (f"{self.holdout:.0%} of the training reviews are held out for validation",)
        return ("validation is the test set, as in the original code: report the last step, or set holdout=0.1",)

    def _found(self) -> tuple[Path, ...]:
        if files := self.files():
            return files
        raise MissingDataError(
            f"IMDb is not in {self.root}: get aclImdb_v1.tar.gz from https://ai.stanford.edu/~amaas/data/sentiment/ "
            f"and unpack it there, so that {self.root / 'aclImdb' / 'train' / 'pos'} has text files, or put "
            f"train.jsonl and test.jsonl into {self.root / 'imdb'}, or use source='stanfordnlp/imdb'"
        )

    def _read(self, split: str) -> Examples:
        if self.source is not None:
            rows = load_split(self.source, split, ("text", "label"))
            pairs = zip(rows["text"], rows["label"], strict=True)
            return _encode(((text.encode(), int(label)) for text, label in pairs), self.source)
        path = next(file for file in self._found() if file.name.partition(".")[0] == split)
        return _encode(_from_folder(path) if path.is_dir() else _from_lines(path), str(path))


def _encode(reviews: Iterator[tuple[bytes, int]], where: str) -> Examples:
    texts: list[bytes] = []
    labels: list[int] = []
    for text, label in reviews:
        if label not in (0, 1):
            raise CorruptDataError(f"{where} has the label {label}; 0 (bad) and 1 (good) are expected")
        texts.append(text)
        labels.append(label)
    if not texts:
        raise CorruptDataError(f"{where} has no reviews")
    return Examples((Ragged.join(texts),), np.array(labels, np.uint8), shift=1)


def _from_folder(folder: Path) -> Iterator[tuple[bytes, int]]:
    for label, sentiment in enumerate(_SENTIMENTS):
        for path in sorted((folder / sentiment).glob("*.txt")):
            yield path.read_bytes(), label


def _from_lines(path: Path) -> Iterator[tuple[bytes, int]]:
    with path.open("rb") as file:
        for number, line in enumerate(file, start=1):
            try:
                row = json.loads(line.decode())
                yield row["text"].encode(), int(row["label"])
            except (ValueError, KeyError, TypeError, AttributeError, OverflowError, RecursionError) as error:
                raise CorruptDataError(
                    f'{path}, line {number} is not {{"text": ..., "label": 0 or 1}}; get the file again'
                ) from error


def _split_off(labels: np.ndarray, share: float) -> tuple[np.ndarray, np.ndarray]:
    """Rows to keep and rows to set aside, the same share of each label, always the same ones."""
    rng = np.random.default_rng(0)
    aside = [rng.permutation(np.flatnonzero(labels == label)) for label in np.unique(labels)]
    chosen = np.sort(np.concatenate([rows[: round(share * len(rows))] for rows in aside]))
    return np.setdiff1d(np.arange(len(labels)), chosen), chosen
