"""One training run from options to a record, resumed by itself where it was cut off."""

from __future__ import annotations

import contextlib
import importlib.util
import os
import shutil
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import torch
import transformers
from rich.console import Console
from rich.progress import Progress
from torch import Tensor, nn
from transformers import PreTrainedModel, TrainerCallback, TrainerState
from transformers.trainer import TRAINER_STATE_NAME

from .. import tasks
from ..models import Classifier, DualEncoder, DualEncoderConfig, EncoderConfig
from ..parallel.processes import ProcessesGoneError, agreed, describe_processes, is_first_process, processes_are_gone
from ..tasks import Split, Task, TaskDataset
from . import checkpoints
from .callbacks import DivergedError, LogFile, ShowProgress, StopOnSignal, read_log
from .job import Job, Settings
from .meter import Meter
from .options import RunOptions
from .record import Record, RunFolder
from .trainer import TaskTrainer

SIGNAL_STATUS = 128  # plus the signal's number, as shells count


class RunInterruptedError(Exception):
    """Training was stopped by a signal; what it had learned is saved.

    Args:
        record: As it stands in the run's folder.
        signal: The signal's number.
    """

    def __init__(self, record: Record, signal: int) -> None:
        super().__init__(f"interrupted at step {record.steps}; the same command goes on from there")
        self.record = record
        self.status = SIGNAL_STATUS + signal


def run(options: RunOptions, output: Path, console: Console, command: list[str] | None = None) -> Record:
    """Train, test and record; go on where an earlier call was cut off.

    Args:
        options: What to do.
        output: The run's folder. A finished run in it is returned as it is.
        console: Where progress is shown.
        command: The command line, for the record.

    Raises:
        RunFolderError: The folder holds a run with other options.
        RunInterruptedError: A signal ended training early.
        DivergedError: The loss is no longer a number.
    """
    return run_job(TaskJob(options), output, console, command)


def run_job(job: Job, output: Path, console: Console, command: list[str] | None = None) -> Record:
    """`run` for what is not a task of ours; arguments and errors as there."""
    options, folder = job.options, RunFolder(output)
    # Of several processes under torchrun the first alone keeps the folder.
    first = is_first_process()
    with folder.locked() if first else contextlib.nullcontext(), quiet_libraries():
        record = folder.check(options) if first else folder.read()
        if record is not None and record.status == "finished":
            return record
        job.prepare(console)  # before anything is written: what cannot work shows here
        torch.manual_seed(options.seed)
        model = job.model()
        if record is None:
            record = folder.begin(options, command or []) if first else Record.begin(options, [])
        else:
            record.goes_on()
        if first:
            folder.lay_out(options)
        return _train(job, model, folder, record, console, first)


class TaskJob(Job):
    """A model of ours on one of the tasks."""

    options: RunOptions

    def __init__(self, options: RunOptions) -> None:
        super().__init__(options)
        self.task = build_task(options)

    def prepare(self, console: Console) -> None:
        with torch.device("meta"):
            self.model()  # refuses impossible settings at no cost
        prepare_data(self.task, console)

    def model(self) -> PreTrainedModel:
        return build_model(self.task, self.options)

    def dataset(self, split: Split) -> TaskDataset:
        return self.task.dataset(split, limit=self.options.data.limit(split))

    def collate(self, examples: Sequence[Mapping[str, Any]]) -> dict[str, Tensor]:
        return self.task.collate(examples)

    def metrics(self, logits: np.ndarray, labels: np.ndarray) -> dict[str, float]:
        return self.task.metrics(logits, labels)


def build_task(options: RunOptions) -> Task:
    """The run's task, with its options."""
    given = dict(options.data.options)
    if options.data.max_length is not None:
        given["max_length"] = options.data.max_length
    return tasks.build(options.task, options.data.root, **given)


def build_model(task: Task, options: RunOptions) -> PreTrainedModel:
    """The run's model with freshly drawn weights."""
    wanted = options.model
    settings: dict[str, Any] = {
        "vocab_size": task.vocab_size,
        "hidden_size": wanted.width,
        "intermediate_size": wanted.feed_forward,
        "num_hidden_layers": wanted.layers,
        "num_attention_heads": wanted.heads,
        "head_dim": wanted.head_dim,
        "max_position_embeddings": task.max_length,
        "attention": options.attention,
        "attention_options": dict(wanted.attention_options),
        "positions": wanted.positions,
        "pooling": wanted.pooling,
        "drop_masked": wanted.drop_masked,
        "hidden_dropout": wanted.dropout,
        "attention_dropout": wanted.attention_dropout,
        "num_labels": task.num_classes,
    }
    if task.kind == "pair":
        return DualEncoder(DualEncoderConfig(**settings, interaction=wanted.interaction))
    return Classifier(EncoderConfig(**settings))


def prepare_data(task: Task, console: Console) -> None:
    """Generate or check the data, with a bar where that takes a while."""
    with Progress(console=console, transient=True, disable=not console.is_terminal) as progress:
        bar = progress.add_task(f"preparing {task.name}", total=None)
        task.prepare(lambda done, total: progress.update(bar, completed=done, total=total))


