"""`flexformer convert`: from a pretrained model and some text to a linear model and a report."""

from __future__ import annotations

import json as json_format
import sys
from dataclasses import asdict
from pathlib import Path

from rich.table import Table

from flexformer.cli.arguments import with_presets
from flexformer.cli.distill import find_preset, layer_table, output_table
from flexformer.cli.interruption import reported
from flexformer.cli.main import UsageError, console, print_json
from flexformer.distill import DistillJob, DistillOptions, KernelOptions, LossOptions, TextOptions
from flexformer.distill.job import REPORT
from flexformer.distill.report import lengths_line
from flexformer.experiments.conversion import (
    CONVERTED,
    MODELS,
    OUTPUTS,
    Cost,
    as_rows,
    compared_outputs,
    costs,
    lengths_for,
    page,
    warning_for,
)
from flexformer.files import write_json, write_text
from flexformer.parallel.processes import process_count
from flexformer.training import OptimizerOptions, RunFolder, ScheduleOptions, TrainingOptions, run_job

COSTS, PAGE = "costs.json", "report.md"


@with_presets(find_preset)
def convert(
    base: str,
    text: str,
    attention: str = "flexformer-c",
    preset: str = "cpu",
    output: Path | None = None,
    lengths: list[int] | None = None,
    threads: int = 1,
    seed: int = 0,
    kernel: KernelOptions = KernelOptions(),  # noqa: B008  (frozen)
    data: TextOptions = TextOptions(),  # noqa: B008
    loss: LossOptions = LossOptions(),  # noqa: B008
    optimizer: OptimizerOptions = OptimizerOptions(),  # noqa: B008
    schedule: ScheduleOptions = ScheduleOptions(),  # noqa: B008
    training: TrainingOptions = TrainingOptions(),  # noqa: B008
    positions: int | None = None,
    json: bool = False,
) -> int:
    """Make a pretrained model linear: distil its attention into kernels, then measure what was lost and won.

    Writes into one folder: adapter, for flexformer.load(BASE, ADAPTER); report.md and report.json, how near the kernels
    are to softmax by layer and how much of the model's outputs is left; costs.json, time, memory and outputs at several
    lengths. A run that was killed or interrupted goes on when the same command is given again.

    Args:
        base: Folder or hub name of a pretrained encoder or decoder.
        text: A text file, a folder of .txt files, glue:TASK, or a datasets id with a column "text".
        attention: hedgehog or a flexformer attention.
        preset: The settings of the distillation to start from: paper, cpu or smoke.
        output: The folder; default runs/convert-BASE-ATTENTION-PRESET-SEED.
        lengths: Tokens to measure costs and outputs at; default powers of two up to the model's positions, and 4096.
        threads: Of torch, while costs are measured.
        seed: Of the kernels' start and the order of sequences.
        kernel: The kernels.
        data: How text is cut into sequences.
        loss: What kernels learn from.
        optimizer: AdamW.
        schedule: The learning rate over time.
        training: How long and in which portions.
        positions: Let the model read this many tokens first, by repeating its learned table of positions; BERT and
            the like end at 512. Models with rotary positions need none.
        json: Print everything as JSON; progress goes to the error stream.

    Example:
        flexformer convert sentence-transformers/all-MiniLM-L6-v2 wiki.txt --output minilm-linear
    """
    options = DistillOptions(
        base, text, attention, preset, seed, kernel, data, loss, optimizer, schedule, training, positions
    )
    folder = Path("runs", f"convert-{Path(base).name}-{attention}-{preset}-{seed}") if output is None else output
    if process_count() > 1:
        raise UsageError("convert measures costs and runs on one process; distil on several with flexformer distill")
    measured_at = lengths_for(base, lengths, positions)
    screen = console(json)
    job = DistillJob(options)
    with reported():
        record = run_job(job, folder, screen, ["flexformer", *sys.argv[1:]])
    with screen.status("measuring costs") as status:
        measured = costs(
            base,
            str(RunFolder(folder).adapter),
            measured_at,
            texts=job.texts,
            positions=positions,
            threads=threads,
            progress=lambda note: status.update(f"measuring costs, {note}"),
        )
    report = json_format.loads((folder / REPORT).read_text(encoding="utf-8"))
    write_json(folder / COSTS, as_rows(measured))
    write_text(folder / PAGE, page(report, measured))
    if json:
        print_json({**asdict(record), "report": report, "costs": as_rows(measured)})
        return 0
    screen.print(lengths_line(report), soft_wrap=True, highlight=False)
    for table in (layer_table(report), output_table(report), _cost_table(measured)):
        screen.print(table)
    if (warning := warning_for(report, measured)) is not None:
        screen.print(warning, style="yellow", soft_wrap=True, highlight=False)
    screen.print(f"{RunFolder(folder).adapter} holds the kernels, {folder / PAGE} this report.", soft_wrap=True)
    if measured[0].token_seconds is not None:
        screen.print(f'It writes: flexformer generate {folder} --prompt "..."', soft_wrap=True, highlight=False)
    return 0


def _cost_table(measured: list[Cost]) -> Table:
    table = Table(title="Cost and outputs, softmax -> converted", title_justify="left")
    writes = any(cost.token_seconds is not None for cost in measured)
    columns = {"seconds": ("ms", 1e3), "peak_bytes": ("peak MiB", 2**-20)}
    if writes:
        columns |= {"token_seconds": ("ms per token", 1e3), "cache_bytes": ("cache KiB", 2**-10)}
    kept = compared_outputs(measured)
    for heading in ("tokens", *(heading for heading, _ in columns.values()), *(OUTPUTS[name] for name in kept)):
        table.add_column(heading, justify="right")
    for length in sorted({cost.length for cost in measured}):
        pair = {cost.model: cost for cost in measured if cost.length == length}
        cells = [
            " -> ".join(_shown(getattr(pair[model], name), unit) for model in MODELS)
            for name, (_, unit) in columns.items()
        ]
        outputs = pair[CONVERTED].outputs or {}
        table.add_row(str(length), *cells, *(_digits(outputs.get(name)) for name in kept))
    return table


def _digits(value: float | None) -> str:
    return "–" if value is None else f"{value:.3g}"


def _shown(value: float | None, unit: float) -> str:
    return "–" if value is None else f"{value * unit:,.1f}"
