"""A training step of several runs, measured in turn: what takes how long must not depend on when it was run."""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from rich.console import Console
from torch import Tensor

from flexformer.bench.attention import figures
from flexformer.bench.memory import Memory, Probe
from flexformer.bench.record import load
from flexformer.bench.timing import Failure, alternate, fixed_threads
from flexformer.training import Job
from flexformer.training.optimizer import adamw
from flexformer.training.run import quiet_libraries
from flexformer.training.trainer import without_idle_masks

from .cells import Job as CellJob
from .cells import MeasuredCell
from .efficiency import described
from .stages import Stage, build_job

HERE = "flexformer.experiments.steps"


@dataclass(frozen=True)
class StepsCell(MeasuredCell):
    """Time and memory of a step of runs that differ in one thing.

    Args:
        stages: The runs by what they are called; `options` has under "runs" what decides each.
    """

    stages: Mapping[str, Stage]

    def jobs(self, output: Path) -> list[CellJob]:
        runs = {name: {"kind": stage.kind, "options": stage.options.as_dict()} for name, stage in self.stages.items()}
        return [CellJob(self.name, self.target, {**self.options, "runs": runs})]


def steps_cell(
    table: str, name: str, labels: Mapping[str, Any], preset: str, stages: Mapping[str, Stage], command: Sequence[str]
) -> StepsCell:
    """The cell of these runs, on one thread; arguments as of `Cell` and `StepsCell`."""
    rounds = 2 if preset == "smoke" else 7
    options = {"threads": 1, "rounds": rounds, "runs": {each: stage.essentials for each, stage in stages.items()}}
    return StepsCell(table, name, labels, preset, f"{HERE}:measure", options, tuple(command), stages)


def measure(
    runs: Mapping[str, Mapping[str, Any]], threads: int, rounds: int, seconds: float = 60.0, timeout: float = 600.0
) -> dict[str, Any]:
    """Time a step of every run in turn, and measure its peak memory in processes of their own.

    Args:
        runs: `kind` and `options` of each, by name.
        threads: Of torch.
        rounds: How often each has its turn.
        seconds: Time after which a slow run leaves the later rounds.
        timeout: Seconds that a measurement of memory may take.
    """
    started, load_before = time.perf_counter(), load()
    memories: dict[str, Memory | Failure] = {}
    with Probe(threads, timeout, ["flexformer.training"]) as probe:
        for name, run in runs.items():
            memories[name] = probe.measure(f"{HERE}:probe_step", **run)
    with quiet_libraries(), fixed_threads(threads):
        steps = {name: training_step(prepared(**run)) for name, run in runs.items()}
        timings = alternate(steps, rounds=rounds, seconds=seconds)
    found = []
    for name in runs:
        memory, timing = memories[name], timings[name]
        note = next((each.reason for each in (timing, memory) if isinstance(each, Failure)), None)
        found.append({"row": name, **figures(timing, None if isinstance(memory, Failure) else memory, note)})
    return described({"measurements": found}, started, load_before)


def prepared(kind: str, options: Mapping[str, Any]) -> Job:
    """A run's content, ready to be trained."""
    job = build_job(kind, options)
    job.prepare(Console(stderr=True, highlight=False))
    return job


def training_step(job: Job, portions: int | None = None, examples: int | None = None) -> Callable[[], Tensor]:
    """Forward, backward and an optimizer step, always on the same batch of the training set, as a call.

    Args:
        job: What is trained; prepared.
        portions: Of a batch that is taken in portions, how many of them; default all.
        examples: In a portion; default as in training.
    """
    options = job.options
    torch.manual_seed(options.seed)
    model = job.model().train()
    optimizer = adamw(model, options.optimizer)
    data: Any = job.dataset("train")
    size = examples or options.training.batch_size // options.training.accumulation
    # Spread over the set, because many are sorted by length or by label.
    stride = max(1, len(data) // size)
    batch = without_idle_masks(job.collate([data[i * stride % len(data)] for i in range(size)]))

    def step() -> Tensor:
        for _ in range(portions or options.training.accumulation):
            outputs = model(**batch)
            loss: Tensor = outputs["loss"] if isinstance(outputs, dict) else outputs.loss
            loss.backward()
        optimizer.step()
        optimizer.zero_grad()
        return loss.detach()

    return step


def probe_step(
    kind: str, options: Mapping[str, Any]
) -> tuple[Callable[[], Tensor], Callable[[], Tensor], Sequence[Tensor]]:
    """What the memory probe runs: a step on one example to warm up, then the step."""
    job = prepared(kind, options)
    return training_step(job, 1, 1), training_step(job), ()
