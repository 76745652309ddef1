"""`flexformer demo`: what this package is about, in a few minutes."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Any

from rich.table import Table

from flexformer.cli.interruption import reported
from flexformer.cli.main import console
from flexformer.demo import Outcome, run
from flexformer.demo.show import as_json


def demo(output: Path = Path("runs/demo"), minutes: float = 5.0, seed: int = 0, json: bool = False) -> int:
    """Train four small language models, let one write, measure speed and memory, and write a report.

    The models read the sources of Python's standard library, so nothing is downloaded; they differ in their attention
    alone: softmax, linear, flexformer-n and flexformer-c. As many steps are taken as fit into the time, equal for all.
    Interrupted and started again it goes on; once finished it starts anew.

    Args:
        output: The folder everything goes to; report.html in it is the result.
        minutes: The time everything may take.
        seed: Of all that is drawn.
        json: Print the figures as JSON; progress goes to the error stream.

    Example:
        flexformer demo --minutes 5 --output runs/demo
    """
    screen = console(json)
    with reported():
        outcome = run(output, minutes, seed, screen, ["flexformer", *sys.argv[1:]])
    if json:
        print(as_json(outcome))
        return 0
    screen.print()
    screen.print(_table(outcome))
    screen.print(f"\n[bold]{outcome.written.attention} writes[/], after {outcome.steps} steps:\n")
    screen.print(outcome.written.prompt + outcome.written.text, markup=False, soft_wrap=True)
    screen.print(
        f"\n{outcome.written.tokens_per_second:.0f} bytes a second, from a state of "
        f"{outcome.written.state_bytes / 1024:.0f} KiB that does not grow.\n"
    )
    minutes_taken, rest = divmod(round(outcome.seconds), 60)
    screen.print(f"Done in {minutes_taken}:{rest:02} minutes. Open in a browser: {outcome.report}", soft_wrap=True)
    return 0


def _table(outcome: Outcome) -> Table:
    table = Table(title=f"{outcome.steps} steps on Python's standard library", title_justify="left")
    lengths = sorted({m["length"] for m in outcome.scaling["measurements"]})[-3:]
    measured = {(m["row"], m["length"]): m for m in outcome.scaling["measurements"]}
    table.add_column("attention")
    for heading in ("test bits\nper byte", "parameters", "training\nms a step"):
        table.add_column(heading, justify="right")
    for length in lengths:
        table.add_column(f"{length // 1024}k tokens\nms", justify="right")
        table.add_column("\nMiB", justify="right")
    for name, record in outcome.records.items():
        cells = [text for length in lengths for text in _cost(measured.get((name, length)))]
        step = "–" if record.step_seconds is None else f"{1e3 * record.step_seconds:.0f}"
        table.add_row(name, f"{record.metrics['test_bits_per_byte']:.3f}", f"{record.parameters:,}", step, *cells)
    return table


def _cost(measurement: dict[str, Any] | None) -> tuple[str, str]:
    if measurement is None or not measurement["seconds"]:
        return "–", "–"
    peak = (measurement["memory"] or {}).get("peak_bytes")
    return f"{1e3 * measurement['seconds']['median']:,.0f}", "–" if peak is None else f"{peak / 2**20:,.0f}"
