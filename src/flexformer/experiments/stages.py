"""Training runs as plain data: what is run, in which folder, and the command that would do the same.

A run may start from what an earlier one left: its options then name that one's folder as "stage:NAME/model".
"""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal, TypeAlias

from rich.console import Console

from flexformer.distill import DistillOptions, FinetuneOptions
from flexformer.distill.job import REPORT, DistillJob
from flexformer.distill.procedures import finetune_job
from flexformer.training import Job, LanguageJob, LanguageOptions, RunFolder, RunOptions, TaskJob, run_job
from flexformer.training.job import Settings
from flexformer.training.record import IRRELEVANT, Record, differences, flat

from . import presets
from .digest import PLACES, digest, essentials
from .presets import pretrained

Kind: TypeAlias = Literal["train", "train lm", "distill", "finetune"]
Options: TypeAlias = RunOptions | LanguageOptions | DistillOptions | FinetuneOptions

OPTIONS: dict[str, type[Options]] = {
    "train": RunOptions,
    "train lm": LanguageOptions,
    "distill": DistillOptions,
    "finetune": FinetuneOptions,
}
JOBS: dict[str, Callable[[Any], Job]] = {
    "train": TaskJob,
    "train lm": LanguageJob,
    "distill": DistillJob,
    "finetune": finetune_job,
}
REFERENCE = "stage:"
VARIED = ("attention", "preset", "seed", "optimizer.lr")


@dataclass(frozen=True)
class Stage:
    """One training run.

    Args:
        name: Of its folder.
        kind: The command that would do the same.
        options: All of the run's; places may be "stage:NAME/...", of a stage in `needs`.
        needs: Runs that have to be finished before.
    """

    name: str
    kind: Kind
    options: Options
    needs: tuple[Stage, ...] = ()

    @property
    def essentials(self) -> dict[str, Any]:
        """What decides its result, earlier runs included."""
        kept = essentials(self.options.as_dict())
        for name in PLACES:
            if str(kept.get(name, "")).startswith(REFERENCE):
                needed, _, part = str(getattr(self.options, name)).removeprefix(REFERENCE).partition("/")
                kept[name] = f"{self._needed(needed).digest}/{part}"
        return kept

    @property
    def digest(self) -> str:
        """The same for runs with the same result."""
        return digest([self.kind, self.essentials])

    def order(self) -> list[Stage]:
        """This run and all it needs, first things first."""
        before = [stage for needed in self.needs for stage in needed.order()]
        return [*{stage.name: stage for stage in before}.values(), self]

    def _needed(self, name: str) -> Stage:
        return next(stage for stage in self.needs if stage.name == name)

    def resolved(self, output: Path) -> Options:
        """The options with true places."""
        changes = {}
        for name in PLACES:
            value = getattr(self.options, name, None)
            if value is not None and value.startswith(REFERENCE):
                needed, _, part = value.removeprefix(REFERENCE).partition("/")
                changes[name] = str((self._needed(needed).folder(output) / part).resolve())
        return OPTIONS[self.kind].from_dict(self.options.as_dict() | changes)

    def folder(self, output: Path) -> Path:
        """Where it is, or will be, in a working folder.

        A folder of its name may hold a run with options of another day; then it gets one of its own.
        """
        plain = output / self.name
        return plain if self._belongs(plain, output) else output / f"{self.name}-{self.digest}"

    def record(self, output: Path) -> Record | None:
        """The record of the run, finished or not."""
        return _record(self.folder(output))

    def is_finished(self, output: Path) -> bool:
        record = self.record(output)
        return record is not None and record.status == "finished"

    def _belongs(self, folder: Path, output: Path) -> bool:
        record = _record(folder)
        if record is None:
            return True
        wanted = self.resolved(output).as_dict()
        if record.status == "finished":
            return essentials(record.options) == essentials(wanted)
        return not differences(record.options, wanted)  # exactly the same, or it could not go on

    def command(self, output: Path) -> list[str]:
        """The command line that does the same: a preset, what differs from it, and what experiments vary."""
        options = self.resolved(output)
        given = _start(self.kind, options)
        preset = flat(_preset(self.kind, options).as_dict())
        skipped = {"base", "task", "text"} | IRRELEVANT
        for name, value in flat(options.as_dict()).items():
            if name not in skipped and (name in VARIED or value != preset.get(name)):
                given += [f"--{name}", _word(value)]
        return given

    def job(self, output: Path) -> dict[str, Any]:
        """Arguments for `run`."""
        folder = self.folder(output)
        options = self.resolved(output).as_dict()
        return {"kind": self.kind, "options": options, "folder": str(folder), "command": self.command(output)}


def _record(folder: Path) -> Record | None:
    return RunFolder(folder).read()


def _start(kind: Kind, options: Settings) -> list[str]:
    positional = {"train": ("task",), "train lm": (), "distill": ("base", "text"), "finetune": ("base", "task")}[kind]
    return ["flexformer", *kind.split(), *(str(getattr(options, name)) for name in positional)]


def _word(value: Any) -> str:
    """As a command line has it."""
    return json.dumps(value) if value is None or isinstance(value, bool) else str(value)


def _preset(kind: Kind, options: Any) -> Settings:
    if kind == "train":
        return presets.load(options.task, options.preset)
    if kind == "train lm":
        return presets.load_language(options.preset)
    if kind == "distill":
        return pretrained.load_distill(options.preset, options.base, options.text, attention=options.attention)
    return pretrained.load_finetune(options.preset, options.base, options.task, attention=options.attention)[0]


def build_job(kind: str, options: Mapping[str, Any]) -> Job:
    """What `run_job` trains."""
    return JOBS[kind](OPTIONS[kind].from_dict(dict(options)))


def run(kind: str, options: dict[str, Any], folder: str, command: list[str]) -> None:
    """Train, test and record, in the process of a worker; what was cut off goes on."""
    path = Path(folder)
    path.parent.mkdir(parents=True, exist_ok=True)
    run_job(build_job(kind, options), path, Console(stderr=True, highlight=False), command)


def learned_layers(stage: Stage, output: Path) -> list[dict[str, Any]]:
    """The figures of every layer at the end of a distillation, as its report has them."""
    report = json.loads((stage.folder(output) / REPORT).read_text(encoding="utf-8"))
    layers: list[dict[str, Any]] = report["after"]["layers"]
    return layers
