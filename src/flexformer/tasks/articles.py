"""Articles: are two pieces of text from the same article? A stand-in for Retrieval that needs no special data."""

from __future__ import annotations

import os
import re
from collections.abc import Iterator
from pathlib import Path

import numpy as np

from flexformer.tasks.arrays import Ragged, Selection
from flexformer.tasks.base import SPLITS, Examples, Padding, Split, Task
from flexformer.tasks.errors import CorruptDataError, MissingDataError
from flexformer.tasks.hub import load_split
from flexformer.tasks.progress import Progress, silent

_FEWEST_ARTICLES = 3  # with two, or with one pair, second pieces cannot always be exchanged
_FEWEST_PAIRS = 4
_FILE_SHARES = (0.8, 0.1, 0.1)
_WIKITEXT_FOLDERS = ("wikitext103", "wikitext-103", "wikitext-103-raw", "wikitext2", "wikitext-2", "wikitext-2-raw")
_WIKITEXT_NAMES = ("{}.txt", "wiki.{}.tokens", "wiki.{}.raw")
_WIKITEXT_SPLITS: dict[Split, str] = {"train": "train", "validation": "valid", "test": "test"}
_TITLE = re.compile(rb"^ ?= (?!=)[^\n]*[^= ] =[ ]*$", re.MULTILINE)  # one equals sign; sections have more


class Articles(Task):
    """Pairs of disjoint pieces as UTF-8 bytes, id = byte + 1; the label is 1 if both are from one article.

    Every piece occurs as often in pairs of one label as of the other, so neither piece alone tells anything. This is
    not AAN, and its results must not stand in the Retrieval column.

    Args:
        root: The folder data lives in; default $FLEXFORMER_DATA, else ~/.cache/flexformer/data.
        train: Pairs to train on.
        validation: Pairs to validate with.
        test: Pairs to test with.
        max_length: Bytes of a piece; articles shorter than two pieces are left out.
        seed: Of the choice of pairs.
        folder: The articles, instead of what is found under the root: a folder of .txt files, or of WikiText files.
        source: A Hugging Face `datasets` id such as "Salesforce/wikitext:wikitext-103-raw-v1" instead of files.
        pad_to: Batches are padded to their longest sequence, or all to max_length.
    """

    name = "articles"
    title = "Articles (not AAN)"
    kind = "pair"
    num_classes = 2
    paper_length = 4000
    vocab_size = 257
    question = "Are these two pieces of text from the same article?"
    origin = "any folder of .txt articles, or WikiText"

    def __init__(
        self,
        root: str | os.PathLike[str] | None = None,
        *,
        train: int = 8_000,
        validation: int = 1_000,
        test: int = 1_000,
        max_length: int = 4000,
        seed: int = 0,
        folder: str | os.PathLike[str] | None = None,
        source: str | None = None,
        pad_to: Padding = "longest",
    ) -> None:
        super().__init__(root, max_length=max_length, pad_to=pad_to)
        self.sizes = dict(zip(SPLITS, (train, validation, test), strict=True))
        for split, size in self.sizes.items():
            if size < _FEWEST_PAIRS:
                raise ValueError(f"{split} {size} is too few to pair articles in two ways; use {_FEWEST_PAIRS} or more")

        self.seed = seed
        self.folder = None if folder is None else Path(folder).expanduser()
        self.source = source

    def prepare(self, progress: Progress = silent, *, workers: int | None = None) -> None:
        if self.source is None:
            self._found()
        else:
            for split in SPLITS:
                load_split(self.source, split, ("text",))

    def files(self) -> tuple[Path, ...]:
        usual = [self.root / name for name in ("articles", *_WIKITEXT_FOLDERS)]
        for folder in usual if self.folder is None else [self.folder]:
            for name in _WIKITEXT_NAMES:
                paths = tuple(folder / name.format(split) for split in _WIKITEXT_SPLITS.values())
                if all(path.is_file() for path in paths):
                    return paths
            if paths := tuple(sorted(folder.glob("*.txt"))):
                return paths
        return ()

    def examples(self, split: Split) -> Examples:
        articles = self._articles(split)
        pieces, owners = cut(articles, self.max_length)
        rng = np.random.default_rng([self.seed, SPLITS.index(split)])
        first, second, labels = pair(owners, self.sizes[split], rng)
        return Examples((Selection(pieces, first), Selection(pieces, second)), labels, shift=1)

    def layout(self) -> tuple[str, ...]:
        return (
            "articles/*.txt, one article in each file, divided 80 / 10 / 10",
            "{wikitext103,wikitext2}/{train,valid,test}.txt or wiki.{train,valid,test}.{tokens,raw}",
        )

    def notes(self) -> tuple[str, ...]:
        return ("a stand-in for Retrieval where AAN cannot be had; never to be reported as AAN",)

    def _found(self) -> tuple[Path, ...]:
        if files := self.files():
            return files
        where = self.root / "articles" if self.folder is None else self.folder
        raise MissingDataError(
            f"there are no articles in {where}: put some hundred .txt files there, one article in each, or WikiText's "
            f"train.txt, valid.txt and test.txt into {self.root / 'wikitext2'}"
        )

    def _articles(self, split: Split) -> list[bytes]:
        if self.source is not None:
            text = "".join(line if line.endswith("\n") else line + "\n" for line in self._lines(split))
            return list(wikitext_articles(text.encode()))
        files = self._found()
        if any(files[0].name == name.format("train") for name in _WIKITEXT_NAMES):
            return list(wikitext_articles(files[SPLITS.index(split)].read_bytes()))
        # Which file goes where must not depend on the number of pairs or their seed.
        order = np.random.default_rng(0).permutation(len(files))
        borders = np.round(np.cumsum((0, *_FILE_SHARES)) * len(files)).astype(int)
        part = SPLITS.index(split)
        return [files[i].read_bytes() for i in order[borders[part] : borders[part + 1]]]

    def _lines(self, split: Split) -> list[str]:
        assert self.source is not None
        return list(load_split(self.source, split, ("text",))["text"])


