"""Text to distil on: files, folders, GLUE tasks or `datasets` ids, cut into token sequences."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from itertools import chain
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
BLANK_LINE = "\n\n"
SEPARATE = "separate paragraphs by blank lines"
MOST_CHARACTERS = 16  # of a token, on the average of any text worth reading

Progress = Callable[[int], None]
"""Told from time to time how many paragraphs have been read."""


class Texts:
    """Sequences of one source: a part of it for training, one for validation and one for tests.

    Paragraphs are what stands between blank lines; in a file without any, lines. One that is longer than `max_length`
    tokens becomes several sequences; sequences shorter than `min_length` are left out. With `join` paragraphs of a
    document are put together first, and held out together. GLUE examples are encoded as in fine-tuning, and its
    validation part is held out of the training set as there: the dev set is for results.

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
        if options.join and source.startswith(GLUE_PREFIX):
            raise ValueError(f"data.join true does not fit text {source}, whose examples are read one by one")
        self.source, self.options, self.tokenizer, self.start_token = source, options, tokenizer, start_token
        self.test_limit = test_limit
        self._made: dict[str, SequenceDataset] = {}
        self._joined: dict[str, list[str]] = {}

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

    def stretches(self, length: int, count: int) -> list[dict[str, Any]]:
        """Up to `count` sequences of exactly `length` tokens of held-out text, whatever `max_length` is.

        Held-out paragraphs are put together in the order they have in the text; what lay between them is left out.
        """
        if self.source.startswith(GLUE_PREFIX):
            found = [sentence for pair in zip(*self._examples("validation", None), strict=True) for sentence in pair]
        else:
            texts, chosen = self._chosen("validation", lambda done: None)
            found = [texts[i] for i in sorted(chosen)]
        text = BLANK_LINE.join(found)[: MOST_CHARACTERS * length * count]
        rows = (self._started(row, length) for row in self._cut([text], length))
        return [row for row in rows if len(row["input_ids"]) == length][:count]

    def _rows(self, split: Split, progress: Progress) -> list[dict[str, Any]]:
        limit = self.options.limit("validation" if split == "test" else split)
        if split == "test" and self.test_limit is not None:
            limit = self.test_limit
        if self.source.startswith(GLUE_PREFIX):
            sentences = self._examples(split, limit)
            longest = self.options.max_length
            return [self._started(row, longest) for row in encode(self.tokenizer, sentences, longest)]
        found, chosen = self._chosen(split, progress)
        return self._windows([found[i] for i in chosen], limit, progress)

    def _examples(self, split: Split, limit: int | None) -> Sequence[Sequence[str]]:
        task = self.source.removeprefix(GLUE_PREFIX)
        glue = Glue(task, self.options.root, source=self.options.source, select="holdout")
        return glue.examples(split, limit).sentences

    def _chosen(self, split: Split, progress: Progress) -> tuple[list[str], np.ndarray]:
        """Texts that are read or held out as a whole, and which of them a split has, in random order."""
        apart = self.options.validation
        if apart is not None:
            found = self._texts(self.source if split == "train" else apart, progress)
            return found, np.random.default_rng(0).permutation(len(found))
        found = self._texts(self.source, progress)
        if len(found) < 3:
            remedy = f"lower data.max_length {self.options.max_length}" if self.options.join else SEPARATE
            what = f"{'joined ' * self.options.join}paragraph{'s' * (len(found) != 1)}"
            raise CorruptDataError(
                f"text {self.source} has {len(found)} {what}, too few to hold some out; {remedy}, or name other text "
                "as data.validation"
            )
        order = np.random.default_rng(0).permutation(len(found))
        held = max(1, round(self.options.holdout * len(found)))
        return found, {"validation": order[:held], "train": order[held:-held], "test": order[-held:]}[split]

    def _texts(self, source: str, progress: Progress) -> list[str]:
        if not self.options.join:
            return paragraphs(source)
        if source not in self._joined:
            self._joined[source] = list(self._join(documents(source), progress))
        return self._joined[source]

    def _join(self, found: Iterable[list[str]], progress: Progress) -> Iterator[str]:
        """Paragraphs of a document put together until one more would be too long."""
        room = self.options.max_length - self._missing_start - self.tokenizer.num_special_tokens_to_add()
        done = 0
        for document in found:
            together: list[str] = []
            used = 0
            for start in range(0, len(document), AT_ONCE):
                portion = document[start : start + AT_ONCE]
                counted = self.tokenizer(
                    [BLANK_LINE + paragraph for paragraph in portion], add_special_tokens=False, verbose=False
                )
                for paragraph, ids in zip(portion, counted["input_ids"], strict=True):
                    if together and used + len(ids) > room:
                        yield BLANK_LINE.join(together)
                        together, used = [], 0
                    together.append(paragraph)
                    used += len(ids)
                done += len(portion)
                progress(done)
            if together:
                yield BLANK_LINE.join(together)

    def _windows(self, texts: Sequence[str], limit: int | None, progress: Progress) -> list[dict[str, Any]]:
        rows: list[dict[str, Any]] = []
        for start in range(0, len(texts), AT_ONCE):
            if limit is not None and len(rows) >= limit:
                break
            found = self._cut(texts[start : start + AT_ONCE], self.options.max_length)
            rows += [row for row in found if len(row["input_ids"]) >= self.options.min_length]
            progress(start + AT_ONCE)
        return [self._started(row, self.options.max_length) for row in rows[:limit]]

    def _cut(self, texts: Sequence[str], length: int) -> list[dict[str, Any]]:
        """Sequences of at most `length` tokens, with the room that a start token needs."""
        found = self.tokenizer(
            list(texts), truncation=True, max_length=length - self._missing_start, return_overflowing_tokens=True
        )
        return rows_of(found)

    @property
    def _missing_start(self) -> int:
        """Room that sequences need for a start token the tokenizer does not put there."""
        return int(self.start_token is not None and self.tokenizer("a").input_ids[:1] != [self.start_token])

    def _started(self, row: dict[str, Any], longest: int) -> dict[str, Any]:
        ids = row["input_ids"]
        if self.start_token is None or ids[0] == self.start_token:
            return row
        added = {"input_ids": self.start_token, "attention_mask": 1, "token_type_ids": 0}
        return {name: [added[name], *values][:longest] for name, values in row.items()}


def paragraphs(source: str) -> list[str]:
    """The paragraphs of all documents, in order; see `documents`."""
    return list(chain.from_iterable(documents(source)))


def documents(source: str) -> list[list[str]]:
    """Paragraphs by document: a file, each of a folder's .txt files in order, or each row of a `datasets` id.

    A folder without .txt files is left to `datasets`, which reads JSONL, CSV and Parquet. Of a `datasets` id it is the
    training split.

    Raises:
        MissingDataError: There is no such text.
    """
    path = Path(source).expanduser()
    if path.is_file():
        return [_split_file(path)]
    if files := sorted(path.rglob("*.txt")):
        return [_split_file(file) for file in files]
    if not path.is_dir() and (path.is_absolute() or path.suffix == ".txt" or source.startswith(".")):
        raise MissingDataError(f"text {source} is not there; name a text file, a folder, glue:TASK or a datasets id")
    if path.is_dir() and not any(path.rglob("*.*")):
        raise MissingDataError(f"text {source} is an empty folder; put .txt files there, or name a file")
    rows = load_split(source, "train", ["text"])
    return [list(_split(text)) for text in rows["text"]]


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
