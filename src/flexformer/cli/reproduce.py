"""`flexformer reproduce`: the paper's tables and figures, each by one command."""

from __future__ import annotations

import json as json_format
import sys
from dataclasses import asdict
from pathlib import Path

from rich.table import Table

from flexformer.cli.main import UserError, console
from flexformer.experiments.frequencies import Point, plan, sweep
from flexformer.experiments.grid import GridError
from flexformer.training.atomic import write_bytes


class _UnfinishedError(UserError):
    def __init__(self, error: GridError) -> None:
        super().__init__(str(error))
        self.status = error.status if error.status > 0 else 1


def frequencies(
    tasks: list[str] = ["image", "listops"],  # noqa: B006  (never changed)
    attention: str = "flexformer-n",
    preset: str = "cpu",
    multiples: list[float] = [0.25, 0.5, 1, 2, 4],  # noqa: B006
    seeds: list[int] = [0],  # noqa: B006
    source: str | None = None,
    root: str | None = None,
    output: Path = Path("results/frequencies"),
    json: bool = False,
) -> int:
    """Train with different numbers of frequencies: accuracy or perplexity, speed and memory against n.

    Every run is one of flexformer train with the preset's settings, in a process of its own; runs that are finished
    are not repeated, one that was cut off goes on. Writes frequencies.json and frequencies.png.

    Args:
        tasks: Which tasks; lm for a language model.
        attention: flexformer-s or flexformer-n.
        preset: The settings all runs share: paper, cpu or smoke.
        multiples: Numbers of frequencies as multiples of the head's width.
        seeds: One run for each.
        source: The text of lm, such as wikitext2; default the preset's.
        root: Folder the data lives in; default $FLEXFORMER_DATA, else flexformer/data in the user's cache.
        output: Where runs, figures and the plot go.
        json: Print the figures as JSON, after what the runs print on the error stream.

    Example:
        flexformer reproduce frequencies --tasks [image] --multiples [0.5,1,2] --preset cpu
    """
    runs = plan(tasks, attention, preset, multiples, seeds, root, source=source)
    try:
        points = sweep(runs, output, sys.stderr if json else sys.stdout)
    except GridError as error:
        raise _UnfinishedError(error) from error
    from flexformer.viz.frequencies import plot_frequencies

    plot = output / "frequencies.png"
    write_bytes(plot, plot_frequencies([asdict(point) for point in points], preset))
    if json:
        print(json_format.dumps([asdict(point) for point in points]))
        return 0
    screen = console()
    screen.print(_table(points, preset))
    screen.print(f"{plot} shows it.", soft_wrap=True)
    return 0


def _table(points: list[Point], preset: str) -> Table:
    table = Table(title=f"Number of frequencies, {preset} scale", title_justify="left")
    for heading in ("task", "n", "n / d", "seed", "test", "steps / s", "peak MiB", "parameters"):
        table.add_column(heading, justify="left" if heading == "task" else "right")
    for point in points:
        table.add_row(
            point.task,
            str(point.frequencies),
            f"{point.frequencies / point.head_dim:g}",
            str(point.seed),
            _quality(point),
            "–" if point.steps_per_second is None else f"{point.steps_per_second:.2f}",
            "–" if point.peak_memory is None else f"{point.peak_memory / 2**20:.0f}",
            f"{point.parameters:,}",
        )
    return table


def _quality(point: Point) -> str:
    if point.test_accuracy is not None:
        return f"{100 * point.test_accuracy:.2f} %"
    return "–" if point.test_perplexity is None else f"perplexity {point.test_perplexity:.2f}"
