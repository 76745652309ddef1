"""Tasks: where examples come from, how they become token ids and batches, and what the paper says about them.

`tasks.build(name, root=...)` gives a `Task`; `tasks.names()` lists them. Names resolve when first used, so that
the processes which generate data need not load torch.
"""

from __future__ import annotations

import importlib
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from flexformer.tasks.base import Split, Task, TaskDataset
    from flexformer.tasks.description import TaskDescription
    from flexformer.tasks.errors import CorruptDataError, MissingDataError
    from flexformer.tasks.registry import build, names

__all__ = [
    "CorruptDataError",
    "MissingDataError",
    "Split",
    "Task",
    "TaskDataset",
    "TaskDescription",
    "build",
    "names",
]

_HOMES = {
    "CorruptDataError": "errors",
    "MissingDataError": "errors",
    "Split": "base",
    "Task": "base",
    "TaskDataset": "base",
    "TaskDescription": "description",
    "build": "registry",
    "names": "registry",
}


def __getattr__(name: str) -> Any:
    if name not in _HOMES:
        raise AttributeError(f"module 'flexformer.tasks' has no attribute {name!r}; it has {', '.join(__all__)}")
    value = getattr(importlib.import_module(f"flexformer.tasks.{_HOMES[name]}"), name)
    globals()[name] = value
    return value


def __dir__() -> list[str]:
    return sorted({*globals(), *__all__})
