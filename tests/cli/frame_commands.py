"""Sub-commands for the tests of the frame: each does one thing a real one may do."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Literal

from flexformer.cli.main import UserError


@dataclass
class Optimizer:
    """How to learn.

    Args:
        lr: Step size.
    """

    lr: float = 0.1


SLOW = Optimizer()


def greet(
    name: str,
    times: int = 1,
    tone: Literal["plain", "loud"] = "plain",
    dry_run: bool = False,
    optimizer: Optimizer = SLOW,
) -> None:
    """Say hello.

    More than once if asked.

    Args:
        name: Whom to greet.
        times: How often.
        tone: How loudly.
        dry_run: Say what would be said.
        optimizer: Unused.

    Example:
        flexformer greet Ada --times 2
    """
    print(f"{name} {times} {tone} {dry_run} {optimizer}")


def fail(how: str) -> int:
    """Go wrong.

    Args:
        how: In which way.

    Example:
        flexformer fail value
    """
    if how == "status":
        return 3
    if how == "extra":
        import_missing("transformers")
    if how == "fault":
        import_missing("flexformer.no_such_room")
    if how == "disk":
        Path("/no/such/folder/file").write_text("")
    raise {
        "user": UserError("width 7 is odd;\n  use an even one"),
        "value": ValueError("head_dim 30 is not divisible by 4; use a multiple of 4"),
        "type": TypeError("q must be a Tensor"),
        "silent": ValueError(),
        "bug": KeyError("inner"),
        "interrupt": KeyboardInterrupt(),
        "pipe": BrokenPipeError(),
    }[how]


def import_missing(module: str) -> None:
    raise ModuleNotFoundError(f"No module named {module!r}", name=module)


def talk(lines: int = 100_000) -> None:
    """Print more than a pipe holds.

    Args:
        lines: How many.

    Example:
        flexformer talk
    """
    for i in range(lines):
        print(i)


def table() -> None:
    """Print a wide table.

    Example:
        flexformer table
    """
    from rich.table import Table

    from flexformer.cli.main import console

    wide = Table("kernel", "form")
    wide.add_row("[red]flexformer-n[/red]", "x" * 90)
    console().print(wide)
