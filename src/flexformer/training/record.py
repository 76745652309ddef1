"""A run's folder and the record in it: what was asked, with what it ran, what came out.

run.json       the record, see `Record`
config.yaml    the options, to be used again with --config
log.jsonl      losses and evaluations, one line each
model/         the weights that were tested, as `save_pretrained` writes them
checkpoints/   while the run is unfinished
"""

from __future__ import annotations

import contextlib
import json
import os
import platform
from collections.abc import Iterator, Mapping
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

import torch
import yaml

from flexformer.files import write_folder, write_json, write_text
from flexformer.provenance import commit, cpu_model, versions

from . import checkpoints
from .job import Settings

PACKAGES = ("torch", "transformers", "accelerate", "numpy")
ADAPTER = "adapter"  # where runs with a pretrained model put their kernels
LARGEST_RECORD = 2**24

# Where the data lies, not which; and what does not change what is learned.
IRRELEVANT = {"data.root", "training.tensorboard", "training.timeout"}


class RunFolderError(ValueError):
    """The folder cannot take this run."""


@dataclass
class Record:
    """What `run.json` holds."""

    command: list[str]
    task: str
    attention: str
    scale: str
    seed: int
    options: dict[str, Any]
    status: str = "running"
    """running (or killed), interrupted, diverged or finished"""
    parameters: int = 0
    steps: int = 0
    selected_step: int = 0
    """the step whose weights were kept and tested"""
    tokens: int = 0
    """read in training, padding not counted"""
    seconds: float = 0.0
    """of the whole run, evaluations and earlier pieces included"""
    step_seconds: float | None = None
    """the median training step"""
    peak_memory: int | None = None
    """bytes a training step takes at most beyond what was held before training"""
    metrics: dict[str, float] = field(default_factory=dict)
    commit: str | None = None
    versions: dict[str, str] = field(default_factory=dict)
    machine: dict[str, Any] = field(default_factory=dict)
    later_commits: list[str] = field(default_factory=list)
    """of code that went on with a run that other code had begun"""

    @classmethod
    def begin(cls, options: Settings, command: list[str]) -> Record:
        """The record of a run that starts here and now."""
        return cls(
            command=command,
            task=options.task,
            attention=options.attention,
            scale=options.preset,
            seed=options.seed,
            options=options.as_dict(),
            commit=commit(),
            versions=versions(*PACKAGES),
            machine=machine(),
        )

    def goes_on(self) -> None:
        """Note the code that goes on with the run, where it is not that of the piece before."""
        now = commit()
        if now is not None and now != [self.commit, *self.later_commits][-1]:
            self.later_commits.append(now)


