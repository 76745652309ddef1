"""How long work tells whoever waits for it."""

from __future__ import annotations

from collections.abc import Callable
from typing import TypeAlias

# Called as progress(done, total) from time to time; the unit is whatever the task counts, mostly examples.
Progress: TypeAlias = Callable[[int, int], None]


def silent(done: int, total: int) -> None:
    """Say nothing."""
