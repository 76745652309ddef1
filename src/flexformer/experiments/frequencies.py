"""How many frequencies a spectral kernel needs: accuracy or perplexity, speed and memory against n."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Any, TextIO

from flexformer.training import LanguageOptions, RunOptions
from flexformer.training.atomic import write_json
from flexformer.training.language_options import TASK as LANGUAGE
from flexformer.training.record import Record

from . import presets
from .grid import finish


@dataclass(frozen=True)
class Point:
    """One run of the sweep."""

    task: str
    attention: str
    frequencies: int
    head_dim: int
    seed: int
    test_accuracy: float | None
    """of tasks with classes"""
    test_perplexity: float | None
    """of language models"""
    steps_per_second: float | None
    peak_memory: int | None
    parameters: int
    run: str


def plan(
    tasks: Sequence[str],
    attention: str,
    preset: str,
    multiples: Sequence[float],
    seeds: Sequence[int],
    root: str | None = None,
    changes: dict[str, Any] | None = None,
    source: str | None = None,
) -> list[RunOptions | LanguageOptions]:
    """The runs of a sweep.

    Args:
        tasks: Names in `flexformer.tasks.names()`, or "lm".
        attention: flexformer-s or flexformer-n.
        preset: The settings all runs share.
        multiples: Numbers of frequencies as multiples of the head's width.
        seeds: One run for each.
        root: The folder data lives in.
        changes: Of the preset, as `presets.load` takes them.
        source: The text of "lm"; the preset's by default.
    """
    runs: list[RunOptions | LanguageOptions] = []
    for task in tasks:
        shared = _shared(task, preset, attention, changes or {}, source)
        width = shared.model.head_dim or shared.model.width // shared.model.heads
        for multiple in multiples:
            count = round(multiple * width)
            if count < 1:
                raise ValueError(
                    f"multiple {multiple} of heads of {width} leaves no frequency; use {1 / width} or more"
                )
            given = shared.model.attention_options | {"num_frequencies": count}
            for seed in seeds:
                run = replace(shared, seed=seed)
                run = replace(run, model=replace(run.model, attention_options=given))  # type: ignore[arg-type]
                runs.append(replace(run, data=replace(run.data, root=root)))  # type: ignore[arg-type]
    return runs


def _shared(
    task: str, preset: str, attention: str, changes: dict[str, Any], source: str | None
) -> RunOptions | LanguageOptions:
    if task != LANGUAGE:
        return presets.load(task, preset, attention=attention, **changes)
    options = presets.load_language(preset, attention=attention, **changes)
    return options if source is None else replace(options, data=replace(options.data, source=source))


def sweep(runs: Sequence[RunOptions | LanguageOptions], output: Path, shown: TextIO) -> list[Point]:
    """Train every run in a process of its own, so that each one's memory is its own; finished ones are not repeated.

    Args:
        runs: See `plan`.
        output: Gets a folder for each run and `frequencies.json` with all points.
        shown: An open file, not only a stream, that takes what the runs print.
    """
    points = []
    for options in runs:
        count = options.model.attention_options["num_frequencies"]
        folder = output / f"{options.task}-{options.attention}-{options.preset}-n{count}-seed{options.seed}"
        record = finish(["train", options.task], options, folder, shown)
        points.append(_point(options, count, folder, record))
    write_json(output / "frequencies.json", [asdict(point) for point in points])
    return points


def _point(options: RunOptions | LanguageOptions, count: int, folder: Path, record: Record) -> Point:
    return Point(
        task=options.task,
        attention=options.attention,
        frequencies=count,
        head_dim=options.model.head_dim or options.model.width // options.model.heads,
        seed=options.seed,
        test_accuracy=record.metrics.get("test_accuracy"),
        test_perplexity=record.metrics.get("test_perplexity"),
        steps_per_second=None if record.step_seconds is None else 1 / record.step_seconds,
        peak_memory=record.peak_memory,
        parameters=record.parameters,
        run=folder.name,
    )
