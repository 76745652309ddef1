"""Runs of a grid, each in a process of its own; finished ones are not repeated, one that was cut off goes on."""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import TextIO

import yaml

from flexformer.training import RunFolder
from flexformer.training.atomic import write_text
from flexformer.training.job import Settings
from flexformer.training.record import Record


class GridError(ValueError):
    """A run of a grid did not finish.

    Args:
        message: Which one.
        status: Its exit status.
    """

    def __init__(self, message: str, status: int) -> None:
        super().__init__(message)
        self.status = status


def finish(command: Sequence[str], options: Settings, folder: Path, shown: TextIO) -> Record:
    """Make sure that a run is finished.

    Args:
        command: The sub-command and its positional arguments, such as ["train", "listops"].
        options: All of the run's options.
        folder: The run's own.
        shown: An open file, not only a stream, that takes what the run prints.
    """
    runs = RunFolder(folder)
    record = runs.read()
    if record is not None and record.status == "finished" and record.options == options.as_dict():
        return record
    folder.parent.mkdir(parents=True, exist_ok=True)
    settings = folder.with_name(f"{folder.name}.yaml")
    write_text(settings, yaml.safe_dump(options.as_dict(), sort_keys=False))
    # What can be imported here can be imported there, and from the same files.
    environment = os.environ | {"PYTHONPATH": os.pathsep.join(path for path in sys.path if path)}
    arguments = [sys.executable, "-m", "flexformer", *command, "--config", str(settings), "--output", str(folder)]
    result = subprocess.run(arguments, env=environment, stdout=shown)
    if result.returncode:
        raise GridError(f"{folder} ended with status {result.returncode}; its message is above", result.returncode)
    settings.unlink()
    finished = runs.read()
    assert finished is not None
    return finished
