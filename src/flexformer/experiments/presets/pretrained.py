"""Settings by name for what starts from a pretrained model: `flexformer distill`, `finetune` and `convert`.

Where attentions or tasks want different settings, a file has them under `by_attention` or `by_task`, over those for
all.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

from flexformer.distill.options import DistillOptions, FinetuneOptions, StageOptions

from . import FOLDER, _hint, _merged, _read

BY_ATTENTION, BY_TASK = "by_attention", "by_task"


def path(command: str, preset: str, task: str | None = None) -> Path:
    """The file of a preset.

    Args:
        command: "distill" or "finetune"; its presets are in a folder of that name.
        preset: A name such as "cpu".
        task: Looked up first as "TASK-PRESET", for settings that differ altogether from task to task.

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


def settings(command: str, preset: str, attention: str, task: str | None = None) -> dict[str, Any]:
    """What the file of a preset says about an attention and a task; other arguments as for `path`."""
    return _chosen(_read(path(command, preset, task)), {BY_ATTENTION: attention, BY_TASK: task})


def _chosen(values: dict[str, Any], given: dict[str, str | None]) -> dict[str, Any]:
    merged = {key: value for key, value in values.items() if key not in given}
    for section, name in given.items():
        merged = _merged(merged, values.get(section, {}).get(name, {}))
    return {key: _chosen(value, given) if isinstance(value, dict) else value for key, value in merged.items()}


def load_distill(
    preset: str, base: str, text: str, *, attention: str = DistillOptions.attention, **options: Any
) -> DistillOptions:
    """The options of a distillation.

    Args:
        preset: One of `names("distill")`.
        base: The pretrained model.
        text: What it reads.
        attention: The kernel that learns.
        **options: Replace the preset's; a dict replaces only the keys it has.
    """
    values = _merged(settings("distill", preset, attention), options)
    return DistillOptions.from_dict({"base": base, "text": text, "attention": attention, "preset": preset} | values)


def load_finetune(
    preset: str, base: str, task: str, *, attention: str = FinetuneOptions.attention, **options: Any
) -> tuple[FinetuneOptions, StageOptions]:
    """The options of a fine-tuning, and of the distillation that may come between two of them.

    Args:
        preset: One of `names("finetune", task)`.
        base: The pretrained model.
        task: A GLUE task.
        attention: In the model.
        **options: Replace the preset's; a dict replaces only the keys it has.
    """
    values = _merged(settings("finetune", preset, attention, task), options)
    stage = StageOptions.from_dict(values.pop("distill", {}))
    given = {"base": base, "task": task, "attention": attention, "preset": preset}
    return FinetuneOptions.from_dict(given | values), stage
