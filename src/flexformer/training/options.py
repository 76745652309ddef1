"""What a training run can be told: the one source of options, their help and the keys of preset files."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, Literal, TypeAlias

from .plain import Limited, Plain

LIMITS = ("train_limit", "validation_limit", "test_limit")

ScheduleName: TypeAlias = Literal["rsqrt", "cosine", "inverse-sqrt", "linear", "constant"]


@dataclass(frozen=True)
class DataOptions(Limited):
    """Which examples are read, and how much of them.

    Args:
        root: Folder the data lives in; default $FLEXFORMER_DATA, else flexformer/data in the user's cache.
        max_length: Tokens per sequence; default the paper's.
        options: The task's own options by name, such as the sizes of a generated set.
        train_limit: Train on this many examples only.
        validation_limit: Validate on this many only.
        test_limit: Test on this many only.
    """

    root: str | None = None
    max_length: int | None = None
    options: dict[str, Any] = field(default_factory=dict)
    train_limit: int | None = None
    validation_limit: int | None = None
    test_limit: int | None = None


@dataclass(frozen=True)
class ModelOptions:
    """The encoder's size and shape.

    Args:
        layers: Blocks.
        heads: Attention heads.
        width: Of the residual stream.
        feed_forward: Width inside the feed-forward layers, and of the classifier's hidden layer.
        head_dim: Width of one head; default width / heads.
        positions: Fixed sinusoids, learned vectors, or sinusoids of the rows and columns of a square picture (grid).
        pooling: Class token, mean of all tokens, or the first token.
        drop_masked: Leave masked tokens out of the sequence once they have positions, such as black pixels.
        dropout: Of embeddings and of every layer's output.
        attention_dropout: Of attention weights, where an attention forms them.
        interaction: What the head of pairs sees, [x, y, x*y, x-y] (full) or [x, y] (concatenation).
        attention_options: The attention's own options by name, such as num_frequencies.
    """

    layers: int = 2
    heads: int = 2
    width: int = 64
    feed_forward: int = 128
    head_dim: int | None = None
    positions: Literal["sinusoid", "learned", "grid"] = "sinusoid"
    pooling: Literal["cls", "mean", "first"] = "cls"
    drop_masked: bool = False
    dropout: float = 0.1
    attention_dropout: float = 0.1
    interaction: Literal["full", "concatenation"] = "full"
    attention_options: dict[str, Any] = field(default_factory=dict)


@dataclass(frozen=True)
class OptimizerOptions:
    """AdamW; kernel parameters never decay.

    Args:
        lr: Base learning rate; what it means depends on the schedule.
        weight_decay: Decoupled, of all but kernel parameters.
        beta1: Decay of the mean of gradients.
        beta2: Decay of the mean of their squares.
        eps: Added to the root of the latter.
        clip: Largest norm of the gradient; 0 does not clip.
    """

    lr: float = 1e-3
    weight_decay: float = 0.0
    beta1: float = 0.9
    beta2: float = 0.98
    eps: float = 1e-9
    clip: float = 0.0


@dataclass(frozen=True)
class ScheduleOptions:
    """The learning rate at step t = 1, 2, ..., w the warm-up steps and T all steps.

    Args:
        name: rsqrt: lr min(1, t/w) / sqrt(max(t, w)). cosine: lr min(1, t/w) (1 + cos(pi (t-w)/T)) / 2.
            inverse-sqrt: lr min(t/w, sqrt(w/t)). linear: lr min(t/w, (T-t+1)/(T-w)). constant: lr min(1, t/w).
        warmup: Steps of linear warm-up.
    """

    name: ScheduleName = "cosine"
    warmup: int = 100


@dataclass(frozen=True)
class TrainingOptions:
    """How long and in which portions.

    Args:
        steps: Optimiser steps.
        batch_size: Examples per step, of all processes together.
        accumulation: Portions a batch is computed in, to save memory.
        eval_batch_size: Examples per portion of an evaluation; default batch_size.
        evaluate_every: Steps between evaluations on the validation set.
        save_every: Steps between checkpoints; default evaluate_every.
        log_every: Steps between entries of the log.
        select: Which weights are kept and tested: the final ones, or those best on the validation set.
        bf16: Compute in bfloat16 where autocast does; kernels stay in float32.
        gradient_checkpointing: Recompute blocks in the backward pass to save memory.
        device: The GPU where there is one, or the CPU in any case.
        tensorboard: Write TensorBoard files where tensorboard is installed.
        timeout: Seconds until a process that does not answer counts as gone; default 120 on CPUs, 1800 elsewhere.
    """

    steps: int = 1000
    batch_size: int = 32
    accumulation: int = 1
    eval_batch_size: int | None = None
    evaluate_every: int = 100
    save_every: int | None = None
    log_every: int = 10
    select: Literal["final", "best"] = "final"
    bf16: bool = False
    gradient_checkpointing: bool = False
    device: Literal["auto", "cpu"] = "auto"
    tensorboard: bool = True
    timeout: int | None = None


@dataclass(frozen=True)
class RunOptions(Plain):
    """Everything that decides what a run does.

    Args:
        task: A name in `flexformer.tasks.names()`.
        attention: A name in `flexformer.ATTENTIONS` or of a registered kernel.
        preset: The name of the settings it started from; the scale its results are labelled with.
        seed: Of weights, dropout and the order of examples.
        data: See `DataOptions`.
        model: See `ModelOptions`.
        optimizer: See `OptimizerOptions`.
        schedule: See `ScheduleOptions`.
        training: See `TrainingOptions`.
    """

    task: str
    attention: str = "flexformer-n"
    preset: str = "custom"
    seed: int = 0
    data: DataOptions = field(default_factory=DataOptions)
    model: ModelOptions = field(default_factory=ModelOptions)
    optimizer: OptimizerOptions = field(default_factory=OptimizerOptions)
    schedule: ScheduleOptions = field(default_factory=ScheduleOptions)
    training: TrainingOptions = field(default_factory=TrainingOptions)

    def __post_init__(self) -> None:
        check(self.optimizer, self.schedule, self.training)
        check_positive(
            {f"model.{name}": getattr(self.model, name) for name in ("layers", "heads", "width", "feed_forward")}
        )
        check_positive({"model.head_dim": self.model.head_dim, "data.max_length": self.data.max_length})
        check_positive({f"data.{name}": getattr(self.data, name) for name in LIMITS})
        check_shares({f"model.{name}": getattr(self.model, name) for name in ("dropout", "attention_dropout")})


def check_positive(values: Mapping[str, float | None]) -> None:
    """Raise for the first option that is given and not above 0."""
    for name, value in values.items():
        if value is not None and not value > 0:
            raise ValueError(f"{name} {value} is too small; use more than 0")


def check_shares(values: Mapping[str, float]) -> None:
    """Raise for the first option that is not in [0, 1)."""
    for name, value in values.items():
        if not 0 <= value < 1:
            raise ValueError(f"{name} {value} is out of range; use at least 0 and less than 1")


def check(optimizer: OptimizerOptions, schedule: ScheduleOptions, training: TrainingOptions) -> None:
    """Raise, with the option's name, where a value makes no sense."""
    counts = ("steps", "batch_size", "accumulation", "evaluate_every", "log_every", "eval_batch_size", "save_every")
    check_positive({f"training.{name}": getattr(training, name) for name in (*counts, "timeout")})
    check_positive({"optimizer.lr": optimizer.lr, "optimizer.eps": optimizer.eps})
    check_shares({"optimizer.beta1": optimizer.beta1, "optimizer.beta2": optimizer.beta2})
    not_negative = {
        "schedule.warmup": schedule.warmup,
        "optimizer.weight_decay": optimizer.weight_decay,
        "optimizer.clip": optimizer.clip,
    }
    for name, value in not_negative.items():
        if not value >= 0:
            raise ValueError(f"{name} {value} is negative; use 0 or more")
    if training.batch_size % training.accumulation:
        raise ValueError(
            f"training.batch_size {training.batch_size} is not divisible by {training.accumulation} "
            "(training.accumulation); use a divisor of it"
        )
