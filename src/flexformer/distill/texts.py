"""Text to distil on: files, folders, GLUE tasks or `datasets` ids, cut into token sequences."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Any

import numpy as np
from transformers import PreTrainedTokenizerBase

from ..tasks import CorruptDataError, MissingDataError, Split
from ..tasks.glue import Glue
from ..tasks.hub import load_split
from .options import GLUE_PREFIX, TextOptions
from .sequences import SequenceDataset, encode, rows_of

AT_ONCE = 512

Progress = Callable[[int], None]
"""Told from time to time how many paragraphs have been read."""


class Texts:
    """Sequences of one source: a part of it for training, one for validation and one for tests.

    Paragraphs are what stands between blank lines; in a file without any, lines. One that is longer than `max_length`
    tokens becomes several sequences; sequences shorter than `min_length` are left out. GLUE examples are encoded as in
    fine-tuning, and its validation part is held out of the training set as there: the dev set is for results.

    Args:
        source: A text file, a folder with .txt files, "glue:TASK", or a `datasets` id with a column "text".
        options: Lengths and limits.
        tokenizer: The model's.
        start_token: Put before sequences that do not begin with it, as language models expect; None for others.
        test_limit: Test on this many sequences; default as many as validation may have.
    """

    def __init__(
        self,
        source: str,
        options: TextOptions,
        tokenizer: PreTrainedTokenizerBase,
        start_token: int | None = None,
        test_limit: int | None = None,
    ) -> None:
        self.source, self.options, self.tokenizer, self.start_token = source, options, tokenizer, start_token
        self.test_limit = test_limit
        self._made: dict[str, SequenceDataset] = {}

    def dataset(self, split: Split, progress: Progress = lambda done: None) -> SequenceDataset:
        """The sequences of a split."""
        if split not in self._made:
            rows = self._rows(split, progress)
            if not rows:
                raise CorruptDataError(
                    f"text {self.source} has no {split} sequence of {self.options.min_length} tokens or more; name "
                    "more text or lower data.min_length"
                )
            self._made[split] = SequenceDataset([row | {"labels": len(row["input_ids"])} for row in rows])
        return self._made[split]

    def _rows(self, split: Split, progress: Progress) -> list[dict[str, Any]]:
        limit = self.options.limit("validation" if split == "test" else split)
        if split == "test" and self.test_limit is not None:
            limit = self.test_limit
        if self.source.startswith(GLUE_PREFIX):
            glue = Glue(
                self.source.removeprefix(GLUE_PREFIX), self.options.root, source=self.options.source, select="holdout"
            )
            examples = glue.examples(split, limit)
            return [self._started(row) for row in encode(self.tokenizer, examples.sentences, self.options.max_length)]
        apart = self.options.validation
        if apart is None:
            found = paragraphs(self.source)
            if len(found) < 3:
                raise CorruptDataError(
                    f"text {self.source} has {len(found)} paragraph{'s' * (len(found) != 1)}, too few to hold some "
                    "out; separate paragraphs by blank lines, or name other text as data.validation"
                )
            order = np.random.default_rng(0).permutation(len(found))
            held = max(1, round(self.options.holdout * len(found)))
            chosen = {"validation": order[:held], "train": order[held:-held], "test": order[-held:]}[split]
        else:
            found = paragraphs(self.source if split == "train" else apart)
            chosen = np.random.default_rng(0).permutation(len(found))
        return self._windows([found[i] for i in chosen], limit, progress)

    def _windows(self, texts: Sequence[str], limit: int | None, progress: Progress) -> list[dict[str, Any]]:
        rows: list[dict[str, Any]] = []
        for start in range(0, len(texts), AT_ONCE):
            if limit is not None and len(rows) >= limit:
                break
            found = self.tokenizer(
                list(texts[start : start + AT_ONCE]),
                truncation=True,
                max_length=self.options.max_length - self._missing_start,
                return_overflowing_tokens=True,
            )
            rows += [row for row in rows_of(found) if len(row["input_ids"]) >= self.options.min_length]
            progress(start + AT_ONCE)
        return [self._started(row) for row in rows[:limit]]

    @property
    def _missing_start(self) -> int:
        """Room that sequences need for a start token the tokenizer does not put there."""
        return int(self.start_token is not None and self.tokenizer("a").input_ids[:1] != [self.start_token])

    def _started(self, row: dict[str, Any]) -> dict[str, Any]:
        ids = row["input_ids"]
        if self.start_token is None or ids[0] == self.start_token:
            return row
        added = {"input_ids": self.start_token, "attention_mask": 1, "token_type_ids": 0}
        return {name: [added[name], *values][: self.options.max_length] for name, values in row.items()}


def paragraphs(source: str) -> list[str]:
    """The paragraphs of a file, of a folder's .txt files in order, or of the training split of a `datasets` id.

    A folder without .txt files is left to `datasets`, which reads JSONL, CSV and Parquet.

    Raises:
        MissingDataError: There is no such text.
    """
    path = Path(source).expanduser()
    if path.is_file():
        return _split_file(path)
    if files := sorted(path.rglob("*.txt")):
        return [paragraph for file in files for paragraph in _split_file(file)]
    if not path.is_dir() and (path.is_absolute() or path.suffix == ".txt" or source.startswith(".")):
        raise MissingDataError(f"text {source} is not there; name a text file, a folder, glue:TASK or a datasets id")
    if path.is_dir() and not any(path.rglob("*.*")):
        raise MissingDataError(f"text {source} is an empty folder; put .txt files there, or name a file")
    rows = load_split(source, "train", ["text"])
    return [paragraph for text in rows["text"] for paragraph in _split(text)]


def _read(path: Path) -> str:
    try:
        return path.read_text(encoding="utf-8")
    except UnicodeDecodeError as error:
        raise CorruptDataError(f"{path} is not UTF-8 text: {error.reason} at byte {error.start}") from error


def _split_file(path: Path) -> list[str]:
    found = list(_split(_read(path)))
    return found if len(found) > 1 else [line for paragraph in found for line in paragraph.splitlines()]


def _split(text: str) -> Iterator[str]:
    lines: list[str] = []
    for line in (*text.splitlines(), ""):
        if line.strip():
            lines.append(line.strip())
        elif lines:
            yield "\n".join(lines)
            lines = []
