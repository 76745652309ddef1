"""What measurements say of the paper's claims about time, memory and parameters."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any, NamedTuple

from flexformer.attention import ATTENTIONS
from flexformer.bench.model import BASES
from flexformer.bench.operations import SDPA, UNFUSED

from .frequencies import measured, title_of
from .judges import LINEAR, OTHERS, SOFTMAX, N, S, explained
from .paired import Difference, fitted_line
from .parameters import counts
from .results import Result
from .verdicts import FAILS, HOLDS, MISSING, UNDECIDED, Finding

MARGINAL = 1.25  # times the cost
SAME_MEMORY = 0.02  # two measurements of one thing differ by less
LINEARLY = 1.05  # power of the length
QUADRATIC = 1.8  # power of the length from which on it is called so


class Step(NamedTuple):
    """What one call takes."""

    seconds: float
    lower: float
    """first quartile of the seconds"""
    upper: float
    """third quartile"""
    peak: float
    """bytes"""

    @classmethod
    def of(cls, figures: Mapping[str, Any]) -> Step:
        seconds = figures["seconds"]
        return cls(seconds["median"], seconds["lower"], seconds["upper"], figures["memory"]["peak_bytes"])

    def is_slower(self, other: Step) -> bool:
        """Clearly: most calls of one take longer than most of the other."""
        return self.lower > other.upper

    def is_larger(self, other: Step) -> bool:
        """By more than what measurements vary by."""
        return self.peak > (1 + SAME_MEMORY) * other.peak


def against(bases: Sequence[str], good: Sequence[str], figures: Sequence[str], word: str = "against") -> Finding:
    """The verdict on something that is said of softmax, of which there are several."""
    if not good:
        return Finding(FAILS, "; ".join(figures))
    all_of_them = len(good) == len(bases)
    return Finding(HOLDS if all_of_them else f"{HOLDS} {word} {' and '.join(good)} only", "; ".join(figures))


def training_steps(found: Sequence[Result]) -> dict[str, Step]:
    """A training step of Retrieval, of every attention."""
    return {m["row"]: Step.of(m) for r in found if r.labels["part"] == "b" for m in r.details["measurements"]}


def retrieval_step(found: Sequence[Result]) -> Finding:
    """Whether a training step with ours is as much faster and smaller as the paper's."""
    steps, parts, good = training_steps(found), [], []
    if any(name not in steps for name in (N, *BASES)):
        return Finding(MISSING)
    for base in BASES:
        faster, share = steps[base].seconds / steps[N].seconds, steps[N].peak / steps[base].peak
        parts.append(f"{faster:.1f}x, {abs(1 - share):.0%} {'less' if share < 1 else 'more'} memory than {base}")
        if faster >= 2.6 and share <= 0.16:
            good.append(base)
    return against(BASES, good, parts)


def all_cheaper(found: Sequence[Result]) -> Finding:
    """Whether a training step with any linear attention takes less time and memory than with softmax."""
    steps, names, bases = training_steps(found), (*OTHERS, S, N), (UNFUSED, SDPA)
    if any(name not in steps for name in (*names, *bases)):
        return Finding(MISSING)
    parts, good = [], []
    for base in bases:
        faster = {name: steps[base].seconds / steps[name].seconds for name in names}
        share = {name: steps[name].peak / steps[base].peak for name in names}
        slowest, largest = min(faster, key=faster.__getitem__), max(share, key=share.__getitem__)
        parts.append(
            f"at least {faster[slowest]:.1f}x as fast ({slowest}) with at most {share[largest]:.0%} of the memory "
            f"({largest}) of {base}"
        )
        if faster[slowest] > 1 and share[largest] < 1:
            good.append(base)
    return against(bases, good, parts)


def little_dearer(found: Sequence[Result]) -> Finding:
    """Whether a training step with ours takes a little more time and memory than with other linear attentions."""
    steps = training_steps(found)
    if any(name not in steps for name in (*OTHERS, N)):
        return Finding(MISSING)
    ours, others = steps[N], {name: steps[name] for name in OTHERS}
    times = {name: ours.seconds / step.seconds for name, step in others.items()}
    memory = {name: ours.peak / step.peak for name, step in others.items()}
    figures = f"times the seconds: {', '.join(f'{name} {value:.2f}' for name, value in times.items())}"
    figures += f"; times the memory: {min(memory.values()):.2f} to {max(memory.values()):.2f}"
    beyond = {
        "time much more than": [n for n in others if times[n] > MARGINAL and ours.is_slower(others[n])],
        "time less than": [n for n in others if others[n].is_slower(ours)],
        "memory much more than": [n for n in others if memory[n] > MARGINAL],
        "memory less than": [n for n in others if others[n].is_larger(ours)],
    }
    judged = Finding(FAILS if any(beyond.values()) else HOLDS, figures, remark=_named(beyond, len(others)))
    return explained(judged, f"marginally is taken as 1 to {MARGINAL:g} times")


