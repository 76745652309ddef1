"""`flexformer evaluate`: how good a run's model is."""

from __future__ import annotations

from pathlib import Path
from typing import Literal

from rich.table import Table

from flexformer.cli.main import console, print_json
from flexformer.training import evaluate as evaluate_run


def evaluate(
    run: Path,
    split: Literal["test", "validation", "train"] = "test",
    limit: int | None = None,
    batch_size: int | None = None,
    root: str | None = None,
    json: bool = False,
) -> int:
    """Evaluate the model of a training run.

    Of a run that has not finished, the latest checkpoint is evaluated.

    Args:
        run: The run's folder, the --output of flexformer train.
        split: Which examples.
        limit: Only so many of them; default as many as the run itself used.
        batch_size: Examples at once; default as in the run.
        root: Folder the data lives in; default where the run found it.
        json: Print JSON instead of a table; progress goes to the error stream.

    Example:
        flexformer evaluate runs/listops --split validation
    """
    screen = console(json)
    record, found = evaluate_run(run, screen, split, limit, batch_size, root)
    if json:
        about = {"task": record.task, "attention": record.attention, "scale": record.scale, "status": record.status}
        facts = {"split": found.split, "examples": found.examples, **found.metrics, "weights": found.weights}
        print_json({**about, "run": str(run), **facts})
        return 0
    table = Table(title=f"{record.task}, {record.attention}, {record.scale} scale", title_justify="left")
    for heading in ("split", "examples", *(name.replace("_", " ") for name in found.metrics), "weights"):
        table.add_column(heading, justify="left" if heading in ("split", "weights") else "right")
    values = [f"{100 * v:.2f} %" if name == "accuracy" else f"{v:.4f}" for name, v in found.metrics.items()]
    table.add_row(found.split, f"{found.examples:,}", *values, found.weights)
    screen.print(table)
    if record.status != "finished":
        screen.print(f"The run is not finished: {record.status} at step {record.steps}.")
    return 0
