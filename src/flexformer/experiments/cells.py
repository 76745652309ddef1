"""Cells of a table: one result each, as one JSON file that says all there is to know about it."""

from __future__ import annotations

import abc
import os
from collections.abc import Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, Literal, TypeAlias

from flexformer.distill.options import TEXT_PREFIX
from flexformer.provenance import commit, versions
from flexformer.training import RunFolder
from flexformer.training.callbacks import read_log
from flexformer.training.record import PACKAGES, Record, machine

from .digest import digest, place
from .results import Result, read
from .stages import Stage

Status: TypeAlias = Literal["done", "part done", "to do"]

# The validation metric that curves show; of a language model it depends on the text.
CURVES = {
    "train": ("eval_accuracy",),
    "train lm": ("eval_bits_per_byte", "eval_perplexity"),
    "distill": ("eval_kl",),
    "finetune": ("eval_score",),
}
TRAIN = "flexformer.experiments.stages:run"


@dataclass(frozen=True)
class Job:
    """What is left to do for a cell, one call in a process of its own.

    Args:
        name: What it is.
        target: The function, "module:function".
        arguments: For it.
    """

    name: str
    target: str
    arguments: dict[str, Any]


@dataclass(frozen=True)
class Cell(abc.ABC):
    """One result.

    Args:
        table: Where it belongs.
        name: Of its file; says task, attention, preset and seed.
        labels: Its place in the table, such as {"task": "image", "attention": "softmax"}.
        preset: The settings it started from.
    """

    table: str
    name: str
    labels: Mapping[str, Any]
    preset: str

    @property
    @abc.abstractmethod
    def seed(self) -> int: ...

    @property
    @abc.abstractmethod
    def digest(self) -> str:
        """The same as long as all options are."""

    @abc.abstractmethod
    def jobs(self, output: Path) -> list[Job]:
        """What is left to do, first things first, given the working folder."""

    @abc.abstractmethod
    def begun(self, output: Path) -> bool:
        """Whether something of it is in the working folder."""

    @abc.abstractmethod
    def result(self, output: Path, answer: Any, details: Mapping[str, Any]) -> Result:
        """What its file will hold, once nothing is left to do.

        Args:
            output: The working folder.
            answer: Of its last job; None where there was none left.
            details: What only its table wants to keep.
        """

    def path(self, results: Path) -> Path:
        """Its file."""
        return results / self.table / f"{self.name}.json"

    def finished(self, results: Path) -> Result | None:
        """Its result; a file made with other options counts as none."""
        found = read(self.path(results))
        return found if found is not None and found.digest == self.digest else None

    def status(self, results: Path, output: Path) -> Status:
        """How much of it there is."""
        if self.finished(results) is not None:
            return "done"
        return "part done" if self.begun(output) else "to do"


@dataclass(frozen=True)
class TrainedCell(Cell):
    """A cell that is the last of a chain of training runs.

    Args:
        stage: The run whose metrics it shows, with those it needs.
    """

    stage: Stage

    @property
    def seed(self) -> int:
        return self.stage.options.seed

    @property
    def digest(self) -> str:
        return self.stage.digest

    def jobs(self, output: Path) -> list[Job]:
        left = [stage for stage in self.stage.order() if not stage.is_finished(output)]
        return [Job(stage.name, TRAIN, stage.job(output)) for stage in left]

    def begun(self, output: Path) -> bool:
        return any(stage.record(output) is not None for stage in self.stage.order())

    def result(self, output: Path, answer: Any, details: Mapping[str, Any]) -> Result:
        *before, last = self.stage.order()
        record = last.record(output)
        assert record is not None
        where, dirty = split_commit(record.commit)
        return Result(
            table=self.table,
            cell=self.name,
            labels=dict(self.labels),
            preset=self.preset,
            seed=self.seed,
            digest=self.digest,
            command=portable(last.command(output)),
            commit=where,
            dirty=dirty,
            versions=record.versions,
            machine=record.machine,
            steps=record.steps,
            selected_step=record.selected_step,
            examples=record.steps * last.options.training.batch_size,
            tokens=record.tokens,
            seconds=round(record.seconds, 1),
            step_seconds=record.step_seconds,
            peak_memory=record.peak_memory,
            parameters=record.parameters,
            metrics=record.metrics,
            curve=_curve(last, output),
            details=dict(details),
            stages=[_earlier(stage, output) for stage in before],
            options=last.essentials,
            later_commits=record.later_commits,
        )


@dataclass(frozen=True)
class SharedCell(TrainedCell):
    """A run that another table has as well: finished there, it is finished here.

    Args:
        twin: The other table's cell.
    """

    twin: Cell

    def finished(self, results: Path) -> Result | None:
        own = super().finished(results)
        if own is not None or self.twin.digest != self.digest:
            return own
        found = self.twin.finished(results)
        return found and replace(found, table=self.table, cell=self.name, labels=dict(self.labels))


@dataclass(frozen=True)
class MeasuredCell(Cell):
    """A cell that is one measurement, of nothing that is trained.

    Args:
        target: The function that measures, "module:function"; returns `seconds` and what else is to be kept.
        options: Its arguments.
        command: The command line that does the same.
    """

    target: str
    options: Mapping[str, Any]
    command: tuple[str, ...]

    @property
    def seed(self) -> int:
        return 0

    @property
    def digest(self) -> str:
        return digest([self.target, dict(self.options)])

    def jobs(self, output: Path) -> list[Job]:
        return [Job(self.name, self.target, dict(self.options))]

    def begun(self, output: Path) -> bool:
        return False

    def result(self, output: Path, answer: Any, details: Mapping[str, Any]) -> Result:
        where, dirty = split_commit(commit())
        return Result(
            table=self.table,
            cell=self.name,
            labels=dict(self.labels),
            preset=self.preset,
            seed=self.seed,
            digest=self.digest,
            command=portable(list(self.command)),
            commit=where,
            dirty=dirty,
            versions=versions(*PACKAGES),
            machine=machine(),
            seconds=round(answer["seconds"], 1),
            details={key: value for key, value in answer.items() if key != "seconds"} | dict(details),
            options=dict(self.options),
        )


def split_commit(found: str | None) -> tuple[str | None, bool | None]:
    """The commit, and whether something was changed since."""
    return (None, None) if found is None else (found.removesuffix("-dirty"), found.endswith("-dirty"))


def _earlier(stage: Stage, output: Path) -> dict[str, Any]:
    record: Record | None = stage.record(output)
    assert record is not None
    where, dirty = split_commit(record.commit)
    return {
        "name": stage.name,
        "digest": stage.digest,
        "command": portable(stage.command(output)),
        "commit": where,
        "dirty": dirty,
        "later_commits": record.later_commits,
        "steps": record.steps,
        "tokens": record.tokens,
        "seconds": round(record.seconds, 1),
        "metrics": record.metrics,
    }


def _curve(stage: Stage, output: Path) -> list[list[float]]:
    entries = read_log(RunFolder(stage.folder(output)).log_file)
    metric = next((name for name in CURVES[stage.kind] if any(name in entry for entry in entries)), None)
    return [] if metric is None else [[entry["step"], entry[metric]] for entry in entries if metric in entry]


def portable(command: list[str]) -> list[str]:
    """A command line without the folders of this machine."""
    here = f"{os.getcwd()}{os.sep}"
    parts = [part.removeprefix(here) for part in command]
    return [place(part) if os.path.isabs(part.removeprefix(TEXT_PREFIX)) else part for part in parts]
