"""Retrieval: does one paper cite the other? The AAN pairs of the benchmark, read byte by byte."""

from __future__ import annotations

import mmap
import os
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np

from flexformer.tasks.arrays import Ragged
from flexformer.tasks.base import Examples, Padding, Split, Task
from flexformer.tasks.errors import CorruptDataError, MissingDataError
from flexformer.tasks.hub import load_split
from flexformer.tasks.progress import Progress, silent

_FILES: dict[Split, str] = {
    "train": "new_aan_pairs.train.tsv",
    "validation": "new_aan_pairs.eval.tsv",
    "test": "new_aan_pairs.test.tsv",
}
_FOLDERS = ("aan", "tsv_data", "lra_release/tsv_data", "lra_release/lra_release/tsv_data")
_TEXT_BYTES = 10_000  # the original cuts texts here before it looks at max_length
_LABELS = {b"0": 0, b"1": 1, b"0.0": 0, b"1.0": 1}


class Retrieval(Task):
    """Pairs of papers as UTF-8 bytes, id = byte + 1; the label is 1 if one cites the other.

    Args:
        root: The folder data lives in; default $FLEXFORMER_DATA, else ~/.cache/flexformer/data.
        max_length: Bytes read of each document.
        source: A Hugging Face `datasets` id with columns text1, text2 and label instead of files under the root.
        pad_to: Batches are padded to their longest sequence, or all to max_length.
    """

    name = "retrieval"
    title = "Retrieval"
    kind = "pair"
    num_classes = 2
    paper_length = 4000
    vocab_size = 257
    question = "Does one of these two papers cite the other?"
    origin = "ACL Anthology Network pairs, in lra_release.gz of https://github.com/google-research/long-range-arena"

    def __init__(
        self,
        root: str | os.PathLike[str] | None = None,
        *,
        max_length: int = 4000,
        source: str | None = None,
        pad_to: Padding = "longest",
    ) -> None:
        super().__init__(root, max_length=max_length, pad_to=pad_to)
        self.source = source

    def prepare(self, progress: Progress = silent, *, workers: int | None = None) -> None:
        if self.source is None:
            self._found()
        else:
            for split in _FILES:
                load_split(self.source, split, ("text1", "text2", "label"))

    def files(self) -> tuple[Path, ...]:
        for folder in _FOLDERS:
            paths = tuple(self.root / folder / name for name in _FILES.values())
            if all(path.is_file() for path in paths):
                return paths
        return ()

    def examples(self, split: Split) -> Examples:
        if self.source is not None:
            rows = load_split(self.source, split, ("text1", "text2", "label"))
            texts = [Ragged.join(text.encode()[:_TEXT_BYTES] for text in rows[name]) for name in ("text1", "text2")]
            return Examples((texts[0], texts[1]), np.array(rows["label"], np.uint8), shift=1)
        path = next(path for path in self._found() if path.name == _FILES[split])
        table = PairTable.index(path)
        return Examples((Column(table, 3), Column(table, 4)), table.labels, shift=1)

    def layout(self) -> tuple[str, ...]:
        names = "new_aan_pairs.{train,eval,test}.tsv"
        return tuple(f"{folder}/{names}" for folder in _FOLDERS[:1] + _FOLDERS[2:3])

    def notes(self) -> tuple[str, ...]:
        return ("where AAN cannot be had, the task `articles` goes the same way through the two towers",)

    def _found(self) -> tuple[Path, ...]:
        if files := self.files():
            return files
        raise MissingDataError(
            f"the AAN pairs are not in {self.root}: get lra_release.gz (7.7 GB) as "
            "https://github.com/google-research/long-range-arena says and put new_aan_pairs.train.tsv, "
            f"new_aan_pairs.eval.tsv and new_aan_pairs.test.tsv into {self.root / 'aan'}; without them, the task "
            "`articles` exercises the same model"
        )


@dataclass
class PairTable:
    """A TSV file of pairs: label, id, id, text, text; neither header nor quotes. Lines are read when asked for.

    Args:
        path: The file; the train one has gigabytes.
        offsets: (N + 1,) where lines begin, and where the last one ends.
        labels: (N,) uint8.
    """

    path: Path
    offsets: np.ndarray
    labels: np.ndarray
    _bytes: mmap.mmap | None = field(default=None, repr=False)

    @classmethod
    def index(cls, path: Path) -> PairTable:
        """Go through the file once."""
        if path.stat().st_size == 0:
            raise CorruptDataError(f"{path} is empty; get the file again")
        offsets, labels = [0], bytearray()
        with path.open("rb") as file, mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_READ) as content:
            while (start := offsets[-1]) < len(content):
                end = content.find(b"\n", start)
                offsets.append(len(content) if end < 0 else end + 1)
                label = _LABELS.get(content[start : start + 4].partition(b"\t")[0])
                if label is None:
                    raise CorruptDataError(f"{path}, line {len(offsets) - 1} does not begin with 0 or 1 and a tab")
                labels.append(label)
        return cls(path, np.array(offsets, np.int64), np.frombuffer(bytes(labels), np.uint8))

    def __len__(self) -> int:
        return len(self.labels)

    def cell(self, row: int, column: int) -> bytes:
        """One field of one line."""
        if self._bytes is None:
            with self.path.open("rb") as file:
                self._bytes = mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_READ)
        fields = self._bytes[self.offsets[row] : self.offsets[row + 1]].rstrip(b"\r\n").split(b"\t")
        if len(fields) != 5:
            raise CorruptDataError(f"{self.path}, line {row + 1} has {len(fields)} columns instead of 5")
        return fields[column]

    def __getstate__(self) -> dict[str, Any]:
        return self.__dict__ | {"_bytes": None}  # each process of a data loader maps the file itself


@dataclass
class Column:
    """One column of texts.

    Args:
        table: Where it is.
        number: Which one, from 0.
    """

    table: PairTable
    number: int

    def __len__(self) -> int:
        return len(self.table)

    def __getitem__(self, index: int) -> np.ndarray:
        return np.frombuffer(self.table.cell(index, self.number)[:_TEXT_BYTES], np.uint8)