@contextlib.contextmanager
def quiet_libraries() -> Iterator[None]:
    """Keep bars and notes of transformers off the screen; its errors stay."""
    verbosity = transformers.logging.get_verbosity()
    bars = transformers.logging.is_progress_bar_enabled()
    transformers.logging.set_verbosity_error()
    transformers.logging.disable_progress_bar()
    try:
        yield
    finally:
        transformers.logging.set_verbosity(verbosity)
        if bars:
            transformers.logging.enable_progress_bar()


def _train(job: Job, model: nn.Module, folder: RunFolder, record: Record, console: Console, first: bool) -> Record:
    options = job.options
    record.parameters = sum(p.numel() for p in model.parameters())
    record.status = "running"
    if first:
        folder.write(record)
    stop, show, meter = StopOnSignal(console), ShowProgress(console, job.best.metric), Meter()
    trainer = job.trainer_class()(
        model,
        job,
        options,
        folder.checkpoints,
        job.dataset("train"),
        job.dataset("validation"),
        # Whether there will be a checkpoint is known after StopOnSignal, and the log wants to know.
        [stop, LogFile(folder.log_file), show, meter, *_tensorboard(options, folder)],
        job.best,
    )
    try:
        record.machine |= describe_processes(trainer.accelerator.distributed_type.value)
        _learn(trainer, options, console)
        _describe(record, trainer)
        if meter.step_seconds is not None:  # a run that was cut off in its last step has nothing new to say
            record.step_seconds, record.peak_memory = meter.step_seconds, meter.peak_memory
        if stop.received is not None and trainer.state.global_step < options.training.steps:
            return _interrupted(folder, record, trainer, job, stop.received)
        return _finish(folder, record, trainer, job)
    except DivergedError:
        record.status = "diverged"
        _describe(record, trainer)
        if first:
            folder.write(record)
        raise
    except RuntimeError as error:
        if not processes_are_gone(error):
            raise
        raise ProcessesGoneError(
            f"process {os.environ.get('RANK')} lost the others at step {trainer.state.global_step}: one has died or "
            f"did not answer within {trainer.args.ddp_timeout} s (training.timeout); the same command goes on from the "
            "last checkpoint"
        ) from error
    finally:
        stop.release()
        show.stop()


def _learn(trainer: TaskTrainer, options: Settings, console: Console) -> None:
    """Train from the last whole checkpoint to the end."""
    step = 0
    if trainer.is_world_process_zero():
        found = checkpoints.recover(trainer.folder, lambda fault: console.print(f"{fault}; not used", soft_wrap=True))
        step = 0 if found is None else found[1].step
    step = agreed(step, trainer.args.device)
    path = checkpoints.folder(trainer.folder, step)
    if step >= options.training.steps:
        # Killed between the last step and the record: nothing is left to learn.
        trainer._load_from_checkpoint(str(path))
        trainer.state = TrainerState.load_from_json(str(path / TRAINER_STATE_NAME))
        return
    trainer.train(resume_from_checkpoint=str(path) if step else None)


def _describe(record: Record, trainer: TaskTrainer) -> None:
    record.steps = record.selected_step = trainer.state.global_step
    record.tokens = trainer.state.num_input_tokens_seen
    record.seconds = trainer.seconds


def _interrupted(folder: RunFolder, record: Record, trainer: TaskTrainer, job: Job, signal: int) -> Record:
    _save_model(folder, trainer, job)
    record.status = "interrupted"
    folder.write(record)
    raise RunInterruptedError(record, signal)


def _finish(folder: RunFolder, record: Record, trainer: TaskTrainer, job: Job) -> Record:
    """Test the selected weights, keep them and write the record."""
    best = trainer.state.best_global_step
    if job.options.training.select == "best" and best and best != record.steps:
        trainer.load_weights(checkpoints.folder(folder.checkpoints, best))
        record.selected_step = best
    record.metrics = job.conclude(trainer)
    if trainer.is_world_process_zero():
        validated = [entry for entry in read_log(folder.log_file) if f"eval_{job.best.metric}" in entry]
        chosen = [entry for entry in validated if entry["step"] == record.selected_step]
        for entry in chosen[-1:]:
            found = {name: value for name, value in entry.items() if name.startswith("eval_")}
            record.metrics |= {name.replace("eval_", "validation_", 1): value for name, value in found.items()}
        record.status = "finished"
        record.seconds = trainer.seconds
        _save_model(folder, trainer, job)
        folder.write(record)
        shutil.rmtree(folder.checkpoints, ignore_errors=True)
    trainer.accelerator.wait_for_everyone()  # what follows on any of them may read what the first has written
    return record


def _save_model(folder: RunFolder, trainer: TaskTrainer, job: Job) -> None:
    if trainer.is_world_process_zero():
        job.save(trainer.accelerator.unwrap_model(trainer.model), folder)


def _tensorboard(options: Settings, folder: RunFolder) -> list[TrainerCallback]:
    if not options.training.tensorboard or importlib.util.find_spec("tensorboard") is None:
        return []
    from transformers.integrations.integration_utils import TensorBoardCallback

    callback = TensorBoardCallback()
    callback.logging_dir = str(folder.tensorboard)
    return [callback]
