"""What measurements say of the paper's claims about time, memory and parameters."""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace
from typing import Any, NamedTuple

from flexformer.attention import ATTENTIONS
from flexformer.bench.model import BASES
from flexformer.bench.operations import PASSES, SDPA, UNFUSED

from .frequencies import measured, title_of
from .judges import HEDGEHOG, LINEAR, OTHERS, POLAFORMER, SOFTMAX, N, S, explained
from .paired import Difference, fitted_line
from .parameters import counts
from .results import Result
from .verdicts import FAILS, HOLDS, MISSING, UNDECIDED, Finding, decided, together

FORWARD = PASSES[0]
MUCH, PERHAPS, LESS = "much more than", "much more in one of two measurements than", "less than"
DEARER = {MUCH: FAILS, PERHAPS: UNDECIDED}
MARGINAL = 1.25  # times the cost
SAME_MEMORY = 0.02  # a difference up to this share is none
LINEARLY = 1.05  # power of the length
QUADRATIC = 1.8  # power of the length from which on it is called so
FIT_FROM = 2048  # at smaller lengths much of the memory is not attention's


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


def training_steps(found: Sequence[Result], again: Mapping[str, Any]) -> list[dict[str, Step]]:
    """Of Retrieval's model with every attention, as figure 2 (b) and the record of `flexformer bench model` have them.

    What was measured twice counts where both times say so.
    """
    first = [m for r in found if r.labels["part"] == "b" for m in r.details["measurements"]]
    return [{m["row"]: Step.of(m) for m in measured} for measured in (first, again.get("measurements")) if measured]


def _lacks(runs: Sequence[Mapping[str, Step]], *names: str) -> bool:
    return not runs or any(name not in steps for steps in runs for name in names)


def retrieval_step(found: Sequence[Result], again: Mapping[str, Any]) -> Finding:
    """Whether a training step with ours is as much faster and smaller as the paper's."""
    runs, parts, good = training_steps(found, again), [], []
    if _lacks(runs, N, *BASES):
        return Finding(MISSING)
    for base in BASES:
        faster = [steps[base].seconds / steps[N].seconds for steps in runs]
        share = [steps[N].peak / steps[base].peak for steps in runs]
        memory = f"{_range([100 * each for each in share], 0)} % of the memory"
        parts.append(f"{_range(faster, 1)} times as fast with {memory} of {base}")
        if min(faster) >= 2.6 and max(share) <= 0.16:
            good.append(base)
    return explained(against(BASES, good, parts), "taken as at least 2.6 times and at least 84 % less")


def all_cheaper(found: Sequence[Result], again: Mapping[str, Any]) -> Finding:
    """Whether a training step with any linear attention takes less time and memory than with softmax."""
    runs, names, bases = training_steps(found, again), (*OTHERS, S, N), (UNFUSED, SDPA)
    if _lacks(runs, *names, *bases):
        return Finding(MISSING)
    parts, good = [], []
    for base in bases:
        faster = {name: min(steps[base].seconds / steps[name].seconds for steps in runs) for name in names}
        share = {name: max(steps[name].peak / steps[base].peak for steps in runs) for name in names}
        slowest, largest = min(faster, key=faster.__getitem__), max(share, key=share.__getitem__)
        parts.append(
            f"at least {faster[slowest]:.1f} times as fast ({slowest}) with at most {100 * share[largest]:.0f} % of "
            f"the memory ({largest}) of {base}"
        )
        if faster[slowest] > 1 and share[largest] < 1:
            good.append(base)
    return against(bases, good, parts)


def little_dearer(found: Sequence[Result], again: Mapping[str, Any]) -> Finding:
    """Whether a training step with ours takes at most a little more time and memory than with other linear ones."""
    runs = training_steps(found, again)
    if _lacks(runs, N, *OTHERS):
        return Finding(MISSING)
    times = {name: [steps[N].seconds / steps[name].seconds for steps in runs] for name in OTHERS}
    memory = [steps[N].peak / steps[name].peak for steps in runs for name in OTHERS]
    figures = f"times the seconds: {', '.join(f'{name} {_range(values)}' for name, values in times.items())}"
    figures += f"; times the memory: {_range(memory)}"
    said: dict[str, list[str]] = {}
    for name in OTHERS:
        for words in _dearness([(steps[N], steps[name]) for steps in runs]):
            said.setdefault(words, []).append(name)
    kind = next((kind for words, kind in DEARER.items() if any(each.endswith(words) for each in said)), HOLDS)
    dearest_first = sorted(said, key=lambda words: (words.endswith(LESS), words))
    judged = Finding(kind, figures, remark=_named({words: said[words] for words in dearest_first}, len(OTHERS)))
    return explained(judged, f"marginally is taken as up to {MARGINAL:g} times")


