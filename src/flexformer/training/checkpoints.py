"""Checkpoints that can be trusted: a marker, written last, says that one is whole.

`Trainer` writes a checkpoint file by file. A process that is killed meanwhile leaves a folder without the
marker, which is removed at the next start. The marker also holds what `Trainer` does not save: how often random
kernels have been used since training began, which decides when they draw anew, and the time spent.
"""

from __future__ import annotations

import json
import shutil
from dataclasses import asdict, dataclass, field
from pathlib import Path

from torch import nn

from ..kernels.random import RandomKernel
from .atomic import write_json

MARKER = "complete.json"


@dataclass(frozen=True)
class Marker:
    """What stands in a finished checkpoint's marker."""

    step: int
    seconds: float = 0.0
    training_forwards: dict[str, int] = field(default_factory=dict)


def folder(parent: Path, step: int) -> Path:
    """Where `Trainer` puts the checkpoint of a step."""
    return parent / f"checkpoint-{step}"


def complete(checkpoint: Path, marker: Marker) -> None:
    """Mark a checkpoint as whole."""
    write_json(checkpoint / MARKER, asdict(marker))


def read(checkpoint: Path) -> Marker | None:
    """The marker of a checkpoint; None if it has none, and so is not whole."""
    try:
        return Marker(**json.loads((checkpoint / MARKER).read_text(encoding="utf-8")))
    except (FileNotFoundError, NotADirectoryError):
        return None


def last(parent: Path) -> tuple[Path, Marker] | None:
    """The latest whole checkpoint in a folder."""
    found = [(path, marker) for path in parent.glob("checkpoint-*") if (marker := read(path)) is not None]
    return max(found, key=lambda pair: pair[1].step, default=None)


def remove_incomplete(parent: Path) -> None:
    """Remove what a killed process left behind."""
    for path in parent.glob("checkpoint-*"):
        if read(path) is None:
            shutil.rmtree(path)


def remove_others(parent: Path, keep: set[int]) -> None:
    """Remove all checkpoints but those of some steps."""
    kept = {folder(parent, step) for step in keep}
    for path in parent.glob("checkpoint-*"):
        if path not in kept:
            (path / MARKER).unlink(missing_ok=True)  # first: half a folder must not look whole
            shutil.rmtree(path)


def training_forwards(model: nn.Module) -> dict[str, int]:
    """How often each random kernel has been used in training."""
    return {name: m.training_forwards for name, m in model.named_modules() if isinstance(m, RandomKernel)}


def restore_training_forwards(model: nn.Module, counts: dict[str, int]) -> None:
    """Let random kernels go on counting."""
    modules = dict(model.named_modules())
    for name, count in counts.items():
        module = modules.get(name)
        if isinstance(module, RandomKernel):
            module.training_forwards = count
