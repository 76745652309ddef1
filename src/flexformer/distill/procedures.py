"""Several runs in a row: how the paper recovers a fine-tuned model with linear attention."""

from __future__ import annotations

from dataclasses import dataclass, replace
from pathlib import Path

from rich.console import Console

from ..training import Record, RunFolder, RunFolderError, run_job
from .finetune import FinetuneJob
from .job import DistillJob
from .options import GLUE_PREFIX, TEXT_PREFIX, DistillOptions, FinetuneOptions, KernelOptions, StageOptions
from .text_finetune import TextFinetuneJob


@dataclass(frozen=True)
class Recovery:
    """The records of the three runs."""

    reference: Record
    """softmax, fine-tuned"""
    distilled: Record
    """its attention, learned by kernels"""
    recovered: Record
    """fine-tuned once more with them"""


def finetune_job(options: FinetuneOptions) -> FinetuneJob | TextFinetuneJob:
    """What a fine-tuning runs: on a GLUE task, or on text."""
    return TextFinetuneJob(options) if options.task.startswith(TEXT_PREFIX) else FinetuneJob(options)


def finetune(options: FinetuneOptions, output: Path, console: Console, command: list[str] | None = None) -> Record:
    """One fine-tuning: of the model as it is, with swapped attention, or from an adapter of another task."""
    return run_job(finetune_job(options), output, console, command)


def distill(options: DistillOptions, output: Path, console: Console, command: list[str] | None = None) -> Record:
    """One distillation."""
    return run_job(DistillJob(options), output, console, command)


def recover(
    options: FinetuneOptions,
    stage: StageOptions,
    output: Path,
    console: Console,
    command: list[str] | None = None,
    reference: Path | None = None,
) -> Recovery:
    """Fine-tune with softmax, distil its attention on the same task or text, fine-tune with the kernels.

    Each is a run of its own, in the folders `reference`, `distill` and `finetune` of `output`; what is finished is not
    repeated, and what was cut off goes on.

    Args:
        options: Of both fine-tunings, the attention apart.
        stage: Of the distillation.
        output: The folder.
        console: Where progress is shown.
        command: The command line, for the records.
        reference: The folder of a fine-tuning with softmax to start from, instead of a new one.
    """
    if options.attention == "softmax":
        raise ValueError("attention softmax is what is recovered; name a kernel attention, such as flexformer-c")
    if options.adapter is not None:
        raise ValueError(f"adapter {options.adapter} has no place here: the kernels are distilled on the way")
    if reference is None:
        console.print("fine-tuning with softmax", highlight=False)
        plain = replace(options, attention="softmax", kernel=KernelOptions())
        first, model = finetune(plain, output / "reference", console, command), output / "reference" / "model"
    else:
        first, model = _finished(reference, options.task), reference / "model"
    console.print(f"distilling {options.attention}", highlight=False)
    second = distill(distillation(options, stage, str(model)), output / "distill", console, command)
    console.print(f"fine-tuning with {options.attention}", highlight=False)
    again = replace(options, base=str(model), adapter=str(RunFolder(output / "distill").adapter))
    return Recovery(first, second, finetune(again, output / "finetune", console, command))


def distillation(options: FinetuneOptions, stage: StageOptions, model: str) -> DistillOptions:
    """What is distilled between the two fine-tunings of a recovery.

    Args:
        options: Of the fine-tunings.
        stage: Of the distillation.
        model: The model whose attention is learned; fine-tuned already, or only pretrained for a transfer.
    """
    is_text = options.task.startswith(TEXT_PREFIX)
    return DistillOptions(
        model,
        options.task.removeprefix(TEXT_PREFIX) if is_text else f"{GLUE_PREFIX}{options.task}",
        options.attention,
        options.preset,
        options.seed,
        options.kernel,
        replace(stage.data, root=options.data.root, source=options.data.source),
        stage.loss,
        stage.optimizer,
        stage.schedule,
        stage.training,
    )


def _finished(folder: Path, task: str) -> Record:
    record = RunFolder(folder).read()
    if record is None or record.status != "finished":
        raise RunFolderError(f"reference {folder} holds no finished run")
    if (record.task, record.attention) != (task, "softmax"):
        raise RunFolderError(
            f"reference {folder} is a run of {record.task} with {record.attention}; {task} with softmax is needed"
        )
    return record