def cheapest(found: Sequence[Result]) -> Finding:
    """Whether a training step with ours takes less time and memory than with any other attention."""
    steps = training_steps(found)
    others = [name for name in ATTENTIONS if not name.startswith("flexformer")]
    if any(name not in steps for name in (N, *others)):
        return Finding(MISSING)
    ahead = {
        "slower than": [name for name in others if steps[N].is_slower(steps[name])],
        "more memory than": [name for name in others if steps[N].is_larger(steps[name])],
    }
    first = min(others, key=lambda name: steps[name].seconds)
    least = min(others, key=lambda name: steps[name].peak)
    figures = ", ".join(f"{name} {steps[name].seconds:.2f} s, {steps[name].peak / 2**20:.0f} MiB"
                        for name in dict.fromkeys((N, first, least)))  # fmt: skip
    if any(ahead.values()):
        return Finding(FAILS, figures, remark=_named(ahead, len(others)))
    level = [name for name in others if not (steps[name].is_slower(steps[N]) and steps[name].is_larger(steps[N]))]
    return Finding(UNDECIDED, figures, remark=f"level with {', '.join(level)}") if level else Finding(HOLDS, figures)


def _named(parts: Mapping[str, Sequence[str]], everybody: int) -> str:
    """In words, of whom what is true."""
    return "; ".join(
        f"{words} {'any of them' if len(names) == everybody else ', '.join(names)}"
        for words, names in parts.items()
        if names
    )


def dearer_with_more(found: Sequence[Result], tasks: Sequence[str]) -> Finding:
    """Whether a training step takes the more time and memory the more frequencies there are."""
    parts, cheaper = [], []
    for task in tasks:
        own = [r for r in measured(found) if (r.labels["task"], r.labels["attention"]) == (task, N)]
        if not own:
            return Finding(MISSING)
        steps = [Step.of(m) for m in max(own, key=lambda r: len(r.labels["counts"])).details["measurements"]]
        fewest, most = steps[0], steps[-1]
        times = len(steps) - 1
        parts.append(
            f"{title_of(task)}: {most.seconds / fewest.seconds:.1f} times the seconds and "
            f"{most.peak / fewest.peak:.2f} times the memory after {times} doublings"
        )
        if not (most.is_slower(fewest) and most.is_larger(fewest)):
            cheaper.append(title_of(task))
    return Finding(FAILS if cheaper else HOLDS, "; ".join(parts), remark=", ".join(cheaper))


def softmax_grows(found: Sequence[Result]) -> Finding:
    """Whether a forward pass with softmax takes time and memory as the square of the length, at the last doubling."""
    bases, parts, good = (UNFUSED, SOFTMAX), [], []
    measurements = [m for r in found if r.labels["part"] == "a" for m in r.details["measurements"]]
    for base in bases:
        steps = {m["length"]: Step.of(m) for m in measurements if m["row"] == base}
        last = max(steps, default=0)
        if last // 2 not in steps:
            return Finding(MISSING)
        before, after = steps[last // 2], steps[last]
        powers = [math.log2(after.seconds / before.seconds), math.log2(after.peak / before.peak)]
        parts.append(f"{base}: N^{powers[0]:.1f} in time, N^{powers[1]:.1f} in memory from {last // 2:,} to {last:,}")
        if min(powers) >= QUADRATIC:
            good.append(base)
    return against(bases, good, parts, "for")


def growth(record: Mapping[str, Any]) -> Finding:
    """Whether time and memory grow as the length does, by the record of `flexformer bench scaling`."""
    slopes = [slope for slope in record.get("slopes", []) if slope["row"] in (N, LINEAR)]
    own = [slope for slope in slopes if slope["row"] == N]
    if not own or any(slope[what] is None for slope in slopes for what in ("time", "memory")):
        return Finding(MISSING)
    figures = "; ".join(
        f"{s['row']}, {s['pass']}: N^{s['time']:.2f} in time, N^{s['memory']:.2f} in memory" for s in slopes
    )
    above = [_excess(record, s["pass"], what) for s in own for what in ("time", "memory") if s[what] > LINEARLY]
    if not above:
        kind, remark = HOLDS, ""
    elif any(excess.is_clear for excess in above):
        kind, remark = FAILS, ""
    else:
        kind, remark = UNDECIDED, "not clearly above"
    return explained(Finding(kind, figures, remark=remark), f"linearly is taken as up to N^{LINEARLY:g}")


def _excess(record: Mapping[str, Any], direction: str, what: str) -> Difference:
    """By how much ours grows with a larger power of the length than the largest that is called linear."""
    points = [
        (math.log(m["length"]), math.log(m["seconds"]["median"] if what == "time" else m["memory"]["peak_bytes"]))
        for m in record["measurements"]
        if (m["row"], m["pass"]) == (N, direction) and m["length"] >= record["options"]["fit_from"]
        if m["seconds"] and m["memory"]
    ]
    power = fitted_line([x for x, _ in points], [y for _, y in points])
    return replace(power, mean=power.mean - LINEARLY)


def parameters() -> Finding:
    """Whether as many parameters are added as the paper says."""
    ours = [count for count in counts() if count.attention == N]
    figures = ", ".join(f"{c.size} {c.added_percent:.2f} % (paper {c.paper_percent} %)" for c in ours)
    same = all(c.paper_percent is not None and abs(c.added_percent - c.paper_percent) < 0.05 for c in ours)
    return Finding(HOLDS if same else FAILS, figures)