def _dearness(pairs: Sequence[tuple[Step, Step]]) -> Iterator[str]:
    """What can be said of one against another that both were measured beside, some times."""
    slower = sum(one.seconds > MARGINAL * other.seconds and one.is_slower(other) for one, other in pairs)
    larger = sum(one.peak > MARGINAL * other.peak for one, other in pairs)
    for what, times in (("time", slower), ("memory", larger)):
        if times:
            yield f"{what} {MUCH if times == len(pairs) else PERHAPS}"
    if all(other.is_slower(one) for one, other in pairs):
        yield f"time {LESS}"
    if all(other.is_larger(one) for one, other in pairs):
        yield f"memory {LESS}"


def _range(values: Sequence[float], digits: int = 2) -> str:
    ends = [f"{end(values):.{digits}f}" for end in (min, max)]
    return " to ".join(dict.fromkeys(ends))


def cheapest(found: Sequence[Result], again: Mapping[str, Any]) -> Finding:
    """Whether a training step with ours takes less time and memory than with any other attention."""
    runs = training_steps(found, again)
    others = [name for name in ATTENTIONS if not name.startswith("flexformer")]
    if _lacks(runs, N, *others):
        return Finding(MISSING)
    ahead = {
        "slower than": [name for name in others if all(steps[N].is_slower(steps[name]) for steps in runs)],
        "more memory than": [name for name in others if all(steps[N].is_larger(steps[name]) for steps in runs)],
    }
    first = min(others, key=lambda name: runs[0][name].seconds)
    least = min(others, key=lambda name: runs[0][name].peak)
    figures = ", ".join(
        f"{name} {_range([steps[name].seconds for steps in runs])} s, "
        f"{_range([steps[name].peak / 2**20 for steps in runs], 0)} MiB"
        for name in dict.fromkeys((N, first, least))
    )
    if any(ahead.values()):
        return Finding(FAILS, figures, remark=_named(ahead, len(others)))
    dearer = [name for name in others if all(s[name].is_slower(s[N]) and s[name].is_larger(s[N]) for s in runs)]
    level = [name for name in others if name not in dearer]
    return Finding(UNDECIDED, figures, remark=f"level with {', '.join(level)}") if level else Finding(HOLDS, figures)


def _named(parts: Mapping[str, Sequence[str]], everybody: int) -> str:
    """In words, of whom what is true."""
    return "; ".join(
        f"{words} {'any of them' if len(names) == everybody else ', '.join(names)}"
        for words, names in parts.items()
        if names
    )


def dearer_with_more(found: Sequence[Result], tasks: Sequence[str]) -> Finding:
    """Whether a training step takes the more time and memory the more frequencies there are, by slopes."""
    shown, parts = [], {}
    for task in tasks:
        own = [r for r in measured(found) if (r.labels["task"], r.labels["attention"]) == (task, N)]
        if not own:
            return Finding(MISSING)
        largest = max(own, key=lambda r: len(r.labels["counts"]))
        steps = [Step.of(m) for m in largest.details["measurements"]]
        places = [math.log2(count) for count in largest.labels["counts"]]
        for what, costs in (("time", [s.seconds for s in steps]), ("memory", [s.peak for s in steps])):
            parts[f"{what} of {title_of(task)}"] = decided(fitted_line(places, [math.log2(cost) for cost in costs]))
        more = f"with {2 ** (places[-1] - places[0]):.0f} times as many"
        shown.append(
            f"{title_of(task)}: {steps[-1].seconds / steps[0].seconds:.1f} times the seconds and "
            f"{steps[-1].peak / steps[0].peak:.2f} times the memory {more}"
        )
    # What was measured has no seeds.
    timeless = {name: replace(part, seeds=0, remark="") for name, part in parts.items()}
    return replace(together(timeless), figures="; ".join(shown))


