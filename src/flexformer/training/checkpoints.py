"""Checkpoints that can be trusted: a marker, written last, says that one is whole and what its files hold.

`Trainer` writes a checkpoint file by file. A process that is killed meanwhile leaves a folder without the
marker, which is removed at the next start. The marker has the checksums of all files and of itself, so that a
checkpoint that was damaged later is not used: training goes on from the one before, to the same result. It also
holds what `Trainer` does not save: how often random kernels have been used since training began, which decides when
they draw anew, and the time spent.
"""

from __future__ import annotations

import hashlib
import json
import shutil
from collections.abc import Callable
from contextlib import suppress
from dataclasses import asdict, dataclass, field, replace
from pathlib import Path
from typing import Any

from torch import nn

from ..files import write_json
from ..kernels.random import RandomKernel
from ..tasks.cache import sha256

MARKER = "complete.json"
LARGEST_MARKER = 2**20


class CheckpointError(ValueError):
    """A checkpoint that cannot be used, or could not be written."""


@dataclass(frozen=True)
class Marker:
    """What stands in a finished checkpoint's marker."""

    step: int
    seconds: float = 0.0
    training_forwards: dict[str, int] = field(default_factory=dict)
    best: int = 0
    """the step whose weights were the best so far, if they will be needed in the end; 0 if not"""
    files: dict[str, str] = field(default_factory=dict)
    """checksum by name"""


def folder(parent: Path, step: int) -> Path:
    """Where `Trainer` puts the checkpoint of a step."""
    return parent / f"checkpoint-{step}"


def complete(checkpoint: Path, marker: Marker) -> None:
    """Mark a checkpoint as whole."""
    files = {path.relative_to(checkpoint).as_posix(): sha256(path) for path in _files(checkpoint)}
    content = asdict(replace(marker, files=files))
    write_json(checkpoint / MARKER, content | {"checksum": _checksum(content)})


def read(checkpoint: Path) -> Marker | None:
    """The marker of a checkpoint; None if it has none that is as it was written, and so is not whole."""
    path = checkpoint / MARKER
    try:
        if path.stat().st_size > LARGEST_MARKER:
            return None
        content = json.loads(path.read_text(encoding="utf-8"))
        checksum = content.pop("checksum", None)
        known = checksum == _checksum(content) or content.keys() == {"step", "seconds", "training_forwards"}  # by 0.1.0
        return Marker(**content) if known else None
    except (OSError, ValueError, KeyError, TypeError, AttributeError, RecursionError):
        return None


def verify(checkpoint: Path) -> Marker:
    """The marker of a checkpoint after all checksums were compared.

    Raises:
        CheckpointError: It is not whole, or was changed since.
    """
    marker = read(checkpoint)
    if marker is None:
        raise CheckpointError(f"{checkpoint} is not a whole checkpoint: {MARKER} is missing or damaged")
    for name, checksum in marker.files.items():
        path = checkpoint / name
        if not path.is_file():
            raise CheckpointError(f"{checkpoint} is damaged: {name} is missing")
        if sha256(path) != checksum:
            raise CheckpointError(f"{checkpoint} is damaged: {name} does not have the checksum it was written with")
    return marker


def last(parent: Path) -> tuple[Path, Marker] | None:
    """The latest checkpoint that is as it was written."""
    finished = [(path, marker) for path in parent.glob("checkpoint-*") if (marker := read(path)) is not None]
    for path, marker in sorted(finished, key=lambda pair: -pair[1].step):
        with suppress(CheckpointError):
            verify(path)
            return path, marker
    return None


def recover(parent: Path, tell: Callable[[str], None]) -> tuple[Path, Marker] | None:
    """The latest checkpoint to go on from, everything compared; what cannot be used is removed.

    Args:
        parent: Where checkpoints are.
        tell: Called with a sentence for each checkpoint that was damaged.
    """
    whole: dict[int, tuple[Path, Marker]] = {}
    for path in sorted(parent.glob("checkpoint-*")):
        try:
            marker = verify(path)
            whole[marker.step] = path, marker
        except CheckpointError as error:
            if (path / MARKER).exists():  # otherwise a kill has cut it off, which is nothing to speak of
                tell(str(error))
            _remove(path)
    usable = [step for step, (_, marker) in whole.items() if marker.best in whole or not marker.best]
    chosen = max(usable, default=None)
    for step in whole.keys() - set(usable):
        tell(f"{whole[step][0]} needs the weights of step {whole[step][1].best}, which are not whole")
        _remove(whole[step][0])
    return None if chosen is None else whole[chosen]


def keep_latest(parent: Path) -> None:
    """Remove all checkpoints but the last two and those with the best weights they know of."""
    markers = sorted((m for path in parent.glob("checkpoint-*") if (m := read(path))), key=lambda m: m.step)[-2:]
    kept = {folder(parent, step) for marker in markers for step in (marker.step, marker.best)}
    for path in parent.glob("checkpoint-*"):
        if path not in kept:
            _remove(path)


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


def _files(checkpoint: Path) -> list[Path]:
    return sorted(path for path in checkpoint.rglob("*") if path.is_file() and path != checkpoint / MARKER)


def _checksum(content: dict[str, Any]) -> str:
    return hashlib.sha256(json.dumps(content, sort_keys=True).encode()).hexdigest()


def _remove(checkpoint: Path) -> None:
    (checkpoint / MARKER).unlink(missing_ok=True)  # first: half a folder must not look whole
    shutil.rmtree(checkpoint)
