"""`flexformer train lm`: a language model, from text to a tested model that generates."""

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
    LanguageDataOptions,
    LanguageJob,
    LanguageModelOptions,
    LanguageOptions,
    OptimizerOptions,
    Record,
    ScheduleOptions,
    TrainingOptions,
    run_job,
)

TASK = "lm"


def find_preset(options: dict[str, Any]) -> dict[str, Any]:
    """The settings of the preset that a command line asks for."""
    try:
        return presets.settings(TASK, options["preset"])
    except ValueError as error:
        raise UsageError(str(error)) from error


@with_presets(find_preset)
def train(
    attention: str = "flexformer-n",
    preset: str = "cpu",
    output: Path | None = None,
    seed: int = 0,
    data: LanguageDataOptions = LanguageDataOptions(),  # noqa: B008  (frozen)
    model: LanguageModelOptions = LanguageModelOptions(),  # noqa: B008
    optimizer: OptimizerOptions = OptimizerOptions(),  # noqa: B008
    schedule: ScheduleOptions = ScheduleOptions(),  # noqa: B008
    training: TrainingOptions = TrainingOptions(),  # noqa: B008
    json: bool = False,
) -> int:
    """Train a language model on any text, test it and record everything in one folder.

    Without --data.source it learns from sources of Python's standard library, so that it works on any machine.
    A preset gives all settings: `paper-small` and `paper-big` those of the paper, `cpu` smaller ones for two cores,
    `smoke` a few steps to see that all works. Options override it one by one; --print_config shows what would be used.
    A run that was killed or interrupted goes on, to the same result, when the same command is given again.
    flexformer generate writes text with the result.

    Args:
        attention: softmax, flexformer-s, flexformer-n, flexformer-c, linear, performer, rfa, cosformer, hedgehog or
            polaformer.
        preset: The settings to start from: paper-small, paper-big, cpu or smoke.
        output: The run's folder; default runs/lm-ATTENTION-PRESET-SEED.
        seed: Of weights, dropout and the order of blocks.
        data: The text.
        model: The model.
        optimizer: AdamW.
        schedule: The learning rate over time.
        training: How long and in which portions; an example is a block of text.
        json: Print the record as JSON; progress goes to the error stream.

    Example:
        flexformer train lm --data.source wikitext2 --attention flexformer-n --preset cpu --output runs/wikitext2
    """
    options = LanguageOptions(attention, preset, seed, data, model, optimizer, schedule, training)
    folder = Path("runs", f"{TASK}-{attention}-{preset}-{seed}") if output is None else output
    screen = console(json)
    with reported():
        record = run_job(LanguageJob(options), folder, screen, ["flexformer", *sys.argv[1:]])
    if json:
        print_json(asdict(record))
    else:
        screen.print(_table(record))
        screen.print(f"{folder} holds the record, the log and the model.", soft_wrap=True)
        screen.print(f"Let it write: flexformer generate {folder}", soft_wrap=True)
    return 0


def _table(record: Record) -> Table:
    source = record.options["data"]["source"]
    table = Table(title=f"{source}, {record.attention}, {record.scale} scale", title_justify="left")
    measure = "bits_per_byte" if "test_bits_per_byte" in record.metrics else "perplexity"
    name = measure.replace("_", " ")
    for heading in (f"test {name}", f"validation {name}", "parameters", "steps", "tokens", "minutes"):
        table.add_column(heading, justify="right")
    values = [record.metrics.get(f"{split}_{measure}") for split in ("test", "validation")]
    table.add_row(
        *("–" if value is None else f"{value:.3f}" for value in values),
        f"{record.parameters:,}",
        f"{record.steps:,}",
        f"{record.tokens:,}",
        f"{record.seconds / 60:.1f}",
    )
    return table
