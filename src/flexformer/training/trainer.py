"""Hugging Face's `Trainer` with our optimiser and schedules, and a resume that is exact."""

from __future__ import annotations

import shutil
import time
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

import torch
from safetensors import SafetensorError
from torch import Tensor, nn
from torch.utils.data import Dataset
from transformers import PrinterCallback, Trainer, TrainerCallback, TrainingArguments
from transformers.trainer import TRAINING_ARGS_NAME
from transformers.trainer_utils import EvalPrediction

from ..parallel.processes import meet_others, process_count, processes_are_gone
from . import checkpoints
from .job import ACCURACY, Batches, Best, Settings
from .optimizer import adamw
from .schedules import scheduler

# An epoch's order is drawn from this seed plus its number: neighbouring seeds must not share epochs.
ORDER_STRIDE = 1_000_003

# Seconds until a process that does not answer counts as gone. On a CPU, where no kernels are compiled and no cluster
# is slow to start, it need not be long.
TIMEOUT_GLOO, TIMEOUT = 120, 1800


class TaskTrainer(Trainer):
    """Trains a model on a task.

    Beyond what `Trainer` does: the optimiser of `optimizer.py`, the schedules of `schedules.py`,
    evaluations that leave the random state of training alone, and checkpoints that are marked when whole and
    hold all that is needed to go on exactly.

    Args:
        model: What is trained.
        task: Gives batches and metrics.
        options: The run's.
        folder: Where checkpoints go.
        train_dataset: Left out where there is only evaluation.
        validation_dataset: Evaluated while training.
        callbacks: See `Trainer`.
        best: By which metric the best weights are known.
    """

    def __init__(
        self,
        model: nn.Module,
        task: Batches,
        options: Settings,
        folder: Path,
        train_dataset: Dataset[Any] | None = None,
        validation_dataset: Dataset[Any] | None = None,
        callbacks: Sequence[TrainerCallback] = (),
        best: Best = ACCURACY,
    ) -> None:
        self.run_options = options
        self.folder = folder
        self.seconds_before = 0.0
        self._started = time.perf_counter()
        if _on_cpu(options):
            meet_others(_timeout(options))
        super().__init__(
            model=model,
            args=training_arguments(options, folder, best),
            train_dataset=train_dataset,
            eval_dataset=validation_dataset,
            data_collator=lambda examples: without_idle_masks(task.collate(examples)),
            compute_metrics=lambda prediction: _metrics(task, prediction),
            callbacks=list(callbacks),
        )
        self.remove_callback(PrinterCallback)  # prints every log entry as a dict
        # `Trainer` takes every model with **kwargs for one that divides its loss by the number of items, but those that
        # classify average over their own examples: losses would grow with the number of processes and portions.
        self.model_accepts_loss_kwargs = getattr(model, "accepts_loss_kwargs", False)

    @property
    def seconds(self) -> float:
        """Spent on the run so far, before it was interrupted too."""
        return self.seconds_before + time.perf_counter() - self._started

    @property
    def network(self) -> nn.Module:
        """The model, which `Trainer` types as optional."""
        assert self.model is not None
        return self.model

    def create_optimizer(self, model: nn.Module | None = None) -> torch.optim.Optimizer:
        if self.optimizer is None:
            self.optimizer = adamw(self.network if model is None else model, self.run_options.optimizer)
        return self.optimizer

    def create_scheduler(
        self, num_training_steps: int, optimizer: torch.optim.Optimizer | None = None
    ) -> torch.optim.lr_scheduler.LRScheduler:
        if self.lr_scheduler is None:
            optimizer = self.create_optimizer() if optimizer is None else optimizer
            self.lr_scheduler = scheduler(optimizer, self.run_options.schedule, num_training_steps)
            self._created_lr_scheduler = True
        return self.lr_scheduler

    def training_step(
        self, model: nn.Module, inputs: dict[str, Any], num_items_in_batch: Tensor | int | None = None
    ) -> Tensor:
        self.state.num_input_tokens_seen += self._count_tokens(inputs)
        return super().training_step(model, inputs, num_items_in_batch)

    def _get_num_items_in_batch(self, batch_samples: list[Any], device: torch.device) -> Tensor | int | None:
        if not self.model_accepts_loss_kwargs:
            return None
        # `Trainer` counts "labels", which need not be what the loss is a mean over.
        count: Callable[[Mapping[str, Tensor]], Tensor] = self.network.count_items  # type: ignore[assignment]
        return self._over_processes(torch.stack([count(batch) for batch in batch_samples]).sum().to(device))

    def _over_processes(self, count: Tensor) -> Tensor:
        return self.accelerator.reduce(count) if self.args.world_size > 1 else count

    def _count_tokens(self, inputs: Mapping[str, Tensor]) -> int:
        count = 0
        for suffix in ("", "_2"):
            mask = inputs.get(f"key_mask{suffix}", inputs.get(f"attention_mask{suffix}"))
            if mask is not None:
                count += int(mask.sum())
            elif (ids := inputs.get(f"input_ids{suffix}")) is not None:
                count += ids.numel()
        return int(self._over_processes(torch.tensor(count, device=self.args.device)))

    def evaluate(self, *args: Any, **kwargs: Any) -> dict[str, float]:
        # Evaluations draw random numbers, the loaders' seeds and Reformer's hashes among them. Here they are the same
        # ones every time, and how often one evaluates does not change what is learned.
        with torch.random.fork_rng():
            torch.manual_seed(self.run_options.seed)
            return super().evaluate(*args, **kwargs)

    def _determine_best_metric(self, metrics: dict[str, float], trial: Any) -> bool:
        best = super()._determine_best_metric(metrics, trial)
        if best and self.run_options.training.select == "best":
            self.control.should_save = True
        return best

    def _save(self, output_dir: str | None = None, state_dict: dict[str, Any] | None = None) -> None:
        super()._save(output_dir, state_dict)
        if self.args.should_save and output_dir is not None:
            Path(output_dir, TRAINING_ARGS_NAME).unlink(missing_ok=True)  # a pickle that nobody will read

    def _save_checkpoint(self, model: nn.Module, trial: Any) -> None:
        step = self.state.global_step
        path = checkpoints.folder(self.folder, step)
        try:
            super()._save_checkpoint(model, trial)
            self.accelerator.wait_for_everyone()
            if not self.args.should_save:
                return
            selects = self.run_options.training.select == "best"
            best = (self.state.best_global_step or 0) if selects else 0
            counts = checkpoints.training_forwards(self.network)
            checkpoints.complete(path, checkpoints.Marker(step, self.seconds, counts, best))
        except (OSError, SafetensorError, RuntimeError) as error:  # a full disk shows as any of them
            if processes_are_gone(error):
                raise
            shutil.rmtree(path, ignore_errors=True)
            raise checkpoints.CheckpointError(
                f"{path} could not be written ({' '.join(str(error).split())}); nothing that was saved before is "
                "touched: make room and give the same command again"
            ) from error
        checkpoints.keep_latest(self.folder)

    def _load_from_checkpoint(self, resume_from_checkpoint: str, model: nn.Module | None = None) -> None:
        super()._load_from_checkpoint(resume_from_checkpoint, model)
        marker = checkpoints.read(Path(resume_from_checkpoint))
        if marker is None:
            raise checkpoints.CheckpointError(
                f"{resume_from_checkpoint} is not a whole checkpoint: {checkpoints.MARKER} is missing or damaged"
            )
        checkpoints.restore_training_forwards(self.network, marker.training_forwards)
        self.seconds_before = marker.seconds

    def load_weights(self, checkpoint: Path) -> None:
        """The model as it was at a checkpoint."""
        checkpoints.verify(checkpoint)
        super()._load_from_checkpoint(str(checkpoint))


