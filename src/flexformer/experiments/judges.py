"""What runs at cpu scale say of the paper's claims, one by one."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from itertools import pairwise
from typing import Any

from flexformer.bench.figures import Figures, divide
from flexformer.bench.model import BASES
from flexformer.bench.operations import SDPA, UNFUSED

from .arena_table import ORDER, RETRIEVAL, SUBSTITUTE, TITLES
from .curves import curve, stable_from
from .frequencies import MULTIPLES
from .glue_cells import TASKS
from .glue_tables import SOURCES
from .kernels import RATES, best_cells, divergence
from .paired import Difference
from .parameters import counts
from .results import Result
from .verdicts import FAILS, HOLDS, MISSING, UNDECIDED, Finding, Scores, beats, by_attention, pair, seeds, together

OTHERS = ("linear", "performer", "rfa", "cosformer", "hedgehog", "polaformer")
S, N, C, SOFTMAX, HEDGEHOG = "flexformer-s", "flexformer-n", "flexformer-c", "softmax", "hedgehog"
# What the paper's words are taken to mean: points, a share of pairs, points.
SEVERE, ALMOST_ALL, SATURATED = 10.0, 0.8, 1.0


def arena(found: Sequence[Result]) -> dict[str, Scores]:
    """Accuracies over five tasks; Articles among them where there is no Retrieval."""
    present = {r.labels["task"] for r in found}
    return by_attention(
        found, "test_accuracy", 100, [t for t in ORDER if t != (SUBSTITUTE if RETRIEVAL in present else RETRIEVAL)]
    )


def best_on(found: Sequence[Result], tasks: Sequence[str]) -> Finding:
    """Whether ours is ahead of all that the paper has, task by task."""

    def of(task: str) -> Finding:
        scores = by_attention(found, "test_accuracy", 100, [task])
        if any(name not in scores for name in (SOFTMAX, S, *OTHERS)):
            return Finding(MISSING)
        return beats(scores, N, [name for name in scores if name not in (N, C)])

    return together({TITLES[task]: of(task) for task in tasks})


def language(found: Sequence[Result]) -> dict[str, Scores]:
    """Perplexities, negative, as less is better."""
    return by_attention(found, "test_perplexity", -1)


def glue(found: Sequence[Result]) -> dict[str, Scores]:
    """Scores over all tasks."""
    return by_attention(found, "test_score", 100, TASKS["cpu"])


def degraded(found: Mapping[str, Scores], names: Sequence[str]) -> Finding:
    """Whether each of them is far below softmax."""

    def of(name: str) -> Finding:
        if name not in found or SOFTMAX not in found:
            return Finding(MISSING)
        below = Scores({seed: score - SEVERE for seed, score in found[SOFTMAX].values.items()})
        return Finding(below.against(found[name]), pair(found, name, SOFTMAX, 1).figures)

    whole = together({name: of(name) for name in names})
    return Finding(whole.verdict, whole.figures and f"{whole.figures}; severely is taken as {SEVERE:g} points")


def transfer(found: Sequence[Result]) -> Finding:
    """Whether ours carries over better than Hedgehog's for almost all pairs of tasks."""
    differences = []
    for start in SOURCES["cpu"]:
        for target in TASKS["cpu"]:
            if target == start:
                continue
            own = by_attention([r for r in found if r.labels["source"] == start], "test_score", 100, [target])
            if N not in own or HEDGEHOG not in own:
                return Finding(MISSING)
            difference = Difference.of(own[N].values, own[HEDGEHOG].values)
            if difference is None:
                return Finding(MISSING)
            differences.append(difference)
    better, worse = (sum(sign * each.mean > 0 for each in differences) for sign in (1, -1))
    figures = f"{N} better on {better}, worse on {worse} and level on {len(differences) - better - worse} pairs"
    if not better + worse:
        return Finding(f"{UNDECIDED}: level everywhere", figures)
    verdict = HOLDS if better >= ALMOST_ALL * (better + worse) else FAILS
    few = seeds(min(each.seeds for each in differences))
    return Finding(f"{verdict} ({few})", f"{figures}; almost all is taken as {ALMOST_ALL:.0%} of those that differ")


def distilled(found: Sequence[Result]) -> dict[str, Scores]:
    """By map, the divergence at its best learning rate; maps that have not tried all are left out."""
    best = best_cells(found)
    tried = {label: {r.labels["lr"] for r in found if r.labels["map"] == label} for label in best}
    whole = {label: own for label, own in best.items() if tried[label] >= set(RATES["cpu"])}
    return {label: Scores({r.seed: -divergence(r) for r in own}) for label, own in whole.items()}


def recovery_speed(found: Sequence[Result]) -> Finding:
    """Whether ours is stable earlier than Hedgehog."""
    by_map: dict[str, dict[int, float]] = {}  # the step from which on a map's divergence is stable
    for result in found:
        by_map.setdefault(result.labels["map"], {})[result.seed] = -float(stable_from(curve(result)))
    judged = pair({label: Scores(steps) for label, steps in by_map.items()}, N, HEDGEHOG, 0)
    if judged.verdict == MISSING:
        return judged
    figures = judged.figures and f"steps: {judged.figures}"
    first, second, *_ = (step for step, _ in curve(next(r for r in found if r.labels["map"] == N)))
    # The true step is between an evaluation and the one before it.
    apart = Difference.of(by_map[N], by_map[HEDGEHOG])
    if apart is not None and abs(apart.mean) <= second - first:
        return Finding(f"{UNDECIDED}: at most one evaluation apart", figures)
    return Finding(judged.verdict, figures)