class RunFolder:
    """The folder of one run.

    Args:
        path: Made if it is not there.
    """

    def __init__(self, path: Path) -> None:
        self.path = path
        self.record_file = path / "run.json"
        self.log_file = path / "log.jsonl"
        self.config_file = path / "config.yaml"
        self.model = path / "model"
        self.checkpoints = path / "checkpoints"
        self.tensorboard = path / "tensorboard"
        self.adapter = path / ADAPTER

    @contextlib.contextmanager
    def locked(self) -> Iterator[None]:
        """Keep other processes from running in the folder; a killed one's lock goes with it."""
        self.path.mkdir(parents=True, exist_ok=True)
        lock = self.path / ".lock"
        try:
            import fcntl
        except ImportError:  # no such locks on this system
            yield
            return
        with lock.open("w") as file:
            try:
                fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
            except BlockingIOError:
                raise RunFolderError(f"{self.path}: another process is running here; wait, or choose another") from None
            try:
                yield
            finally:
                lock.unlink(missing_ok=True)
                with contextlib.suppress(OSError):
                    self.path.rmdir()  # where nothing came of it

    def read(self) -> Record | None:
        """The record, None if there is none."""
        try:
            size = self.record_file.stat().st_size
            if size > LARGEST_RECORD:
                raise RunFolderError(f"{self.record_file}: not the record of a run: it has {size} bytes")
            record = Record(**json.loads(self.record_file.read_text(encoding="utf-8")))
        except FileNotFoundError:
            return None
        except RunFolderError:
            raise
        except (ValueError, TypeError, RecursionError) as error:
            raise RunFolderError(f"{self.record_file}: not the record of a run: {error}") from error
        kinds = {"options": dict, "metrics": dict, "machine": dict, "task": str, "status": str, "later_commits": list}
        for name, kind in kinds.items():
            if not isinstance(getattr(record, name), kind):
                raise RunFolderError(f"{self.record_file}: not the record of a run: {name} is not a {kind.__name__}")
        return record

    def write(self, record: Record) -> None:
        """Write the record."""
        write_json(self.record_file, asdict(record))

    def save_model(self, model: Any) -> None:
        """Write a Hugging Face model as a whole."""
        write_folder(self.model, lambda path: model.save_pretrained(path))

    def weights(self) -> Path | None:
        """The folder of the finished model, else of what there is so far; None before there is anything.

        Checkpoints of a pretrained model are for going on alone: they hold no model that could be loaded. What was
        learned lies in the model, or in the adapter, that such a run writes when it is interrupted too; of one that
        went on and was killed it lies in checkpoints alone.
        """
        record = self.read()
        if record is not None and record.status == "finished" and self.model.is_dir():
            return self.model  # checkpoints may be left of a process that died while it tidied up
        found = checkpoints.last(self.checkpoints)
        if found is not None and (found[0] / "config.json").is_file():
            return found[0]
        if found is not None and record is not None and found[1].step > record.steps:
            return None
        return next((folder for folder in (self.model, self.adapter) if folder.is_dir()), None)

    def check(self, options: Settings) -> Record | None:
        """The record of the run that these options describe, if it is here; None if the folder is free for it.

        Raises:
            RunFolderError: The folder holds another run, or something that is no run at all.
        """
        record = self.read()
        if record is not None:
            other = differences(record.options, options.as_dict())
            if other:
                raise RunFolderError(
                    f"{self.path} holds a run with {_and(other, 0)}, not {_and(other, 1)}; choose another folder or "
                    "remove this one"
                )
            return record
        if any(not path.name.startswith(".") for path in self.path.iterdir()):  # locks, and files cut off while written
            raise RunFolderError(f"{self.path} is not empty and holds no run; choose another folder")
        return None

    def begin(self, options: Settings, command: list[str]) -> Record:
        """Start the record of a new run."""
        record = Record.begin(options, command)
        self.write(record)  # first, so that a folder that holds anything says what it is
        return record

    def lay_out(self, options: Settings) -> None:
        """Make what lies beside the record."""
        self.checkpoints.mkdir(exist_ok=True)
        write_text(self.config_file, yaml.safe_dump(options.as_dict(), sort_keys=False))


def differences(old: dict[str, Any], new: dict[str, Any]) -> dict[str, tuple[Any, Any]]:
    """Options by dotted name that differ, with both values; one that is off is as one that is not there."""
    flat_old, flat_new = flat(old), flat(new)

    def decides(value: Any) -> Any:
        return None if value is False or value == {} else value

    return {
        name: (flat_old.get(name), flat_new.get(name))
        for name in sorted(flat_old.keys() | flat_new.keys())
        if name not in IRRELEVANT and decides(flat_old.get(name)) != decides(flat_new.get(name))
    }


def flat(options: Mapping[str, Any], prefix: str = "") -> dict[str, Any]:
    """Nested options by dotted name."""
    found: dict[str, Any] = {}
    for key, value in options.items():
        if isinstance(value, Mapping) and value:
            found |= flat(value, f"{prefix}{key}.")
        else:
            found[prefix + key] = list(value) if isinstance(value, tuple) else value
    return found


def _and(values: dict[str, tuple[Any, Any]], which: int) -> str:
    return ", ".join(f"{name} {pair[which]}" for name, pair in values.items())


def machine() -> dict[str, Any]:
    """What the run computes on."""
    device = torch.cuda.get_device_name() if torch.cuda.is_available() else "cpu"
    system = f"{platform.system()} {platform.machine()}"
    return {
        "cpu": cpu_model(),
        "system": system,
        "cores": os.cpu_count(),
        "threads": torch.get_num_threads(),
        "device": device,
    }
