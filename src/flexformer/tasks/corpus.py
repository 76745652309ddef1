"""Where the text of a language model comes from: files, folders, known corpora, `datasets` ids.

A `Corpus` has a `Text` for each split, which can be read again and again, piece by piece, and says by a fingerprint
whether it is still the same.
"""

from __future__ import annotations

import abc
import hashlib
import os
import sysconfig
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Literal, TypeAlias

from flexformer.tasks.base import SPLITS, Split
from flexformer.tasks.errors import CorruptDataError, MissingDataError
from flexformer.tasks.hub import load_split

if TYPE_CHECKING:
    from datasets import Dataset

Unit: TypeAlias = Literal["word", "byte"]

PYTHON = "python"
SHARES = (0.9, 0.05, 0.05)
TEXT_ENDINGS = (".txt", ".md", ".tokens", ".raw", ".json", ".jsonl", ".csv")
_PIECE = 1 << 20
_SPLIT_NAMES: dict[Split, tuple[str, ...]] = {
    "train": ("train.txt", "wiki.train.tokens", "wiki.train.raw"),
    "validation": ("valid.txt", "wiki.valid.tokens", "wiki.valid.raw"),
    "test": ("test.txt", "wiki.test.tokens", "wiki.test.raw"),
}
_WIKITEXT = {
    "wikitext103": ("wikitext103", "wikitext-103"),
    "wikitext2": ("wikitext2", "wikitext-2"),
}
_WIKITEXT_ADVICE = "get {0}-v1 and unpack it there, so that there is a wiki.train.tokens or train.txt with its fellows"
_ENWIK8_ADVICE = "get enwik8.zip from http://mattmahoney.net/dc/textdata.html and unpack it there"


class Text(abc.ABC):
    """Text that can be read piece by piece."""

    size: int
    """bytes, or as many as there will be steps of progress"""

    @abc.abstractmethod
    def pieces(self) -> Iterator[tuple[bytes, int]]:
        """Pieces of the text in order, with the progress each one makes."""

    @abc.abstractmethod
    def fingerprint(self) -> str:
        """Changes with the content."""

    def lines(self) -> Iterator[tuple[list[bytes], int]]:
        """Lines in order, many at a time, without their ends; a last line needs none."""
        rest = b""
        for piece, progress in self.pieces():
            *lines, rest = (rest + piece).split(b"\n")
            yield lines, progress
        if rest:
            yield [rest], 0


class FileText(Text):
    """Bytes `start` to `stop` of files, one after the other; where one does not end its last line, that is ended.

    Args:
        files: Their paths.
        start: Counted from the beginning of the first.
        stop: Where the text ends; the end of the last file by default.
    """

    def __init__(self, files: Sequence[Path], start: int = 0, stop: int | None = None) -> None:
        self.files = tuple(files)
        self.added = [_unfinished_line(path) for path in self.files[:-1]] + [0]
        self.start = start
        whole = sum(path.stat().st_size + added for path, added in zip(self.files, self.added, strict=False))
        self.stop = whole if stop is None else stop
        self.size = self.stop - self.start

    def pieces(self) -> Iterator[tuple[bytes, int]]:
        begin = 0
        for path, added in zip(self.files, self.added, strict=False):
            end = begin + path.stat().st_size
            first, last = max(begin, self.start), min(end, self.stop)
            if first < last:
                with path.open("rb") as file:
                    file.seek(first - begin)
                    while first < last and (piece := file.read(min(_PIECE, last - first))):
                        first += len(piece)
                        yield piece, len(piece)
            if added and self.start <= end < self.stop:
                yield b"\n", 1
            begin = end + added

    def fingerprint(self) -> str:
        digest = hashlib.sha256()
        for piece, _ in self.pieces():
            digest.update(piece)
        return digest.hexdigest()


class HubText(Text):
    """Rows of a Hugging Face dataset, each ended by a newline unless it has one.

    Args:
        rows: With a column of text.
    """

    def __init__(self, rows: Dataset) -> None:
        self.rows = rows
        self.size = len(rows)

    def pieces(self) -> Iterator[tuple[bytes, int]]:
        for batch in self.rows.iter(batch_size=1000):
            (texts,) = batch.values()
            joined = "".join(text if text.endswith("\n") else text + "\n" for text in texts)
            yield joined.encode(), len(texts)

    def fingerprint(self) -> str:
        return str(self.rows._fingerprint)


@dataclass(frozen=True)
class Corpus:
    """Text to learn from, to validate with and to test with.

    Args:
        name: For people, and for the name of a folder.
        texts: One for each split.
        unit: What its tokens are unless something else is asked for.
    """

    name: str
    texts: dict[Split, Text]
    unit: Unit

    def fingerprint(self) -> dict[str, str]:
        """Of each split."""
        return {split: text.fingerprint() for split, text in self.texts.items()}


