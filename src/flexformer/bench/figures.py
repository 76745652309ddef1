"""What pages and tables of benchmarks are made of: figures of a run, and how they are written."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Any

from .operations import OURS
from .record import Record

BOTH = "forward+backward"


class Figures:
    """The measurements of one run by row, length and pass."""

    def __init__(self, record: Record) -> None:
        self.record = record
        self.found = {(m["row"], m["length"], m["pass"]): m for m in record["measurements"]}
        self.rows = list(dict.fromkeys(m["row"] for m in record["measurements"]))
        self.lengths = sorted({m["length"] for m in record["measurements"]})

    def seconds(self, row: str, length: int, direction: str = BOTH) -> float | None:
        seconds = self.found.get((row, length, direction), {}).get("seconds")
        return seconds["median"] if seconds else None

    def peak(self, row: str, length: int, direction: str = BOTH) -> int | None:
        memory = self.found.get((row, length, direction), {}).get("memory")
        return memory["peak_bytes"] if memory else None

    def ratio(self, slow: str, fast: str, length: int, direction: str = BOTH) -> float | None:
        return divide(self.seconds(slow, length, direction), self.seconds(fast, length, direction))

    def note(self, row: str, length: int, direction: str = BOTH) -> str:
        return (self.found.get((row, length, direction), {}).get("note") or "").partition(":")[0]


def table(head: Sequence[str], lines: Iterable[Sequence[str]]) -> str:
    """A Markdown table; nothing where there are no lines."""
    lines = list(lines)
    if not lines:
        return ""
    rule = ["---", *("---:" for _ in head[1:])]
    return "\n".join("| " + " | ".join(line) + " |" for line in (head, rule, *lines))


def divide(a: float | None, b: float | None) -> float | None:
    return None if a is None or not b else a / b


def times(ratio: float | None) -> str:
    return "" if ratio is None else f"{ratio:.2f}x" if ratio < 10 else f"{ratio:.1f}x"


def milliseconds(seconds: float | None) -> str:
    return "" if seconds is None else f"{1e3 * seconds:.3g}" if seconds < 1 else f"{1e3 * seconds:.0f}"


def mebibytes(size: Any) -> str:
    return "" if size is None else f"{size / 2**20:.1f}"


def power(value: float | None) -> str:
    return "" if value is None else f"{value:.2f}"


def bold(row: str) -> str:
    return f"**{row}**" if row == OURS else row
