"""What distillation and fine-tuning can be told: the one source of options, their help and the keys of presets."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any, Literal

from ..training import OptimizerOptions, ScheduleOptions, TrainingOptions
from ..training.options import check
from ..training.plain import Limited, Plain
from .loss import LossOptions

DISTILL = "distill"
GLUE_PREFIX, TEXT_PREFIX = "glue:", "text:"


@dataclass(frozen=True)
class KernelOptions:
    """The kernels that take the place of softmax.

    Args:
        layers: Attention layers to convert, counted from 0 in the order they run; default all.
        options: The attention's own options by name, such as num_frequencies.
    """

    layers: list[int] | None = None
    options: dict[str, Any] = field(default_factory=dict)


@dataclass(frozen=True)
class TextOptions:
    """How text is read and cut into sequences.

    Args:
        root: Folder GLUE lives in; default $FLEXFORMER_DATA, else flexformer/data in the user's cache.
        source: A `datasets` id with GLUE's layout, nyu-mll/glue, that glue:TASK is read from instead of files.
        max_length: Tokens of the longest sequence; longer paragraphs become several.
        join: Put paragraphs of a document that follow each other together, as many as max_length takes. Without it no
            sequence is longer than a paragraph.
        min_length: Shorter sequences are left out.
        validation: Text to validate on; default a part of the other that is held out.
        holdout: That part, as a share of the paragraphs.
        train_limit: Read this many sequences only.
        validation_limit: Validate on this many.
    """

    root: str | None = None
    source: str | None = None
    max_length: int = 128
    join: bool = False
    min_length: int = 8
    validation: str | None = None
    holdout: float = 0.05
    train_limit: int | None = None
    validation_limit: int | None = 256

    def __post_init__(self) -> None:
        if not self.max_length > self.min_length >= 1:
            raise ValueError(
                f"data.min_length {self.min_length} and data.max_length {self.max_length} leave no sequences; use "
                "1 or more for the first and more than it for the second"
            )
        if not 0 < self.holdout < 0.5:
            raise ValueError(
                f"data.holdout {self.holdout} is not a share between 0 and 0.5; as much is held out to test on as to "
                "validate on"
            )
        for name, limit in (("train_limit", self.train_limit), ("validation_limit", self.validation_limit)):
            if limit is not None and limit < 1:
                raise ValueError(f"data.{name} {limit} leaves no sequences; use 1 or more, or null for all")

    def limit(self, split: str) -> int | None:
        """How many sequences of a split are read; None for all."""
        return self.train_limit if split == "train" else self.validation_limit


@dataclass(frozen=True)
class DistillOptions(Plain):
    """Everything that decides what a distillation does.

    Args:
        base: Folder or hub name of the pretrained model.
        text: What it reads: a text file, a folder of them, glue:TASK, or a `datasets` id.
        attention: The kernel that learns.
        preset: The name of the settings it started from.
        seed: Of the kernels' start and the order of sequences.
        kernel: See `KernelOptions`.
        data: See `TextOptions`.
        loss: See `LossOptions`.
        optimizer: See `OptimizerOptions`.
        schedule: See `ScheduleOptions`.
        training: See `TrainingOptions`.
        positions: Tokens that a learned table of positions is extended to first; default leaves the model as it is.
    """

    base: str
    text: str
    attention: str = "flexformer-c"
    preset: str = "custom"
    seed: int = 0
    kernel: KernelOptions = field(default_factory=KernelOptions)
    data: TextOptions = field(default_factory=TextOptions)
    loss: LossOptions = field(default_factory=LossOptions)
    optimizer: OptimizerOptions = field(default_factory=OptimizerOptions)
    schedule: ScheduleOptions = field(default_factory=ScheduleOptions)
    training: TrainingOptions = field(default_factory=TrainingOptions)
    positions: int | None = None

    def __post_init__(self) -> None:
        check(self.optimizer, self.schedule, self.training)

    @property
    def task(self) -> str:
        """What the record is filed under."""
        return DISTILL


@dataclass(frozen=True)
class GlueOptions(Limited):
    """Which examples are read, and how much of them.

    Args:
        root: Folder GLUE lives in; default $FLEXFORMER_DATA, else flexformer/data in the user's cache.
        source: A `datasets` id with GLUE's layout, nyu-mll/glue, instead of files.
        select: Weights are chosen by a tenth of the training set (holdout) or, as fairseq does, by the dev set, which
            results are reported on in either case.
        max_length: Tokens of an example; longer ones are cut.
        train_limit: Train on this many examples only.
        validation_limit: Validate on this many only.
        test_limit: Test on this many only.
    """

    root: str | None = None
    source: str | None = None
    select: Literal["holdout", "dev"] = "holdout"
    max_length: int = 512
    train_limit: int | None = None
    validation_limit: int | None = None
    test_limit: int | None = None


@dataclass(frozen=True)
class LoraOptions:
    """Low-rank updates (PEFT) instead of training all weights; kernels and the head train whole.

    Args:
        rank: Of the updates; 0 trains all weights.
        alpha: Their scale.
        dropout: Of their inputs.
        modules: Names of the matrices they are added to; default those PEFT knows for the model.
    """

    rank: int = 0
    alpha: float = 16.0
    dropout: float = 0.0
    modules: list[str] | None = None

    def __post_init__(self) -> None:
        if self.rank < 0:
            raise ValueError(f"lora.rank {self.rank} is negative; use 1 or more, or 0 for none")


@dataclass(frozen=True)
class FinetuneOptions(Plain):
    """Everything that decides what a fine-tuning does.

    Args:
        base: Folder or hub name of the pretrained model.
        task: A GLUE task; or for language models text:FILE, a folder or a `datasets` id to go on learning from.
        attention: softmax leaves the model as it is; any kernel attention takes its place.
        adapter: Start from kernels that were distilled, a folder with an adapter; its attention must be the same.
        preset: The name of the settings it started from.
        seed: Of the head, dropout and the order of examples.
        kernel: See `KernelOptions`; where there is an adapter, it decides.
        lora: See `LoraOptions`.
        head: classifier reads an example as one sequence; cosine reads its two sentences apart and compares the means
            of their tokens, for sentence encoders on STS-B.
        data: See `GlueOptions`.
        optimizer: See `OptimizerOptions`.
        schedule: See `ScheduleOptions`.
        training: See `TrainingOptions`.
    """

    base: str
    task: str
    attention: str = "softmax"
    adapter: str | None = None
    preset: str = "custom"
    seed: int = 0
    kernel: KernelOptions = field(default_factory=KernelOptions)
    lora: LoraOptions = field(default_factory=LoraOptions)
    head: Literal["classifier", "cosine"] = "classifier"
    data: GlueOptions = field(default_factory=GlueOptions)
    optimizer: OptimizerOptions = field(default_factory=OptimizerOptions)
    schedule: ScheduleOptions = field(default_factory=ScheduleOptions)
    training: TrainingOptions = field(default_factory=TrainingOptions)

    def __post_init__(self) -> None:
        check(self.optimizer, self.schedule, self.training)
        if self.attention == "softmax" and (self.adapter is not None or self.kernel != KernelOptions()):
            given = "an adapter" if self.adapter is not None else f"kernel {self.kernel}"
            raise ValueError(f"attention softmax has no use for {given}; name the attention it is for")
        if self.task.startswith(TEXT_PREFIX) and self.data.select != "holdout":
            raise ValueError(f"data.select {self.data.select} is for GLUE tasks; of text a part is always held out")


@dataclass(frozen=True)
class StageOptions(Plain):
    """The distillation between two fine-tunings, on the sentences of the task.

    Args:
        data: See `TextOptions`.
        loss: See `LossOptions`.
        optimizer: See `OptimizerOptions`.
        schedule: See `ScheduleOptions`.
        training: See `TrainingOptions`.
    """

    data: TextOptions = field(default_factory=TextOptions)
    loss: LossOptions = field(default_factory=LossOptions)
    optimizer: OptimizerOptions = field(default_factory=OptimizerOptions)
    schedule: ScheduleOptions = field(default_factory=ScheduleOptions)
    training: TrainingOptions = field(default_factory=TrainingOptions)