def frequencies(found: Sequence[Result], task: str) -> tuple[dict[float, float], str]:
    """Of ours, what a task gives by n / d, for the first seed, and the same in words."""
    own = [r for r in found if (r.labels["task"], r.labels["attention"], r.seed) == (task, N, 0)]
    by_n = {}
    for r in sorted(own, key=lambda r: r.labels["n"]):
        accuracy = r.metrics.get("test_accuracy")
        value = r.metrics["test_perplexity"] if accuracy is None else 100 * accuracy
        by_n[r.labels["n"] / r.labels["head_dim"]] = value
    return by_n, ", ".join(f"{value:.2f} at {share:g} d" for share, value in by_n.items())


def more_frequencies(found: Sequence[Result]) -> Finding:
    """Whether every larger number of frequencies gives a better language model."""
    by_n, figures = frequencies(found, "lm")
    if not set(by_n) >= set(MULTIPLES):
        return Finding(MISSING)
    values = list(by_n.values())
    falls = all(later < earlier for earlier, later in pairwise(values))
    return Finding(f"{HOLDS if falls else FAILS} ({seeds(1)})", figures)


def saturated(found: Sequence[Result], tasks: Sequence[str]) -> Finding:
    """Whether more than as many frequencies as the head is wide give next to nothing."""

    def of(task: str) -> Finding:
        by_n, figures = frequencies(found, task)
        if not set(by_n) >= set(MULTIPLES):
            return Finding(MISSING)
        gain = max(value for share, value in by_n.items() if share > 1) - by_n[1]
        return Finding(f"{HOLDS if gain < SATURATED else FAILS} ({seeds(1)})", figures)

    whole = together({TITLES[task]: of(task) for task in tasks})
    return Finding(whole.verdict, whole.figures and f"{whole.figures}; saturated is taken as less than a point more")


def against(bases: Sequence[str], good: Sequence[str], figures: Sequence[str]) -> Finding:
    """The verdict on something that is said of softmax, of which there are several."""
    if not good:
        return Finding(FAILS, "; ".join(figures))
    all_of_them = len(good) == len(bases)
    return Finding(HOLDS if all_of_them else f"{HOLDS} against {' and '.join(good)} only", "; ".join(figures))


def retrieval_step(measured: dict[str, Any] | None) -> Finding:
    """Whether a training step with ours is as much faster and smaller as the paper's, by `flexformer bench model`."""
    if measured is None:
        return Finding(MISSING)
    figures, step = Figures(measured), "training step"
    length, parts, good = figures.lengths[0], [], []
    for base in BASES:
        faster = figures.ratio(base, N, length, step)
        share = divide(figures.peak(N, length, step), figures.peak(base, length, step))
        if faster is None or share is None:
            return Finding(MISSING)
        parts.append(f"{faster:.1f}x, {abs(1 - share):.0%} {'less' if share < 1 else 'more'} memory than {base}")
        if faster >= 2.6 and share <= 0.16:
            good.append(base)
    return against(BASES, good, parts)


def all_cheaper(found: Sequence[Result]) -> Finding:
    """Whether a training step with any linear attention takes less time and memory than with softmax."""
    steps = {m["row"]: m for r in found if r.labels["part"] == "b" for m in r.details["measurements"]}
    names, bases = (*OTHERS, S, N), (UNFUSED, SDPA)
    if any(name not in steps for name in (*names, *bases)):
        return Finding(MISSING)
    parts, good = [], []
    for base in bases:
        faster = {n: steps[base]["seconds"]["median"] / steps[n]["seconds"]["median"] for n in names}
        share = {n: steps[n]["memory"]["peak_bytes"] / steps[base]["memory"]["peak_bytes"] for n in names}
        slowest, largest = min(faster, key=faster.__getitem__), max(share, key=share.__getitem__)
        parts.append(
            f"at least {faster[slowest]:.1f}x as fast ({slowest}) with at most {share[largest]:.0%} of the memory "
            f"({largest}) of {base}"
        )
        if faster[slowest] > 1 and share[largest] < 1:
            good.append(base)
    return against(bases, good, parts)


def growth(measured: dict[str, Any] | None) -> Finding:
    """Whether time and memory grow as the length does, by `flexformer bench scaling`."""
    slopes = [slope for slope in (measured or {"slopes": []})["slopes"] if slope["row"] == N]
    if not slopes or any(slope[what] is None for slope in slopes for what in ("time", "memory")):
        return Finding(MISSING)
    worst = max(max(slope["time"], slope["memory"]) for slope in slopes)
    figures = ", ".join(f"{s['pass']} N^{s['time']:.2f} in time, N^{s['memory']:.2f} in memory" for s in slopes)
    return Finding(HOLDS if worst <= 1.05 else FAILS, figures)


def parameters() -> Finding:
    """Whether as many parameters are added as the paper says."""
    ours = [count for count in counts() if count.attention == N]
    figures = ", ".join(f"{c.size} {c.added_percent:.2f} % (paper {c.paper_percent} %)" for c in ours)
    same = all(c.paper_percent is not None and abs(c.added_percent - c.paper_percent) < 0.05 for c in ours)
    return Finding(HOLDS if same else FAILS, figures)
