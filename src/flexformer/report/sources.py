"""What a report is made from: run folders, benchmark records, result folders, the notes of a demo.

Nothing here is trusted to be what it looks like: what cannot be read says so, and never more than what is there is
shown.
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

RECORD, LOG, FINDINGS, COSTS = "run.json", "log.jsonl", "report.json", "costs.json"
DEPTH = 3
"""How far below a folder that is no run itself runs are looked for."""


class SourceError(ValueError):
    """Something given cannot be reported on."""


@dataclass(frozen=True)
class Run:
    """One training run, of any command."""

    path: Path
    record: dict[str, Any]
    log: list[dict[str, Any]]
    findings: dict[str, Any] | None = None
    """of a distillation: kernels beside softmax, before and after"""
    costs: list[dict[str, Any]] | None = None
    """of a conversion: time and memory against the length, before and after"""

    @property
    def name(self) -> str:
        return self.path.resolve().name

    @property
    def attention(self) -> str:
        return str(self.record["attention"])

    @property
    def metrics(self) -> dict[str, float]:
        return dict(self.record.get("metrics") or {})


@dataclass(frozen=True)
class Bench:
    """A record of `flexformer bench`."""

    path: Path
    record: dict[str, Any]


@dataclass(frozen=True)
class Results:
    """A folder of finished cells with the tables and pictures that were made from them."""

    path: Path
    pages: dict[str, str]
    """Markdown by file name"""
    pictures: dict[str, bytes]
    """PNG by file name"""
    cells: list[dict[str, Any]]


@dataclass
class Sources:
    """Everything a report shows."""

    runs: list[Run] = field(default_factory=list)
    benches: list[Bench] = field(default_factory=list)
    results: list[Results] = field(default_factory=list)
    demos: list[dict[str, Any]] = field(default_factory=list)

    def __bool__(self) -> bool:
        return bool(self.runs or self.benches or self.results or self.demos)


def collect(paths: Iterable[Path]) -> Sources:
    """Read all that is given; what is given twice is shown once.

    Raises:
        SourceError: A path has nothing to report, or something damaged.
        OSError: A path cannot be read.
    """
    found, seen = Sources(), set()
    for path in paths:
        before = _count(found)
        for each in _expand(path):
            key = each.resolve()
            if key not in seen:
                seen.add(key)
                _add(found, each)
            else:
                before -= 1
        if _count(found) <= before:
            raise SourceError(
                f"{path} holds nothing to report; name folders of runs, of results, or JSON files of flexformer bench"
            )
    return found


def _count(found: Sources) -> int:
    return len(found.runs) + len(found.benches) + len(found.results) + len(found.demos)


def _expand(path: Path) -> list[Path]:
    """The runs, files and result folders that a path means."""
    if path.is_file():
        return [path.parent if path.name == RECORD else path]
    if not path.is_dir():
        raise SourceError(f"{path} does not exist; name a run's folder, a folder of results, or a file of either")
    return list(_walk(path, DEPTH))


def _walk(folder: Path, depth: int) -> Iterator[Path]:
    """Runs, records and result folders in a folder and below; not inside of runs."""
    if (folder / RECORD).is_file():
        yield folder
        return
    kinds = {file: _kind(_read_json(file)) for file in sorted(folder.glob("*.json"))}
    yield from (file for file, kind in kinds.items() if kind in ("bench", "demo"))
    if "cell" in kinds.values() or (kinds and "bench" not in kinds.values() and any(folder.glob("*.md"))):
        yield folder
    if depth:
        for below in sorted(path for path in folder.iterdir() if path.is_dir() and not path.name.startswith(".")):
            yield from _walk(below, depth - 1)


def _add(found: Sources, path: Path) -> None:
    if path.is_dir():
        if (path / RECORD).is_file():
            found.runs.append(read_run(path))
        else:
            found.results.append(_read_results(path))
        return
    if path.suffix == ".md":
        found.results.append(Results(path, {path.name: path.read_text(encoding="utf-8")}, {}, []))
        return
    if path.suffix == ".png":
        found.results.append(Results(path, {}, {path.name: path.read_bytes()}, []))
        return
    content = _read_json(path)
    kind = _kind(content)
    if kind == "bench":
        found.benches.append(Bench(path, content))
    elif kind == "demo":
        found.demos.append(content)
    elif kind == "cell":
        found.results.append(Results(path, {}, {}, [content]))


def _kind(content: Any) -> str:
    if not isinstance(content, dict):
        return "other"
    if "bench" in content and isinstance(content.get("measurements"), list):
        return "bench"
    if "demo" in content:
        return "demo"
    return "cell" if "metrics" in content and "command" in content else "other"


def read_run(path: Path) -> Run:
    """A run's folder."""
    record = _read_json(path / RECORD)
    if not isinstance(record, dict) or not {"task", "attention", "options"} <= record.keys():
        raise SourceError(f"{path / RECORD} is not the record of a run")
    findings = _read_json(path / FINDINGS) if (path / FINDINGS).is_file() else None
    costs = _read_json(path / COSTS) if (path / COSTS).is_file() else None
    return Run(path, record, _read_log(path / LOG), findings, costs)


def _read_results(path: Path) -> Results:
    pages = {file.name: file.read_text(encoding="utf-8") for file in sorted(path.glob("*.md"))}
    pictures = {file.name: file.read_bytes() for file in sorted(path.glob("*.png"))}
    cells = [content for file in sorted(path.glob("*.json")) if _kind(content := _read_json(file)) == "cell"]
    return Results(path, pages, pictures, cells)


def _read_json(path: Path) -> Any:
    try:
        return json.loads(path.read_text(encoding="utf-8"))
    except (ValueError, RecursionError) as error:
        raise SourceError(f"{path} is damaged: it is not JSON ({error})") from None


def _read_log(path: Path) -> list[dict[str, Any]]:
    """Entries of a log; a line that a kill cut off is left out."""
    entries = []
    for line in path.read_text(encoding="utf-8").splitlines() if path.is_file() else []:
        try:
            entry = json.loads(line)
        except ValueError:
            continue
        if isinstance(entry, dict) and "step" in entry:
            entries.append(entry)
    return entries