def training_arguments(options: Settings, folder: Path, best: Best) -> TrainingArguments:
    """Our options in `Trainer`'s words."""
    training, optimizer = options.training, options.optimizer
    eval_batch_size = training.eval_batch_size or training.batch_size
    on_cpu = _on_cpu(options)  # said outright even where there is no choice: bf16 is refused otherwise
    arguments = TrainingArguments(
        output_dir=str(folder),
        max_steps=training.steps,
        per_device_train_batch_size=portion(training.batch_size, training.accumulation, process_count()),
        gradient_accumulation_steps=training.accumulation,
        per_device_eval_batch_size=eval_batch_size,
        learning_rate=optimizer.lr,
        max_grad_norm=optimizer.clip,
        eval_strategy="steps",
        eval_steps=training.evaluate_every,
        save_strategy="steps",
        save_steps=training.save_every or training.evaluate_every,
        logging_steps=training.log_every,
        logging_first_step=True,
        logging_nan_inf_filter=False,
        metric_for_best_model=best.metric,
        greater_is_better=best.greater,
        bf16=training.bf16,
        gradient_checkpointing=training.gradient_checkpointing,
        use_cpu=on_cpu,
        ddp_backend="gloo" if on_cpu and process_count() > 1 else None,  # one process alone has no group
        ddp_timeout=_timeout(options),
        dataloader_pin_memory=not on_cpu,
        seed=options.seed,
        data_seed=ORDER_STRIDE * (options.seed + 1),
        report_to="none",
        disable_tqdm=True,
        remove_unused_columns=False,
        label_names=["labels"],
    )
    if arguments.n_gpu > 1:
        arguments._n_gpu = 1  # the others are for more processes: torch's DataParallel would multiply the batch
    return arguments


def _on_cpu(options: Settings) -> bool:
    return options.training.device == "cpu" or not torch.accelerator.is_available()


def _timeout(options: Settings) -> int:
    return options.training.timeout or (TIMEOUT_GLOO if _on_cpu(options) else TIMEOUT)


def portion(batch_size: int, accumulation: int, processes: int) -> int:
    """Examples that a process takes at once, so that a step has `batch_size` on any number of processes."""
    size, rest = divmod(batch_size, accumulation * processes)
    if rest or not size:
        raise ValueError(
            f"training.batch_size {batch_size} cannot be divided over {processes} processes and {accumulation} "
            f"portions (training.accumulation); use a multiple of {accumulation * processes}"
        )
    return size


def without_idle_masks(batch: dict[str, Tensor]) -> dict[str, Tensor]:
    """A batch without the masks that hide nothing: attention is faster where there is none."""
    return {name: value for name, value in batch.items() if not (name.startswith("key_mask") and bool(value.all()))}


def _metrics(task: Batches, prediction: EvalPrediction) -> dict[str, float]:
    logits, labels = prediction.predictions, prediction.label_ids
    assert not isinstance(logits, tuple)  # models of ours give and take one of each
    assert not isinstance(labels, tuple)
    return task.metrics(logits, labels)
