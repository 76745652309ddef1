"""How long a grid would take: from cells that are finished, or from a few steps of each kind of run."""

from __future__ import annotations

import json
import math
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from rich.console import Console

from flexformer.tasks.generated import GeneratedTask
from flexformer.training import Job, TaskJob
from flexformer.training.run import quiet_libraries

from .cells import Cell, Status, TrainedCell
from .results import Result
from .stages import REFERENCE, Stage, build_job
from .steps import training_step

TIMED_STEPS, TIMED_SECONDS = 4, 3.0  # at most; two steps are timed however long they take, as the first is slow
FORWARD_SHARE = 1 / 3  # of a step's time, what an evaluation of as many examples takes


@dataclass(frozen=True)
class Planned:
    """A cell of a plan.

    Args:
        name: Of the cell.
        status: How much of it there is.
        seconds: What is left to do would take about this; None where it could not be tried.
        note: Why not.
    """

    name: str
    status: Status
    seconds: float | None
    note: str = ""


def plan(
    cells: Sequence[Cell],
    known: Sequence[Result],
    results: Path,
    output: Path,
    progress: Callable[[str], None] = lambda note: None,
) -> list[Planned]:
    """Every cell with its status and about how long it would take.

    Args:
        cells: Of the grid.
        known: Finished cells; those with equal labels tell the time of other seeds.
        results: Where cells' files are.
        output: The working folder.
        progress: Told what is being timed.
    """
    clock = _Clock(known, progress)
    counted: set[str] = set()
    found = []
    for cell in cells:
        status = cell.status(results, output)
        seconds: float | None = 0.0
        note = ""
        if status != "done" and not isinstance(cell, TrainedCell):
            seconds = clock.finished.get(_key(cell.labels))
        elif status != "done":
            assert isinstance(cell, TrainedCell)
            for stage in cell.stage.order():
                if stage.name in counted or stage.is_finished(output):
                    continue
                counted.add(stage.name)
                more, why = clock.seconds(cell, stage, output)
                seconds = None if more is None or seconds is None else seconds + more
                note = note or why
        found.append(Planned(cell.name, status, seconds, note))
    return found


class _Clock:
    """Times each kind of run once."""

    def __init__(self, known: Sequence[Result], progress: Callable[[str], None]) -> None:
        self.finished = {_key(result.labels): result.seconds for result in known}
        self.timed: dict[Any, tuple[float | None, str]] = {}
        self.progress = progress

    def seconds(self, cell: TrainedCell, stage: Stage, output: Path) -> tuple[float | None, str]:
        """Seconds that are left, and why they are not known if they are not."""
        training = stage.options.training
        record = stage.record(output)
        share = 1.0 if record is None else max(0.0, 1 - record.steps / training.steps)
        if stage is cell.stage and _key(cell.labels) in self.finished:
            return share * self.finished[_key(cell.labels)], ""
        read = getattr(stage.options, "text", stage.options.task)  # a distillation's task is the same for any text
        kind = (stage.kind, stage.options.attention, read, training.steps)
        if kind not in self.timed:
            self.progress(f"a few steps of {stage.name}")
            try:
                self.timed[kind] = _whole_run(_trial(stage)), ""
            except (ValueError, OSError) as error:
                self.timed[kind] = None, " ".join(str(error).split())
        whole, note = self.timed[kind]
        return (None if whole is None else share * whole), note


def _key(labels: Mapping[str, Any]) -> str:
    return json.dumps(dict(labels), sort_keys=True)


def _trial(stage: Stage) -> Job:
    """A run like the stage's that starts from what is there: the pretrained model, kernels as they begin."""
    options: Any = stage.options
    if getattr(options, "base", "").startswith(REFERENCE):
        first = stage.order()[0]
        options = replace(options, base=first.options.base)  # type: ignore[union-attr]
    if getattr(options, "adapter", None) is not None:
        options = replace(options, adapter=None)
    return build_job(stage.kind, options.as_dict())


def _whole_run(job: Job) -> float:
    training = job.options.training
    if isinstance(job, TaskJob) and isinstance(job.task, GeneratedTask) and not job.task.files():
        raise ValueError(f"{job.task.name} is not generated yet: the run does that, or flexformer data prepare")
    with quiet_libraries():
        job.prepare(Console(stderr=True, highlight=False))
        step = _step_seconds(job)
        evaluations = math.ceil(training.steps / training.evaluate_every)
        examples = evaluations * _size(job, "validation") + _size(job, "test")
    return step * (training.steps + FORWARD_SHARE * examples / training.batch_size)


def _size(job: Job, split: Any) -> int:
    return len(job.dataset(split))  # type: ignore[arg-type]


def _step_seconds(job: Job) -> float:
    """The fastest of a few training steps, all portions of a batch included."""
    step = training_step(job, portions=1)
    times: list[float] = []
    while len(times) < 2 or (len(times) < TIMED_STEPS and sum(times) < TIMED_SECONDS):
        started = time.perf_counter()
        step()
        times.append(time.perf_counter() - started)
    return min(times) * job.options.training.accumulation
