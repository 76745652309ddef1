"""The demo from beginning to end."""

from __future__ import annotations

import json
import time
from collections.abc import Callable
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

from rich.console import Console

from flexformer import ATTENTIONS as ORDER

from ..bench.timing import fixed_threads
from ..files import write_json, write_text
from ..report import collect, page, read_kernels
from ..training import LanguageJob, Record, run_job
from ..training.run import quiet_libraries
from . import measure
from .plan import (
    ATTENTIONS,
    NOTES,
    REPORT,
    SCALING,
    Plan,
    begin,
    best_threads,
    expected_seconds,
    options_for,
    step_seconds,
    steps_that_fit,
    with_steps,
)

TITLE = "Flexformer in a few minutes"
OURS = "flexformer-n"
CLOSING = 15.0
"""seconds kept for the report"""


@dataclass
class Outcome:
    """What a demo found."""

    steps: int
    records: dict[str, Record]
    written: measure.Written
    scaling: dict[str, Any]
    costs: list[dict[str, Any]]
    left_out: list[str] = field(default_factory=list)
    seconds: float = 0.0
    report: Path = Path()


def run(output: Path, minutes: float, seed: int, console: Console, command: list[str] | None = None) -> Outcome:
    """Train, compare, write, measure and report, within a time; go on where an earlier call was cut off.

    Args:
        output: The folder; see `plan.begin`.
        minutes: Allowed for everything.
        seed: Of all that is drawn.
        console: Where progress is shown.
        command: The command line, for the records.
    """
    clock = Clock(60 * minutes)
    plan = begin(output, minutes, seed)
    with quiet_libraries(), fixed_threads(best_threads(seed, output)):
        plan, steps = _decide(plan, output, clock, console)
        records, left_out = _train(plan, steps, output, clock, console, command)
        written, costs = _write(records, plan, output, clock, console)
        scaling = _measure(list(records), output, clock, console)
        outcome = Outcome(plan.steps or 0, records, written, scaling, costs, left_out, clock.elapsed)
        outcome.report = _report(outcome, plan, output, console)
    Plan(plan.minutes, plan.seed, plan.steps, finished=True).write(output)
    outcome.seconds = clock.elapsed
    return outcome


class Clock:
    """Seconds since the demo began, and how many are left."""

    def __init__(self, allowed: float) -> None:
        self.started, self.allowed = time.perf_counter(), allowed

    @property
    def elapsed(self) -> float:
        return time.perf_counter() - self.started

    @property
    def left(self) -> float:
        return max(0.0, self.allowed - self.elapsed - CLOSING)


def _decide(plan: Plan, output: Path, clock: Clock, console: Console) -> tuple[Plan, dict[str, float]]:
    """How many steps there will be, from a few of each kind, and how long one takes."""
    with console.status("timing a few steps") as status:
        steps = step_seconds(
            ATTENTIONS, plan.seed, output, progress=lambda name: status.update(f"timing a few steps of {name}")
        )
    if plan.steps is None:
        plan = with_steps(plan, steps_that_fit(plan.minutes, clock.elapsed, list(steps.values())))
        plan.write(output)
        console.print(f"{plan.steps} steps of each attention fit into {plan.minutes:g} minutes.", highlight=False)
    else:
        console.print(f"Going on with a demo of {plan.steps} steps of each attention.", highlight=False)
    return plan, steps


def _train(
    plan: Plan, steps: dict[str, float], output: Path, clock: Clock, console: Console, command: list[str] | None
) -> tuple[dict[str, Record], list[str]]:
    """All models one after the other; the last ones are left out where the machine has become too slow for all."""
    assert plan.steps is not None
    records: dict[str, Record] = {}
    left_out, slower = [], 1.0
    for attention in ATTENTIONS:
        expected = expected_seconds(plan.steps, steps[attention])
        if len(records) >= 2 and slower * expected > clock.left:
            left_out.append(attention)
            console.print(f"{attention} is left out: there is no time for it any more.", highlight=False)
            continue
        console.print(f"\n[bold]{attention}[/]", highlight=False)
        job, before = LanguageJob(options_for(attention, plan.steps, plan.seed, output)), clock.elapsed
        records[attention] = run_job(job, output / attention, console, command)
        slower = max(slower, (clock.elapsed - before) / expected)
    return {name: records[name] for name in ORDER if name in records}, left_out


