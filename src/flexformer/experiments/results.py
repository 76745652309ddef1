"""Files of finished cells."""

from __future__ import annotations

import json
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

from flexformer.files import write_json


@dataclass(frozen=True)
class Result:
    """What a cell's file holds."""

    table: str
    cell: str
    labels: dict[str, Any]
    preset: str
    seed: int
    digest: str
    """of everything that decides the result"""
    command: list[str]
    commit: str | None
    """of the checkout it ran from; None outside of one"""
    dirty: bool | None
    """whether that was changed since the commit"""
    versions: dict[str, str]
    machine: dict[str, Any]
    seconds: float
    """of the run, evaluations included"""
    steps: int = 0
    selected_step: int = 0
    """the step whose weights were tested"""
    examples: int = 0
    """seen in training"""
    tokens: int = 0
    step_seconds: float | None = None
    """of the median step"""
    peak_memory: int | None = None
    """bytes that a step takes at most beyond what was held before training"""
    parameters: int = 0
    metrics: dict[str, float] = field(default_factory=dict)
    curve: list[list[float]] = field(default_factory=list)
    """steps and validation metric"""
    details: dict[str, Any] = field(default_factory=dict)
    """what only some tables show"""
    stages: list[dict[str, Any]] = field(default_factory=list)
    """runs that had to come first: command, commit, steps, tokens, seconds and metrics of each"""
    options: dict[str, Any] = field(default_factory=dict)
    """what the digest is of, by dotted name"""
    later_commits: list[str] = field(default_factory=list)
    """of code that went on with a run that was cut off, where it was not the same"""


def write(path: Path, result: Result) -> None:
    """Write a cell's file."""
    path.parent.mkdir(parents=True, exist_ok=True)
    write_json(path, asdict(result))


def read(path: Path) -> Result | None:
    """A cell's file; None where there is none.

    Raises:
        ValueError: It is something else.
    """
    try:
        return Result(**json.loads(path.read_text(encoding="utf-8")))
    except FileNotFoundError:
        return None
    except (json.JSONDecodeError, TypeError) as error:
        raise ValueError(f"{path}: not the result of a cell: {error}; remove it to run the cell again") from error


def read_all(folder: Path, table: str, preset: str) -> list[Result]:
    """All cells of a table at one scale, in the order of their names."""
    found = [read(path) for path in sorted((folder / table).glob("*.json"))]
    return [result for result in found if result is not None and result.preset == preset]
