"""`flexformer distill`: kernels that learn from a pretrained model's own attention."""

from __future__ import annotations

import json as json_format
import sys
from dataclasses import asdict
from pathlib import Path
from typing import Any

from rich.table import Table

from flexformer.cli.arguments import with_presets
from flexformer.cli.interruption import reported
from flexformer.cli.main import UsageError, console, print_json
from flexformer.distill import DistillOptions, KernelOptions, LossOptions, TextOptions, procedures
from flexformer.distill.job import REPORT
from flexformer.distill.report import length_warning, lengths_line
from flexformer.experiments.conversion import lengths_for
from flexformer.experiments.presets import pretrained as presets
from flexformer.training import OptimizerOptions, RunFolder, ScheduleOptions, TrainingOptions

COLUMNS = {
    "kl": "KL",
    "output_error": "output\nerror",
    "negative_weights": "negative\nweights",
    "nonpositive_denominators": "denominator\n<= 0",
}


def find_preset(options: dict[str, Any]) -> dict[str, Any]:
    """The settings of the preset that a command line asks for."""
    try:
        return presets.settings("distill", options["preset"], options["attention"])
    except ValueError as error:
        raise UsageError(str(error)) from error


@with_presets(find_preset)
def distill(
    base: str,
    text: str,
    attention: str = "flexformer-c",
    preset: str = "cpu",
    output: Path | None = None,
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
    """Teach kernels the softmax attention of a pretrained model, with everything else frozen.

    The model reads text with its own attention, and the kernels of all layers learn from its weights on the way. The
    result is an adapter, and a report that shows for every layer and head how near the kernels have come. A run that
    was killed or interrupted goes on when the same command is given again.

    Args:
        base: Folder or hub name of a pretrained encoder or decoder.
        text: A text file, a folder of .txt files, glue:TASK, or a datasets id with a column "text".
        attention: hedgehog or a flexformer attention.
        preset: The settings to start from: paper, cpu or smoke.
        output: The run's folder; default runs/distill-BASE-ATTENTION-PRESET-SEED.
        seed: Of the kernels' start and the order of sequences.
        kernel: The kernels.
        data: How text is cut into sequences.
        loss: What kernels learn from.
        optimizer: AdamW.
        schedule: The learning rate over time.
        training: How long and in which portions.
        positions: Let the model read this many tokens first, by repeating its learned table of positions; BERT and
            the like end at 512. Models with rotary positions need none.
        json: Print record and report as JSON; progress goes to the error stream.

    Example:
        flexformer distill sentence-transformers/all-MiniLM-L6-v2 wiki.txt --attention flexformer-c --output runs/minilm
    """
    options = DistillOptions(
        base, text, attention, preset, seed, kernel, data, loss, optimizer, schedule, training, positions
    )
    folder = Path("runs", f"distill-{Path(base).name}-{attention}-{preset}-{seed}") if output is None else output
    screen = console(json)
    with reported():
        record = procedures.distill(options, folder, screen, ["flexformer", *sys.argv[1:]])
    report = json_format.loads((folder / REPORT).read_text(encoding="utf-8"))
    if json:
        print_json({**asdict(record), "report": report})
        return 0
    screen.print(lengths_line(report), soft_wrap=True, highlight=False)
    screen.print(layer_table(report))
    screen.print(output_table(report))
    if (warning := length_warning(report, lengths_for(base, None, positions)[-1])) is not None:
        screen.print(warning, style="yellow", soft_wrap=True, highlight=False)
    adapter = RunFolder(folder).adapter
    screen.print(f"{adapter} holds the kernels, {folder / REPORT} all figures, head by head.", soft_wrap=True)
    return 0


def layer_table(report: dict[str, Any]) -> Table:
    """By layer, before distillation and after it."""
    title = f"{report['attention']} beside softmax, before -> after"
    table = Table(title=title, title_justify="left")
    table.add_column("layer")
    table.add_column("entropy\nof softmax", justify="right")
    for heading in COLUMNS.values():
        table.add_column(heading, justify="right")
    table.add_column("KL of the\nworst head", justify="right")
    pairs = list(zip(report["before"]["layers"], report["after"]["layers"], strict=True))
    for before, after in pairs:
        worst = (max(head["kl"] for head in moment["heads"]) for moment in (before, after))
        table.add_row(str(after["layer"]), *_cells(before, after), _change("kl", *worst))
    table.add_section()
    table.add_row("mean", *_cells(report["before"]["mean"], report["after"]["mean"]), "")
    return table


def output_table(report: dict[str, Any]) -> Table:
    """What is left of the model's outputs."""
    table = Table(title="Outputs beside those of the original model", title_justify="left")
    for heading in ("", "before", "after"):
        table.add_column(heading, justify="right" if heading else "left")
    before, after = (report[moment]["outputs"] for moment in ("before", "after"))
    for name in after:
        table.add_row(name.replace("_", " "), f"{before[name]:.4g}", f"{after[name]:.4g}")
    return table


def _cells(before: dict[str, float], after: dict[str, float]) -> list[str]:
    return [f"{after['entropy']:.3f}", *(_change(name, before[name], after[name]) for name in COLUMNS)]


def _change(name: str, before: float, after: float) -> str:
    if name in ("negative_weights", "nonpositive_denominators"):
        return f"{before:.1%} -> {after:.1%}"
    return f"{before:.3f} -> {after:.3f}"
