"""`flexformer train`: one run, from data to a tested model."""

from __future__ import annotations

import sys
from dataclasses import asdict
from pathlib import Path
from typing import Any

from rich.table import Table

from flexformer.cli.arguments import with_presets
from flexformer.cli.interruption import reported
from flexformer.cli.main import UsageError, console, print_json
from flexformer.experiments import presets
from flexformer.training import (
    DataOptions,
    ModelOptions,
    OptimizerOptions,
    Record,
    RunOptions,
    ScheduleOptions,
    TrainingOptions,
)
from flexformer.training import run as run_training


def find_preset(options: dict[str, Any]) -> dict[str, Any]:
    """The settings of the preset that a command line asks for."""
    if options["task"] == "lm":
        raise UsageError("task 'lm' is a command of its own; put it first: flexformer train lm [options]")
    try:
        return presets.settings(options["task"], options["preset"])
    except ValueError as error:
        raise UsageError(str(error)) from error


@with_presets(find_preset)
def train(
    task: str,
    attention: str = "flexformer-n",
    preset: str = "cpu",
    output: Path | None = None,
    seed: int = 0,
    data: DataOptions = DataOptions(),  # noqa: B008  (frozen)
    model: ModelOptions = ModelOptions(),  # noqa: B008
    optimizer: OptimizerOptions = OptimizerOptions(),  # noqa: B008
    schedule: ScheduleOptions = ScheduleOptions(),  # noqa: B008
    training: TrainingOptions = TrainingOptions(),  # noqa: B008
    json: bool = False,
) -> int:
    """Train a model on a task, test it and record everything in one folder.

    A preset gives all settings: `paper` those of the paper, `cpu` smaller ones for two cores, `smoke` a few steps to
    see that all works. Options override it one by one; --print_config shows what would be used. A run that was killed
    or interrupted goes on, to the same result, when the same command is given again.

    Args:
        task: listops, text, retrieval, image, pathfinder or articles. For language models see flexformer train lm.
        attention: Any of flexformer.ATTENTIONS.
        preset: The settings to start from: paper, cpu or smoke.
        output: The run's folder; default runs/TASK-ATTENTION-PRESET-SEED.
        seed: Of weights, dropout and the order of examples.
        data: Which examples are read.
        model: The encoder.
        optimizer: AdamW.
        schedule: The learning rate over time.
        training: How long and in which portions.
        json: Print the record as JSON; progress goes to the error stream.

    Example:
        flexformer train listops --attention flexformer-n --preset cpu --output runs/listops --optimizer.lr 0.02
    """
    options = RunOptions(task, attention, preset, seed, data, model, optimizer, schedule, training)
    folder = Path("runs", f"{task}-{attention}-{preset}-{seed}") if output is None else output
    screen = console(json)
    with reported():
        record = run_training(options, folder, screen, ["flexformer", *sys.argv[1:]])
    if json:
        print_json(asdict(record))
    else:
        screen.print(_table(record))
        screen.print(f"{folder} holds the record, the log and the model.", soft_wrap=True)
    return 0


def _table(record: Record) -> Table:
    table = Table(title=f"{record.task}, {record.attention}, {record.scale} scale", title_justify="left")
    for heading in ("test accuracy", "validation accuracy", "parameters", "steps", "tokens", "minutes"):
        table.add_column(heading, justify="right")
    accuracies = [record.metrics.get(f"{split}_accuracy") for split in ("test", "validation")]
    table.add_row(
        *("–" if value is None else f"{100 * value:.2f} %" for value in accuracies),
        f"{record.parameters:,}",
        f"{record.steps:,}",
        f"{record.tokens:,}",
        f"{record.seconds / 60:.1f}",
    )
    return table