def find(source: str, root: Path, unit: Unit | None = None) -> Corpus:
    """The corpus that a name, a path or an id means.

    Args:
        source: "python" for the standard library's own sources; "wikitext103", "wikitext2" or "enwik8" under the root;
            a text file; a folder; or a `datasets` id, "owner/name" or "owner/name:configuration".
        root: The folder data lives in.
        unit: Words are cut between lines where a file is divided into splits.

    Raises:
        MissingDataError: It is not there; the message says where to get it.
        CorruptDataError: It is there and has no text.
    """
    if source == PYTHON:
        return _checked(_divided(PYTHON, _python_sources(), unit or "byte"), source)
    if source in _WIKITEXT:
        for folder in _WIKITEXT[source]:
            if files := _split_files(root / folder):
                return _checked(Corpus(source, _whole(files), "word"), source)
        advice = _WIKITEXT_ADVICE.format(_WIKITEXT[source][1])
        raise MissingDataError(f"{source} is not in {root / source}: {advice}")
    if source == "enwik8":
        for path in (root / "enwik8", root / "enwik8" / "enwik8"):
            if path.is_file():
                return _checked(_divided(source, [path], unit or "byte"), source)
        raise MissingDataError(f"enwik8 is not in {root / 'enwik8'}: {_ENWIK8_ADVICE}")
    path = Path(source).expanduser()
    if path.is_file():
        return _checked(_divided(path.stem, [path], unit or "byte"), source)
    if path.is_dir():
        return _checked(_of_folder(path, unit), source)
    is_file = path.suffix in TEXT_ENDINGS or path.parent.is_dir()
    if "/" in source and not source.startswith((".", "/", "~")) and not is_file:
        return _checked(_of_hub(source, unit), source)
    raise MissingDataError(
        f"source {source!r} is neither a file nor a folder; put text there, or use python, {', '.join(_WIKITEXT)}, "
        "enwik8 or the id of a Hugging Face dataset, owner/name"
    )


def _of_folder(folder: Path, unit: Unit | None) -> Corpus:
    if files := _split_files(folder):
        words = any(path.suffix == ".tokens" for path in files.values()) or folder.name.startswith("wikitext")
        return Corpus(folder.name, _whole(files), "word" if words else "byte")
    found = [path for path in folder.rglob("*") if path.is_file()]
    paths = sorted(path for path in found if not any(part.startswith(".") for part in path.relative_to(folder).parts))
    return _divided(folder.name, paths, unit or "byte")


def _split_files(folder: Path) -> dict[Split, Path]:
    """The files of a folder that is divided already; empty if it is not."""
    for number in range(len(_SPLIT_NAMES["train"])):
        paths = {split: folder / names[number] for split, names in _SPLIT_NAMES.items()}
        there = [path.name for path in paths.values() if path.is_file()]
        if len(there) == len(paths):
            return paths
        if len(there) > 1:
            (absent,) = (path.name for path in paths.values() if path.name not in there)
            raise MissingDataError(f"{folder} has {' and '.join(there)} and no {absent}; put it there, or rename them")
    return {}


def _unfinished_line(path: Path) -> int:
    """1 if a file has text and its last line has no end, else 0."""
    with path.open("rb") as file:
        if not file.seek(0, os.SEEK_END):
            return 0
        file.seek(-1, os.SEEK_END)
        return int(file.read(1) != b"\n")


def _whole(files: dict[Split, Path]) -> dict[Split, Text]:
    return {split: FileText([path]) for split, path in files.items()}


def _python_sources() -> list[Path]:
    folder = Path(sysconfig.get_path("stdlib"))
    files = sorted(folder.glob("*.py"))
    if not files:
        raise MissingDataError(f"this Python has no sources in {folder}; name a text file or folder as the source")
    return files


def _divided(name: str, files: Sequence[Path], unit: Unit) -> Corpus:
    """Files cut into the first 90 %, the next 5 % and the last 5 %; with words at the ends of lines."""
    total = FileText(files).size
    borders = [0, round(SHARES[0] * total), round((SHARES[0] + SHARES[1]) * total), total]
    if unit == "word":
        borders[1:3] = [_end_of_line(files, border) for border in borders[1:3]]
    texts: dict[Split, Text] = {
        split: FileText(files, start, stop) for split, start, stop in zip(SPLITS, borders, borders[1:], strict=False)
    }
    return Corpus(name, texts, unit)


def _end_of_line(files: Sequence[Path], position: int) -> int:
    """The first position from this one on where a line begins, or the end."""
    for piece, length in FileText(files, position).pieces():
        if (found := piece.find(b"\n")) >= 0:
            return position + found + 1
        position += length
    return position


def _of_hub(source: str, unit: Unit | None) -> Corpus:
    """A dataset with splits of its own, or with a train split that is divided by rows."""
    column = (("text", "content"),)
    train = load_split(source, "train", column)
    name = source.rpartition("/")[2].replace(":", "-")
    try:
        texts: dict[Split, Text] = {split: HubText(load_split(source, split, column)) for split in SPLITS}
    except MissingDataError:
        borders = [0, round(SHARES[0] * len(train)), round((SHARES[0] + SHARES[1]) * len(train)), len(train)]
        texts = {
            split: HubText(train.select(range(start, stop)))
            for split, start, stop in zip(SPLITS, borders, borders[1:], strict=False)
        }
    return Corpus(name, texts, unit or ("word" if "wikitext" in name and "raw" not in name else "byte"))


def _checked(corpus: Corpus, source: str) -> Corpus:
    for split, text in corpus.texts.items():
        if not text.size:
            raise CorruptDataError(f"source {source!r} has no text for {split}; use a longer text")
    return corpus