def wikitext_articles(text: bytes) -> Iterator[bytes]:
    """The articles of a WikiText file, without the line of the title."""
    titles = list(_TITLE.finditer(text))
    ends = [title.start() for title in titles[1:]] + [len(text)]
    for title, end in zip(titles, ends, strict=True):
        yield text[title.end() : end].strip()


def cut(articles: list[bytes], length: int) -> tuple[Ragged, np.ndarray]:
    """Disjoint pieces of `length` bytes, two or more of each article, and the number of the article of each.

    Articles too short for two are left out: pieces of their own length would give the answer away.
    """
    pieces: list[bytes] = []
    owners: list[int] = []
    for number, article in enumerate(articles):
        count = len(article) // length
        if count >= 2:
            pieces += [article[i * length : (i + 1) * length] for i in range(count)]
            owners += [number] * count
    return Ragged.join(pieces), np.array(owners, np.int64)


def pair(owners: np.ndarray, count: int, rng: np.random.Generator) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """(first pieces, second pieces, labels), each (count,), half of them from one article.

    All articles have their turn equally often. The pairs of different articles are those of the same article with
    the second pieces exchanged, so the pieces of both labels are the same ones.

    Args:
        owners: (P,) the article of each piece, ascending, every one two times or more.
        count: How many pairs.
        rng: Draws them.
    """
    articles, starts, sizes = np.unique(owners, return_index=True, return_counts=True)
    if len(articles) < _FEWEST_ARTICLES:
        raise CorruptDataError(
            f"every split needs {_FEWEST_ARTICLES} articles of twice max_length or more and one has {len(articles)}; "
            "bring more articles or use a smaller max_length"
        )
    same = (count + 1) // 2
    chosen = np.resize(rng.permutation(len(articles)), same)
    one = rng.integers(sizes[chosen])
    other = (one + rng.integers(1, sizes[chosen])) % sizes[chosen]
    first, second = starts[chosen] + one, starts[chosen] + other
    exchanged = second[_derange(chosen, rng)]
    labels = np.repeat(np.array([1, 0], np.uint8), same)
    order = rng.permutation(2 * same)[:count]
    return np.tile(first, 2)[order], np.concatenate([second, exchanged])[order], labels[order]


def _derange(articles: np.ndarray, rng: np.random.Generator) -> np.ndarray:
    """A random permutation that puts no article in a place of its own.

    There is one, because with three articles or more that have equal turns none has more than half of the places.
    """
    order = rng.permutation(len(articles))
    while len(clashes := np.flatnonzero(articles == articles[order])):
        for i, j in zip(clashes, rng.integers(len(order), size=len(clashes)), strict=True):
            order[[i, j]] = order[[j, i]]
    return order
