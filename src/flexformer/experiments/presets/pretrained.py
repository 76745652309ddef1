"""Settings by name for what starts from a pretrained model: `flexformer distill`, `finetune` and `convert`."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import yaml

from flexformer.distill.options import DistillOptions, FinetuneOptions, StageOptions

from . import FOLDER, _hint, _merged


def path(command: str, preset: str, task: str | None = None) -> Path:
    """The file of a preset.

    Args:
        command: "distill" or "finetune"; its presets are in a folder of that name.
        preset: A name such as "cpu".
        task: Looked up first as "TASK-PRESET", for settings that differ from task to task.

    Raises:
        ValueError: There is no such preset.
    """
    known = names(command, task)
    if preset not in known:
        raise ValueError(f"preset {preset!r} is unknown{_hint(preset, known)}; use one of {', '.join(known)}")
    own = FOLDER / command / f"{task}-{preset}.yaml"
    return own if own.is_file() else FOLDER / command / f"{preset}.yaml"


def names(command: str, task: str | None = None) -> tuple[str, ...]:
    """The presets that there are for a command and a task."""
    stems = [path.stem for path in (FOLDER / command).glob("*.yaml")]
    return tuple(sorted({s.removeprefix(f"{task}-") for s in stems if "-" not in s or s.startswith(f"{task}-")}))


def load_distill(preset: str, base: str, text: str, **options: Any) -> DistillOptions:
    """The options of a distillation.

    Args:
        preset: One of `names("distill")`.
        base: The pretrained model.
        text: What it reads.
        **options: Replace the preset's; a dict replaces only the keys it has.
    """
    values = yaml.safe_load(path("distill", preset).read_text(encoding="utf-8"))
    return DistillOptions.from_dict({"base": base, "text": text, "preset": preset} | _merged(values, options))


def load_finetune(preset: str, base: str, task: str, **options: Any) -> tuple[FinetuneOptions, StageOptions]:
    """The options of a fine-tuning, and of the distillation that may come between two of them.

    Args:
        preset: One of `names("finetune", task)`.
        base: The pretrained model.
        task: A GLUE task.
        **options: Replace the preset's; a dict replaces only the keys it has.
    """
    values = yaml.safe_load(path("finetune", preset, task).read_text(encoding="utf-8"))
    merged = {"base": base, "task": task, "preset": preset} | _merged(values, options)
    stage = StageOptions.from_dict(merged.pop("distill", {}))
    return FinetuneOptions.from_dict(merged), stage
