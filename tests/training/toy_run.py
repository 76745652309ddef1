"""A training run in a process of its own, which may be told to die.

python toy_run.py OUTPUT ATTENTION SELECT [at STEP | saving STEP | signal STEP NUMBER | testing]
"""

from __future__ import annotations

import os
import signal
import sys
from pathlib import Path
from unittest import mock

import torch
from rich.console import Console

sys.path.insert(0, str(Path(__file__).parent))

from flexformer.tasks import registry
from flexformer.training import (
    ModelOptions,
    OptimizerOptions,
    RunInterruptedError,
    RunOptions,
    ScheduleOptions,
    TrainingOptions,
    checkpoints,
    run,
)
from flexformer.training.trainer import TaskTrainer

STEPS = 26
OPTIONS = {"performer": {"redraw_interval": 7}, "bigbird": {"block_size": 4}, "reformer": {"chunk_length": 4}}


def registered():
    """Within, the toy tasks are among the others."""
    return mock.patch.dict(registry._CLASSES, {"toy": "toy_task:Toy", "toy-pair": "toy_task:ToyPair"})


def options(attention: str, select: str = "final", task: str = "toy", **training) -> RunOptions:
    """90 examples in batches of 16: six steps an epoch, the last one smaller."""
    settings = {"steps": STEPS, "batch_size": 16, "evaluate_every": 5, "log_every": 2, "tensorboard": False} | training
    return RunOptions(
        task,
        attention,
        model=ModelOptions(layers=1, width=16, feed_forward=16, attention_options=OPTIONS.get(attention, {})),
        optimizer=OptimizerOptions(lr=3e-3),
        schedule=ScheduleOptions("cosine", warmup=4),
        training=TrainingOptions(select=select, **settings),
    )


def die_at(step: int, number: int) -> None:
    original = TaskTrainer.training_step

    def training_step(self, *arguments):
        if self.state.global_step == step:
            os.kill(os.getpid(), number)
        return original(self, *arguments)

    TaskTrainer.training_step = training_step


def die_while_saving(step: int) -> None:
    original = checkpoints.complete

    def complete(checkpoint, marker):
        if marker.step == step:
            (checkpoint / "optimizer.pt").write_bytes(b"cut off")
            os.kill(os.getpid(), signal.SIGKILL)
        original(checkpoint, marker)

    checkpoints.complete = complete


def die_while_testing() -> None:
    original = TaskTrainer.evaluate

    def evaluate(self, *arguments, **named):
        if named.get("metric_key_prefix") == "test":
            os.kill(os.getpid(), signal.SIGKILL)
        return original(self, *arguments, **named)

    TaskTrainer.evaluate = evaluate


def main() -> int:
    output, attention, select, *death = sys.argv[1:]
    torch.set_num_threads(1)
    signal.signal(signal.SIGINT, signal.default_int_handler)  # a parent in the background may have it ignored
    registered().start()
    if death[:1] == ["at"]:
        die_at(int(death[1]), signal.SIGKILL)
    elif death[:1] == ["saving"]:
        die_while_saving(int(death[1]))
    elif death[:1] == ["signal"]:
        die_at(int(death[1]), int(death[2]))
    elif death[:1] == ["testing"]:
        die_while_testing()
    try:
        run(options(attention, select), Path(output), Console())
    except RunInterruptedError as stopped:
        print(stopped)
        return stopped.status
    return 0


if __name__ == "__main__":
    sys.exit(main())