def _write(
    records: dict[str, Record], plan: Plan, output: Path, clock: Clock, console: Console
) -> tuple[measure.Written, list[dict[str, Any]]]:
    """A text by our model, and what one more byte costs it and softmax."""
    ours, softmax = (measure.load_model(output / name) for name in (OURS, "softmax"))
    with console.status(f"{OURS} is writing"):
        written = measure.write(ours, plan.seed, tokens=min(measure.WRITTEN, 20 + 10 * (plan.steps or 0)))
    with console.status("timing one more token") as status:
        found = measure.costs([softmax, ours], clock.left, _shown(status.update))
    return written, [asdict(cost) for cost in found]


def _measure(attentions: list[str], output: Path, clock: Clock, console: Console) -> dict[str, Any]:
    with console.status("measuring time and memory") as status:
        record = measure.scaling(attentions, clock.left, _shown(status.update))
    write_json(output / SCALING, record)
    return record


def _shown(update: Callable[[str], None]) -> Callable[[str, int, int], None]:
    return lambda what, done, total: update(what)


def _report(outcome: Outcome, plan: Plan, output: Path, console: Console) -> Path:
    notes = {
        "demo": TITLE,
        "said": said(outcome),
        "written": asdict(outcome.written),
        "costs": outcome.costs,
        "left_out": outcome.left_out,
    }
    write_json(output / NOTES, notes)
    with console.status("writing the report"):
        sources = collect([output])
        path = output / REPORT
        write_text(path, page(sources, TITLE, read_kernels(sources.runs)))
    return path


def said(outcome: Outcome) -> list[str]:
    """The demo in sentences."""
    first = next(iter(outcome.records.values()))
    bits = {name: record.metrics["test_bits_per_byte"] for name, record in outcome.records.items()}
    quality = ", ".join(f"{name} {value:.3f}" for name, value in sorted(bits.items(), key=lambda item: item[1]))
    lines = [
        f"{len(outcome.records)} small language models read the sources of Python's standard library byte by byte: "
        f"{outcome.steps:,} steps each, {first.tokens:,} bytes, everything the same but the attention. What they need "
        f"for a byte of text they have not seen, in bits: {quality}."
    ]
    speed = speeds(outcome.scaling)
    if speed:
        length, factor = speed[-1]
        comparison = f"{factor:.1f} times as fast as" if factor >= 1 else f"{1 / factor:.1f} times slower than"
        lines.append(f"Over {length:,} tokens {OURS} attention is {comparison} softmax's fused one on this machine.")
    return lines


def speeds(record: dict[str, Any]) -> list[tuple[int, float]]:
    """(length, times as fast as softmax) of our attention, where both were measured."""
    found = {(m["row"], m["length"]): m["seconds"]["median"] for m in record["measurements"] if m["seconds"]}
    lengths = sorted({length for _, length in found})
    return [
        (n, found["softmax", n] / found[OURS, n]) for n in lengths if ("softmax", n) in found and (OURS, n) in found
    ]


def as_json(outcome: Outcome) -> str:
    """Everything a script would want."""
    return json.dumps(
        {
            "steps": outcome.steps,
            "seconds": round(outcome.seconds, 1),
            "metrics": {name: record.metrics for name, record in outcome.records.items()},
            "left_out": outcome.left_out,
            "speed": [{"length": length, "times": times} for length, times in speeds(outcome.scaling)],
            "written": asdict(outcome.written),
            "costs": outcome.costs,
            "report": str(outcome.report),
        }
    )
