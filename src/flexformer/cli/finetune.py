"""`flexformer finetune`: a GLUE task, with any attention in a pretrained model."""

from __future__ import annotations

import sys
from dataclasses import asdict
from pathlib import Path
from typing import Any, Literal

from rich.table import Table

from flexformer.cli.arguments import with_presets
from flexformer.cli.interruption import reported
from flexformer.cli.main import UsageError, console, print_json
from flexformer.distill import FinetuneOptions, GlueOptions, KernelOptions, LoraOptions, procedures
from flexformer.distill.options import TEXT_PREFIX, StageOptions
from flexformer.experiments.presets import pretrained as presets
from flexformer.tasks import glue
from flexformer.training import OptimizerOptions, Record, ScheduleOptions, TrainingOptions

MEASURES = {
    "matthews": "Matthews correlation",
    "correlation": "mean of Pearson and Spearman correlation",
    "accuracy": "accuracy",
}


def is_text(task: str) -> bool:
    """Whether a language model is to learn from text, and not a GLUE task."""
    return task.startswith(TEXT_PREFIX)


def find_preset(options: dict[str, Any]) -> dict[str, Any]:
    """The settings of the preset that a command line asks for."""
    try:
        task = None if is_text(options["task"]) else glue.find(options["task"]).name
        return presets.settings("finetune", options["preset"], options["attention"], task)
    except ValueError as error:
        raise UsageError(str(error)) from error


@with_presets(find_preset)
def finetune(
    base: str,
    task: str,
    attention: str = "softmax",
    procedure: Literal["single", "recover"] = "single",
    adapter: str | None = None,
    reference: Path | None = None,
    preset: str = "cpu",
    output: Path | None = None,
    seed: int = 0,
    kernel: KernelOptions = KernelOptions(),  # noqa: B008  (frozen)
    lora: LoraOptions = LoraOptions(),  # noqa: B008
    head: Literal["classifier", "cosine"] = "classifier",
    data: GlueOptions = GlueOptions(),  # noqa: B008
    optimizer: OptimizerOptions = OptimizerOptions(),  # noqa: B008
    schedule: ScheduleOptions = ScheduleOptions(),  # noqa: B008
    training: TrainingOptions = TrainingOptions(),  # noqa: B008
    distill: StageOptions = StageOptions(),  # noqa: B008
    json: bool = False,
) -> int:
    """Fine-tune a pretrained model on a GLUE task, or a language model on text, with any attention in it.

    Alone, it fine-tunes the model as it is; with --attention it swaps the attention first; with --adapter it starts
    from kernels that were distilled, on any text or task. --procedure recover does all three: fine-tune with softmax,
    distil on the task's own sentences, fine-tune again with the kernels. Results are those on GLUE's dev set; weights
    are chosen by a tenth of the training set that is held out. A run that was killed goes on when the same command is
    given again.

    Args:
        base: Folder or hub name of a pretrained model.
        task: cola, sst2, mrpc, stsb, qqp, mnli, qnli or rte; or text: and a file, a folder or a datasets id.
        attention: softmax leaves the model as it is; or any kernel attention.
        procedure: One run, or the three of a recovery.
        adapter: Kernels to start from, a folder that flexformer distill or save_adapter wrote.
        reference: With recover: the folder of a fine-tuning with softmax to start from.
        preset: The settings to start from: paper (fairseq's for RoBERTa), cpu or smoke.
        output: The run's folder; default runs/TASK-ATTENTION-PRESET-SEED, TASK being "text" for any text.
        seed: Of the head, dropout and the order of examples.
        kernel: The kernels, where there is no adapter.
        lora: Low-rank updates instead of training all weights.
        head: classifier reads an example as one sequence; cosine, for sentence encoders on stsb, its sentences apart.
        data: Which examples are read.
        optimizer: AdamW.
        schedule: The learning rate over time.
        training: How long and in which portions.
        distill: With recover: the distillation.
        json: Print the records as JSON; progress goes to the error stream.

    Example:
        flexformer finetune FacebookAI/roberta-base cola --attention flexformer-c --procedure recover --preset paper
    """
    options = FinetuneOptions(
        base, task, attention, adapter, preset, seed, kernel, lora, head, data, optimizer, schedule, training
    )
    name = TEXT_PREFIX.rstrip(":") if is_text(task) else task
    folder = Path("runs", f"{name}-{attention}-{preset}-{seed}") if output is None else output
    if procedure != "recover":
        if reference is not None:
            raise UsageError(f"reference {reference} is of use with --procedure recover only")
        given = find_preset({"task": task, "preset": preset, "attention": attention})
        if distill != StageOptions.from_dict(given.get("distill", {})):
            raise UsageError("--distill.* is of use with --procedure recover only")
    screen = console(json)
    command = ["flexformer", *sys.argv[1:]]
    with reported():
        if procedure == "recover":
            found = procedures.recover(options, distill, folder, screen, command, reference)
            records = {"reference": found.reference, "distilled": found.distilled, "recovered": found.recovered}
        else:
            records = {"finetuned": procedures.finetune(options, folder, screen, command)}
    if json:
        print_json({name: asdict(record) for name, record in records.items()})
        return 0
    screen.print(_table(task, records))
    screen.print(f"{folder} holds records, logs and models.", soft_wrap=True)
    return 0


def _table(task: str, records: dict[str, Record]) -> Table:
    scale = next(iter(records.values())).scale
    if is_text(task):
        title, measure, factor = task, "perplexity", 1.0
    else:
        about = glue.find(task)
        title, measure, factor = f"{about.title}, {MEASURES[about.metric]} in per cent", "score", 100.0
    table = Table(title=f"{title}, {scale} scale", title_justify="left")
    reported = "perplexity" if is_text(task) else "dev"
    for heading in ("", "attention", reported, "held out", "parameters", "steps", "minutes"):
        table.add_column(heading, justify="left" if heading in ("", "attention") else "right")
    for name, record in records.items():
        found = [record.metrics.get(f"{split}_{measure}") for split in ("test", "validation")]
        table.add_row(
            name,
            record.attention,
            *("–" if value is None else f"{factor * value:.2f}" for value in found),
            f"{record.parameters:,}",
            f"{record.steps:,}",
            f"{record.seconds / 60:.1f}",
        )
    return table
