"""Text as token ids: the vocabulary of words, and files of ids built once."""

from __future__ import annotations

import itertools
from collections import Counter
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np

from flexformer.tasks.base import SPLITS, Split
from flexformer.tasks.cache import ArrayCache, partial_folder
from flexformer.tasks.corpus import Corpus, Text, Unit
from flexformer.tasks.errors import CorruptDataError
from flexformer.tasks.progress import Progress, silent

BOS, PAD_WORD, EOS, UNK = range(4)
SPECIALS = ("<s>", "<pad>", "</s>", "<unk>")
BYTES = 256
NEWLINE = 10
VERSION = 1  # raised when the same text gives other ids
REMEDY = "train once more, which builds it"
_MULTIPLE = 8  # vocabularies are filled up to a multiple of it


class TokenFiles:
    """The ids of a corpus on disk, memory-mapped, with the words they stand for.

    Args:
        parent: Where such folders stand side by side.
        corpus: The text.
        unit: Words, divided at white space with `</s>` after each line, or bytes.
        vocab_limit: Keep at most this many words, the most frequent ones.
        min_count: Keep words that occur at least so often in the training text.
    """

    def __init__(
        self, parent: Path, corpus: Corpus, unit: Unit, vocab_limit: int | None = None, min_count: int = 1
    ) -> None:
        self.corpus, self.unit, self.vocab_limit, self.min_count = corpus, unit, vocab_limit, min_count
        settings: dict[str, Any] = {"version": VERSION, "unit": unit, "text": corpus.fingerprint()}
        if unit == "word":
            settings |= {"vocab_limit": vocab_limit, "min_count": min_count}
        self.cache = ArrayCache(parent, f"{corpus.name}-{unit}", settings, REMEDY)

    def build(self, progress: Progress = silent) -> None:
        """Write the files unless they are there; those that are have their checksums compared."""
        if self.cache.exists():
            self.cache.verify()
            return
        total = sum(text.size for text in self.corpus.texts.values())
        total += self.corpus.texts["train"].size if self.unit == "word" else 0
        done = 0

        def advance(step: int) -> None:
            nonlocal done
            done += step
            progress(done, total)

        with partial_folder(self.cache.folder.parent) as partial:
            arrays: dict[str, np.ndarray] = {}
            ids: dict[str, int] = {}
            if self.unit == "word":
                words = vocabulary(self.corpus.texts["train"], self.vocab_limit, self.min_count, advance)
                ids = {word: number for number, word in enumerate(words)}
                arrays["vocabulary"] = np.frombuffer("\n".join(words).encode(), np.uint8)
            for split in SPLITS:
                arrays[split] = self._encode(self.corpus.texts[split], ids, partial / split, advance)
                if not len(arrays[split]):
                    raise CorruptDataError(f"{self.corpus.name} has no text for {split}; use a longer text")
            self.cache.write(arrays)

    def read(self, split: Split) -> np.ndarray:
        """All ids of a split (N,), memory-mapped."""
        ids = self.cache.load(split)
        if ids.ndim != 1 or not np.issubdtype(ids.dtype, np.integer):
            raise CorruptDataError(f"{self.cache.folder} holds no ids for {split}; delete it and then {REMEDY}")
        return ids

    def words(self) -> list[str] | None:
        """What ids stand for, in order; None for bytes, which stand for themselves."""
        if self.unit == "byte":
            return None
        letters = self.cache.load("vocabulary")
        try:
            return letters.astype(np.uint8, casting="equiv").tobytes().decode().split("\n")
        except (TypeError, ValueError) as error:
            raise CorruptDataError(f"{self.cache.folder} holds no words; delete it and then {REMEDY}") from error

    def _encode(self, text: Text, ids: dict[str, int], path: Path, advance: Any) -> np.ndarray:
        """Ids through a file of their own, so that no text is too large."""
        dtype = np.uint8 if self.unit == "byte" else np.uint16 if len(ids) <= 1 << 16 else np.int32
        count = 0
        with path.open("wb") as file:
            for found, step in _bytes(text) if self.unit == "byte" else _words(text, ids):
                count += len(found)
                file.write(found.astype(dtype, copy=False).tobytes())
                advance(step)
        return np.memmap(path, dtype, "r", shape=(count,)) if count else np.zeros(0, dtype)


def vocabulary(text: Text, limit: int | None, min_count: int, advance: Any = lambda step: None) -> list[str]:
    """Special symbols, then words from the most frequent on, equals in the order of the alphabet.

    Filled up to a multiple of 8 with symbols that do not occur.

    Args:
        text: The training text.
        limit: Keep at most this many words.
        min_count: Keep words that occur at least so often.
        advance: Called with the progress each piece makes.
    """
    counts: Counter[str] = Counter()
    for lines, step in text.lines():
        for line in lines:
            counts.update(line.decode(errors="replace").split())
        advance(step)
    for special in SPECIALS:
        counts.pop(special, None)
    kept = sorted((w for w, n in counts.items() if n >= min_count), key=lambda word: (-counts[word], word))[:limit]
    if not kept:
        raise CorruptDataError(f"no word of the training text occurs {min_count} times (min_count); use a longer text")
    words = [*SPECIALS, *kept]
    unused = (name for name in map("<unused{}>".format, itertools.count()) if name not in counts)
    return words + list(itertools.islice(unused, -len(words) % _MULTIPLE))


def _bytes(text: Text) -> Iterator[tuple[np.ndarray, int]]:
    for piece, step in text.pieces():
        yield np.frombuffer(piece, np.uint8), step


def _words(text: Text, ids: dict[str, int]) -> Iterator[tuple[np.ndarray, int]]:
    for lines, step in text.lines():
        found: list[int] = []
        for line in lines:
            found += [ids.get(word, UNK) for word in line.decode(errors="replace").split()]
            found.append(EOS)
        yield np.array(found, np.int64), step