def softmax_grows(found: Sequence[Result]) -> Finding:
    """Whether a forward pass with softmax takes time and memory as the square of the length.

    Each length was measured by itself, so that a power is fitted through all that are long enough.
    """
    bases, parts, good = (UNFUSED, SOFTMAX), [], []
    measurements = [m for r in found if r.labels["part"] == "a" for m in r.details["measurements"]]
    for base in (*bases, LINEAR, N):  # the last two tell how far lengths that were measured one by one can be trusted
        steps = {m["length"]: Step.of(m) for m in measurements if m["row"] == base and m["length"] >= FIT_FROM}
        if len(steps) < 3:
            return Finding(MISSING)
        logs = [math.log(length) for length in steps]
        powers = [
            fitted_line(logs, [math.log(cost) for cost in costs]).mean
            for costs in zip(*((step.seconds, step.peak) for step in steps.values()), strict=True)
        ]
        ends = f"from {min(steps):,} to {max(steps):,}"
        parts.append(f"{base}: N^{powers[0]:.1f} in time, N^{powers[1]:.1f} in memory {ends}")
        if base in bases and min(powers) >= QUADRATIC:
            good.append(base)
    meaning = (
        f"as the square is taken as N^{QUADRATIC:g} or more; powers are too large at these lengths, as those of linear "
        "attentions show"
    )
    return explained(against(bases, good, parts, "for"), meaning)


def growth(record: Mapping[str, Any]) -> Finding:
    """Whether a forward pass grows as the length does, by the record of `flexformer bench scaling`."""
    slopes = [slope for slope in record.get("slopes", []) if slope["row"] in (N, LINEAR)]
    own = [slope for slope in slopes if (slope["row"], slope["pass"]) == (N, FORWARD)]
    if not own or any(slope[what] is None for slope in slopes for what in ("time", "memory")):
        return Finding(MISSING)
    figures = "; ".join(
        f"{s['row']}, {s['pass']}: N^{s['time']:.2f} in time, N^{s['memory']:.2f} in memory" for s in slopes
    )
    above = [_excess(record, what) for s in own for what in ("time", "memory") if s[what] > LINEARLY]
    if not above:
        kind, remark = HOLDS, ""
    elif any(excess.is_clear for excess in above):
        kind, remark = FAILS, ""
    else:
        kind, remark = UNDECIDED, "not clearly above"
    return explained(Finding(kind, figures, remark=remark), f"linearly is taken as up to N^{LINEARLY:g}")


def _excess(record: Mapping[str, Any], what: str) -> Difference:
    """By how much the power of the length that our forward pass grows with is above what is called linear."""
    points = [
        (math.log(m["length"]), math.log(m["seconds"]["median"] if what == "time" else m["memory"]["peak_bytes"]))
        for m in record["measurements"]
        if (m["row"], m["pass"]) == (N, FORWARD) and m["length"] >= record["options"]["fit_from"]
        if m["seconds"] and m["memory"]
    ]
    power = fitted_line([x for x, _ in points], [y for _, y in points])
    return replace(power, mean=power.mean - LINEARLY)


def shares_of_parameters() -> Finding:
    """Whether what attentions add stands to each other, and in both sizes, as the paper says."""
    names = (S, HEDGEHOG, N, POLAFORMER)
    added = {name: {c.size: c.added_percent for c in counts() if c.attention == name} for name in names}
    sizes = list(added[N])
    good = all(
        math.isclose(added[S][size], added[HEDGEHOG][size], rel_tol=0.01) and added[N][size] < added[POLAFORMER][size]
        for size in sizes
    )
    grown = {name: own[sizes[-1]] / own[sizes[0]] for name, own in added.items()}
    steady = all(abs(math.log(grown[name])) < math.log(MARGINAL) for name in (S, N))
    figures = ", ".join(f"{name} {' and '.join(f'{own[size]:.2f} %' for size in sizes)}" for name, own in added.items())
    meaning = f"small and big; about the same is taken as less than {MARGINAL:g} times"
    return explained(Finding(HOLDS if good and steady else FAILS, figures), meaning)


def parameters() -> Finding:
    """Whether as many parameters are added as the paper says."""
    ours = [count for count in counts() if count.attention == N]
    figures = ", ".join(f"{c.size} {c.added_percent:.2f} % (paper {c.paper_percent} %)" for c in ours)
    same = all(c.paper_percent is not None and abs(c.added_percent - c.paper_percent) < 0.05 for c in ours)
    return Finding(HOLDS if same else FAILS, figures)
