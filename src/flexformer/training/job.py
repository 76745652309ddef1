"""What a run trains, on which examples, and what it measures in the end; how it is run stands in `run.py`."""

from __future__ import annotations

import abc
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any, NamedTuple, Protocol

import numpy as np
from rich.console import Console
from torch import Tensor, nn
from torch.utils.data import Dataset

from ..tasks import Split
from .options import OptimizerOptions, ScheduleOptions, TrainingOptions

if TYPE_CHECKING:
    from .record import RunFolder
    from .trainer import TaskTrainer

# Measured beside every metric and left out of records, which are then the same for the same run.
TIMES = ("_runtime", "_per_second", "_preparation_time")


class Settings(Protocol):
    """What the options of every kind of run have; the first four name the run in its record."""

    @property
    def task(self) -> str: ...
    @property
    def attention(self) -> str: ...
    @property
    def preset(self) -> str: ...
    @property
    def seed(self) -> int: ...
    @property
    def optimizer(self) -> OptimizerOptions: ...
    @property
    def schedule(self) -> ScheduleOptions: ...
    @property
    def training(self) -> TrainingOptions: ...

    def as_dict(self) -> dict[str, Any]: ...


class Best(NamedTuple):
    """By which validation metric the best weights are known."""

    metric: str
    greater: bool


ACCURACY = Best("accuracy", True)
LOSS = Best("loss", False)


class Batches(Protocol):
    """What a trainer needs to know about examples; every `Task` does."""

    def collate(self, examples: Sequence[Mapping[str, Any]]) -> dict[str, Tensor]: ...

    def metrics(self, logits: Any, labels: Any) -> dict[str, float]: ...


class Job(abc.ABC):
    """One run's content. `run_job` trains it, resumes it where it was cut off, and writes its record.

    Args:
        options: Of the run.
    """

    best: Best = ACCURACY

    def __init__(self, options: Settings) -> None:
        self.options = options

    def prepare(self, console: Console) -> None:  # noqa: B027  (not all have something to prepare)
        """Make everything ready that can take a while or be missing. Raises before the run begins."""

    @abc.abstractmethod
    def model(self) -> nn.Module:
        """What is trained, as it is at the first step."""

    @abc.abstractmethod
    def dataset(self, split: Split) -> Dataset[Any]:
        """The examples of a split, as many as the options say."""

    @abc.abstractmethod
    def collate(self, examples: Sequence[Mapping[str, Any]]) -> dict[str, Tensor]:
        """Examples as a batch, which the model is called with."""

    @abc.abstractmethod
    def metrics(self, logits: np.ndarray, labels: np.ndarray) -> dict[str, float]:
        """What the model's outputs on all examples of a split are worth."""

    def trainer_class(self) -> type[TaskTrainer]:
        """What trains and evaluates it."""
        from .trainer import TaskTrainer  # which needs this module

        return TaskTrainer

    def conclude(self, trainer: TaskTrainer) -> dict[str, float]:
        """Test the weights that were selected.

        Returns:
            Metrics for the record, by names such as "test_accuracy".
        """
        found = trainer.evaluate(self.dataset("test"), metric_key_prefix="test")
        return {name: value for name, value in found.items() if name.startswith("test_") and not name.endswith(TIMES)}

    def save(self, model: nn.Module, folder: RunFolder) -> None:
        """Keep the model; called at the end and when a run is interrupted."""
        folder.save_model(model)
