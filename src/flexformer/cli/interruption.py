"""Runs that a signal stopped, as commands report them."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator

from flexformer.cli.main import UserError
from flexformer.training import RunInterruptedError


class StoppedError(UserError):
    """One line, and the exit status that shells give to a signal."""

    def __init__(self, stopped: RunInterruptedError) -> None:
        super().__init__(str(stopped))
        self.status = stopped.status


@contextlib.contextmanager
def reported() -> Iterator[None]:
    """A run inside that is stopped by a signal ends the command with that signal's status."""
    try:
        yield
    except RunInterruptedError as stopped:
        raise StoppedError(stopped) from stopped
