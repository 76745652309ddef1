"""Tasks by name."""

from __future__ import annotations

import importlib
import inspect
import os
from difflib import get_close_matches
from typing import Any

from flexformer.tasks.base import Task

# In the order of the paper's table; `articles` is not in it.
_CLASSES: dict[str, str] = {
    "listops": "flexformer.tasks.listops:ListOps",
    "text": "flexformer.tasks.text:Text",
    "retrieval": "flexformer.tasks.retrieval:Retrieval",
    "image": "flexformer.tasks.image:Image",
    "pathfinder": "flexformer.tasks.pathfinder:Pathfinder",
    "articles": "flexformer.tasks.articles:Articles",
}


def names() -> tuple[str, ...]:
    """The names `build` takes, in the order of the paper's table."""
    return tuple(_CLASSES)


def build(name: str, root: str | os.PathLike[str] | None = None, **options: Any) -> Task:
    """Make a task.

    Args:
        name: One of `names()`.
        root: The folder data lives in; default $FLEXFORMER_DATA, else ~/.cache/flexformer/data.
        **options: Of the task's class, such as `max_length`, `pad_to`, or for generated ones sizes and `seed`.
    """
    task_class = find(name)
    known = [option for option in inspect.signature(task_class).parameters if option != "root"]
    for option in options:
        if option not in known:
            raise ValueError(f"{name} has no option {option!r}{_hint(option, known)}; it has {', '.join(known)}")
    return task_class(root, **options)


def find(name: str) -> type[Task]:
    """The class behind a name."""
    if name not in _CLASSES:
        raise ValueError(f"unknown task {name!r}{_hint(name, names())}; there are {', '.join(names())}")
    module, _, attribute = _CLASSES[name].partition(":")
    found: type[Task] = getattr(importlib.import_module(module), attribute)
    return found


def _hint(name: str, known: tuple[str, ...] | list[str]) -> str:
    matches = get_close_matches(name, known, n=1, cutoff=0.75)
    return f" (did you mean {matches[0]!r}?)" if matches else ""
