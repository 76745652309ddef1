"""A grid of cells: finished ones are not repeated, what was cut off goes on, each run in a process of its own."""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, TextIO

from .cells import Cell
from .process import JobError, Worker
from .results import Result, read, write

INTERRUPTED = (130, 143)  # as shells count: 128 + SIGINT, 128 + SIGTERM

Details = Callable[[Cell, Path], Mapping[str, Any]]


class GridError(ValueError):
    """A run of a grid did not finish.

    Args:
        message: Which one, and why.
        status: Its exit status.
    """

    def __init__(self, message: str, status: int) -> None:
        super().__init__(message)
        self.status = status


@dataclass(frozen=True)
class Places:
    """Where a grid keeps things.

    Args:
        output: The working folder, with a folder for each run.
        results: Gets a file for each cell, in a folder for each table.
        shown: An open file, not only a stream, that takes what runs print.
        say: Told what is about to be done, a line at a time.
        deadline: By `time.monotonic`: nothing is started afterwards, and what is running stops with a checkpoint.
    """

    output: Path
    results: Path
    shown: TextIO
    say: Callable[[str], None] = lambda line: None
    deadline: float | None = None

    def is_late(self) -> bool:
        return self.deadline is not None and time.monotonic() >= self.deadline


def no_details(cell: Cell, output: Path) -> Mapping[str, Any]:
    return {}


def finish(cells: Sequence[Cell], places: Places, details: Details = no_details) -> list[Result] | None:
    """Make sure that cells are finished.

    Args:
        cells: In the order to run them.
        places: Where.
        details: What to keep of a finished cell beyond what all have, given the working folder.

    Returns:
        All results; None where time was up before all were there.

    Raises:
        GridError: A run failed; what was finished before is kept.
    """
    found = []
    with Worker(places.shown) as worker:
        for number, cell in enumerate(cells, start=1):
            result = cell.finished(places.results)
            if result is None:
                result = _finish(cell, places, worker, details, f"cell {number} of {len(cells)}: {cell.name}")
                if result is None:
                    return None
            if result != read(cell.path(places.results)):  # it is new, or another table's
                write(cell.path(places.results), result)
            found.append(result)
    return found


def _finish(cell: Cell, places: Places, worker: Worker, details: Details, heading: str) -> Result | None:
    """The result of a cell after all that is left to do for it; None where time was up."""
    answer = None
    jobs = cell.jobs(places.output)
    for number, job in enumerate(jobs, start=1):
        if places.is_late():
            return None
        places.say(heading if number == len(jobs) else f"{heading}, first {job.name}")
        try:
            answer = worker.run(job.target, job.arguments, places.deadline)
        except JobError as error:
            if error.status in INTERRUPTED and places.is_late():
                return None
            raise GridError(f"{cell.name}: {error}", error.status) from error
    return cell.result(places.output, answer, details(cell, places.output))


def by_seed(cells: Sequence[Cell]) -> list[Cell]:
    """The first seed of all cells before the second of any, so that a table is whole as early as possible."""
    seeds = list(dict.fromkeys(cell.seed for cell in cells))
    return sorted(cells, key=lambda cell: seeds.index(cell.seed))
