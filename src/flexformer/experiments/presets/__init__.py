"""Settings by name, as commented YAML: `paper`, `cpu` and `smoke` for every task, and two sizes of `paper` for `lm`.

A file holds options of `flexformer train`, or of `flexformer train lm`; what it leaves out has its default.
"""

from __future__ import annotations

from difflib import get_close_matches
from pathlib import Path
from typing import Any

import yaml

from flexformer import tasks
from flexformer.training import LanguageOptions, RunOptions
from flexformer.training.language_options import TASK as LANGUAGE

FOLDER = Path(__file__).parent


def names(task: str) -> tuple[str, ...]:
    """The presets of a task."""
    return tuple(sorted(path.stem.removeprefix(f"{task}-") for path in FOLDER.glob(f"{task}-*.yaml")))


def path(task: str, preset: str) -> Path:
    """The file of a preset.

    Raises:
        ValueError: There is no such task or preset.
    """
    present = (*tasks.names(), LANGUAGE)
    if task not in present:
        raise ValueError(f"task {task!r} is unknown{_hint(task, present)}; use one of {', '.join(present)}")
    known = names(task)
    if preset not in known:
        raise ValueError(
            f"preset {preset!r} is unknown to task {task}{_hint(preset, known)}; use one of {', '.join(known)}"
        )
    return FOLDER / f"{task}-{preset}.yaml"


def settings(task: str, preset: str) -> dict[str, Any]:
    """What the file of a preset says; arguments as for `path`."""
    return _read(path(task, preset))


def load(task: str, preset: str, **options: Any) -> RunOptions:
    """The options of a preset.

    Args:
        task: A name in `tasks.names()`.
        preset: One of `names(task)`.
        **options: Replace the preset's; a dict replaces only the keys it has.
    """
    return RunOptions.from_dict({"task": task, "preset": preset} | _merged(settings(task, preset), options))


def load_language(preset: str, **options: Any) -> LanguageOptions:
    """The options of a preset for language models; arguments as for `load`."""
    return LanguageOptions.from_dict({"preset": preset} | _merged(settings(LANGUAGE, preset), options))


def _read(file: Path) -> dict[str, Any]:
    return dict(yaml.safe_load(file.read_text(encoding="utf-8")))


def _merged(below: dict[str, Any], above: dict[str, Any]) -> dict[str, Any]:
    merged = dict(below)
    for key, value in above.items():
        both = isinstance(value, dict) and isinstance(merged.get(key), dict)
        merged[key] = _merged(merged[key], value) if both else value
    return merged


def _hint(name: str, known: tuple[str, ...]) -> str:
    matches = get_close_matches(name, known, n=1)
    return f", did you mean {matches[0]!r}?" if matches else ""
