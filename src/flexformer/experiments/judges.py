"""What runs at cpu scale say of the paper's claims, one by one."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from statistics import mean
from typing import Any

import numpy as np

from flexformer.bench.model import BASES
from flexformer.bench.operations import SDPA, UNFUSED
from flexformer.tasks.paper import accuracy

from .arena_table import ORDER, RETRIEVAL, SUBSTITUTE, TITLES, averages, stuck
from .curves import curve, stable_from
from .frequencies import MULTIPLES, trained
from .glue_cells import TASKS, TWICE
from .glue_tables import SOURCES
from .kernels import RATES, best_cells, divergence
from .paired import LEVEL, Difference, Panel
from .parameters import counts
from .results import Result
from .verdicts import (
    FAILS,
    HOLDS,
    MISSING,
    UNDECIDED,
    Finding,
    beats,
    by_attention,
    decided,
    figures_of,
    pair,
    together,
)

LINEAR = "linear"
RANDOM = ("performer", "rfa")
OTHERS = (LINEAR, *RANDOM, "cosformer", "hedgehog", "polaformer")
S, N, C, SOFTMAX, HEDGEHOG = "flexformer-s", "flexformer-n", "flexformer-c", "softmax", "hedgehog"
HALF = f"{N} with d / 2 frequencies"
# What the paper's words are taken to mean: points below, a share of what softmax has, a share of pairs, points more,
# and times the cost.
SUBSTANTIAL, SEVERE, CLOSE, NEARLY, ALMOST_ALL, SATURATED, MARGINAL = 2.0, 10.0, 1.05, 0.95, 0.8, 1.0, 1.25


def on_average(found: Sequence[Result], judge: Callable[[Panel], Finding]) -> Finding:
    """What a judge says of accuracies over five tasks; Articles is among them where there is no Retrieval."""
    has_retrieval = any(r.labels["task"] == RETRIEVAL for r in found)
    left_out = SUBSTITUTE if has_retrieval else RETRIEVAL
    judged = judge(accuracies(found, [task for task in ORDER if task != left_out]))
    return judged if has_retrieval else explained(judged, f"averages with {TITLES[SUBSTITUTE]}")


def accuracies(found: Sequence[Result], tasks: Sequence[str]) -> Panel:
    """Over some tasks."""
    behind = stuck([r for r in found if r.labels["task"] in tasks])
    return by_attention(found, "test_accuracy", 100, tasks, {name for names in behind.values() for name in names})


def best_on(found: Sequence[Result], tasks: Sequence[str]) -> Finding:
    """Whether ours is ahead of all that the paper has, task by task."""

    def of(task: str) -> Finding:
        return beats(accuracies(found, [task]), N, [name for name in accuracy(task) if name != N])

    return together({TITLES[task]: of(task) for task in tasks})


def language(found: Sequence[Result]) -> Panel:
    """Perplexities, negative, as less is better."""
    return by_attention(found, "test_perplexity", -1)


def very_close(found: Panel) -> Finding:
    """Whether ours are about as good as softmax."""
    whole = together({name: pair(found, name, SOFTMAX, share=CLOSE) for name in (N, S)})
    return explained(whole, f"very close is taken as at most {100 * (CLOSE - 1):.0f} % more")


def glue(found: Sequence[Result], tasks: Sequence[str] = TASKS["cpu"]) -> Panel:
    """Scores over some tasks."""
    return by_attention(found, "test_score", 100, tasks)


def below(found: Panel, names: Sequence[str], points: float, word: str) -> Finding:
    """Whether each of them is far below softmax."""

    def of(name: str) -> Finding:
        judged = pair(found, SOFTMAX, name, margin=points)
        return judged if judged.kind == MISSING else replace(judged, figures=figures_of(found, name, SOFTMAX))

    return explained(together({name: of(name) for name in names}), f"{word} is taken as {points:g} points")


def recovered(found: Panel) -> Finding:
    """Whether distilled kernels reach what softmax reaches when it is fine-tuned as often."""
    whole = together({name: pair(found, name, TWICE, 1, share=NEARLY) for name in (HEDGEHOG, N)})
    return explained(whole, f"nearly is taken as at most {100 * (1 - NEARLY):.0f} % less")


def explained(found: Finding, words: str) -> Finding:
    """With what was made of the paper's words."""
    return replace(found, figures=found.figures and f"{found.figures}; {words}")


def transfer(found: Sequence[Result]) -> Finding:
    """Whether ours carries over better than Hedgehog's for almost all pairs of tasks, by tests of signs."""
    differences = []
    for start, target in pairs_of_tasks():
        own = glue([r for r in found if r.labels["source"] == start], [target])
        difference = own.difference(N, HEDGEHOG) if own.has(N, HEDGEHOG) else None
        if difference is None:
            return Finding(MISSING)
        differences.append(difference)
    better, worse = (sum(sign * each.mean > 0 for each in differences) for sign in (1, -1))
    different, fewest = better + worse, min(each.seeds for each in differences)
    figures = (
        f"{N} better on {better}, worse on {worse} and level on {len(differences) - different} pairs; "
        f"almost all is taken as {100 * ALMOST_ALL:.0f} % of those that differ"
    )
    if better >= ALMOST_ALL * different and at_least(better, different, 0.5) < LEVEL:
        return Finding(HOLDS, figures, fewest)
    if at_least(worse, different, 1 - ALMOST_ALL) < LEVEL:
        return Finding(FAILS, figures, fewest)
    return Finding(UNDECIDED, figures, fewest, "too few pairs differ")


def pairs_of_tasks() -> list[tuple[str, str]]:
    """Sources and targets of table 4."""
    return [(start, target) for start in SOURCES["cpu"] for target in TASKS["cpu"] if start != target]


def at_least(count: int, trials: int, share: float) -> float:
    """How often so many or more of some trials succeed, if each does with this probability."""
    return sum(math.comb(trials, k) * share**k * (1 - share) ** (trials - k) for k in range(count, trials + 1))


def smaller_drop(own: Sequence[Result], carried: Sequence[Result], task: str) -> Finding:
    """Whether ours loses less than Hedgehog on a task when kernels come from another one, mean over sources."""
    at_home, drops = glue(own, [task]), {}
    starts = [start for start, target in pairs_of_tasks() if target == task]
    for name in (N, HEDGEHOG):
        panels = [glue([r for r in carried if r.labels["source"] == start], [task]) for start in starts]
        if name not in at_home or any(name not in panel for panel in panels):
            return Finding(MISSING)
        away = averages([panel.scores[name] for panel in panels])
        drops[name] = {seed: away[seed] - at_home.scores[name][seed] for seed in away if seed in at_home.scores[name]}
    judged = pair(Panel(drops), N, HEDGEHOG, 1)
    means = {name: mean(values.values()) for name, values in drops.items() if values}
    return replace(judged, figures=", ".join(f"{name} {value:+.1f}" for name, value in means.items()))


def distilled(found: Sequence[Result]) -> Panel:
    """By map, the divergence at its best learning rate; maps that have not tried all are left out."""
    best = best_cells(found)
    tried = {label: {r.labels["lr"] for r in found if r.labels["map"] == label} for label in best}
    whole = {label: own for label, own in best.items() if tried[label] >= set(RATES["cpu"])}
    return Panel({label: {r.seed: -divergence(r) for r in own} for label, own in whole.items()})


def recovery_speed(found: Sequence[Result]) -> Finding:
    """Whether ours is stable earlier than Hedgehog."""
    by_map: dict[str, dict[int, float]] = {}  # the step from which on a map's divergence is stable
    for result in found:
        by_map.setdefault(result.labels["map"], {})[result.seed] = -float(stable_from(curve(result)))
    panel = Panel(by_map).only(N, HEDGEHOG)
    judged = pair(panel, N, HEDGEHOG, 0)
    apart = panel.difference(N, HEDGEHOG) if panel.has(N, HEDGEHOG) else None
    if apart is None:
        return judged
    rates = {label: next(r.labels["lr"] for r in found if r.labels["map"] == label) for label in (N, HEDGEHOG)}
    shown = f"steps: {judged.figures}; learning rates {rates[N]:g} and {rates[HEDGEHOG]:g}"
    first, second, *_ = (step for step, _ in curve(next(r for r in found if r.labels["map"] == N)))
    # The true step is between an evaluation and the one before it.
    if abs(apart.mean) <= second - first:
        return Finding(UNDECIDED, shown, apart.seeds, "at most one evaluation apart")
    return replace(judged, figures=shown)


def frequencies(found: Sequence[Result], task: str) -> tuple[Panel, str]:
    """Of ours, what a task gives by n / d and seed, and the means in words; perplexities are negative."""
    scores: dict[float, dict[int, float]] = {}
    for r in trained(found):
        if (r.labels["task"], r.labels["attention"]) == (task, N):
            right = r.metrics.get("test_accuracy")
            value = -r.metrics["test_perplexity"] if right is None else 100 * right
            scores.setdefault(r.labels["n"] / r.labels["head_dim"], {})[r.seed] = value
    figures = ", ".join(f"{abs(mean(scores[each].values())):.2f} at {each:g} d" for each in sorted(scores))
    return Panel({f"{each:g}": values for each, values in scores.items()}), figures


def more_frequencies(found: Sequence[Result]) -> Finding:
    """Whether a language model is the better the more frequencies there are, by the slope against log n."""
    panel, figures = frequencies(found, "lm")
    names = [f"{multiple:g}" for multiple in MULTIPLES]
    common = panel.common(*names) if panel.has(*names) else []
    if not common:
        return Finding(MISSING)
    doublings = np.log2(MULTIPLES) - np.log2(MULTIPLES).mean()
    heights = np.array([mean(panel.scores[name][seed] for seed in common) for name in names])
    slope = float(doublings @ heights / (doublings @ doublings))
    left, freedom = heights - heights.mean() - slope * doublings, len(names) - 2
    error = math.sqrt(float(left @ left) / freedom / float(doublings @ doublings))
    judged = decided(Difference(slope, len(common), error, freedom))
    figures = f"{figures}; {-slope:+.2f} for every doubling"
    best = names[int(heights.argmax())]
    if judged.kind == HOLDS and best != names[-1]:
        return Finding(UNDECIDED, figures, len(common), f"best at {best} d")
    return replace(judged, figures=figures)


def saturated(found: Sequence[Result], tasks: Sequence[str]) -> Finding:
    """Whether more frequencies than a head is wide give next to nothing."""

    def of(task: str) -> Finding:
        panel, figures = frequencies(found, task)
        more = [f"{multiple:g}" for multiple in MULTIPLES if multiple > 1]
        if not panel.has(*(f"{multiple:g}" for multiple in MULTIPLES)):
            return Finding(MISSING)
        judged = together({f"{name} d": pair(panel, "1", name, margin=-SATURATED) for name in more})
        return replace(judged, figures=figures)

    whole = together({TITLES[task]: of(task) for task in tasks})
    return explained(whole, f"saturated is taken as less than {SATURATED:g} point more at 2 d and 4 d than at d")


def half_suffices(models: Sequence[Result], swept: Sequence[Result]) -> Finding:
    """Whether a language model with half the usual frequencies is ahead of other linear attentions."""
    panel, _ = frequencies(swept, "lm")
    if "0.5" not in panel:
        return Finding(MISSING)
    return beats(Panel({**language(models).scores, HALF: panel.scores["0.5"]}), HALF, OTHERS)


def against(bases: Sequence[str], good: Sequence[str], figures: Sequence[str]) -> Finding:
    """The verdict on something that is said of softmax, of which there are several."""
    if not good:
        return Finding(FAILS, "; ".join(figures))
    all_of_them = len(good) == len(bases)
    return Finding(HOLDS if all_of_them else f"{HOLDS} against {' and '.join(good)} only", "; ".join(figures))


def training_steps(found: Sequence[Result]) -> dict[str, tuple[float, float]]:
    """Seconds and peak bytes of a training step of Retrieval, of every attention."""
    measured = [m for r in found if r.labels["part"] == "b" for m in r.details["measurements"]]
    return {m["row"]: (m["seconds"]["median"], m["memory"]["peak_bytes"]) for m in measured}


def retrieval_step(found: Sequence[Result]) -> Finding:
    """Whether a training step with ours is as much faster and smaller as the paper's."""
    steps, parts, good = training_steps(found), [], []
    if any(name not in steps for name in (N, *BASES)):
        return Finding(MISSING)
    for base in BASES:
        faster, share = steps[base][0] / steps[N][0], steps[N][1] / steps[base][1]
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
        faster = {name: steps[base][0] / steps[name][0] for name in names}
        share = {name: steps[name][1] / steps[base][1] for name in names}
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
    times, memory = ({name: steps[N][i] / steps[name][i] for name in OTHERS} for i in (0, 1))
    figures = f"times the seconds: {', '.join(f'{name} {value:.2f}' for name, value in times.items())}"
    figures += f"; times the memory: {min(memory.values()):.2f} to {max(memory.values()):.2f}"
    remark = "; ".join(filter(None, (_beyond("time", times), _beyond("memory", memory))))
    judged = Finding(FAILS if remark else HOLDS, figures, remark=remark)
    return explained(judged, f"marginally is taken as 1 to {MARGINAL:g} times")


def _beyond(what: str, ratios: Mapping[str, float]) -> str:
    """In words, whom ours takes much more than, and whom less."""
    kinds = {
        "much more than": [name for name, ratio in ratios.items() if ratio > MARGINAL],
        "less than": [name for name, ratio in ratios.items() if ratio < 1],
    }
    found = [
        f"{words} {'any of them' if len(names) == len(ratios) else ', '.join(names)}"
        for words, names in kinds.items()
        if names
    ]
    return f"{what} {' and '.join(found)}" if found else ""


def growth(measured: dict[str, Any] | None) -> Finding:
    """Whether time and memory grow as the length does, by `flexformer bench scaling`."""
    slopes = [slope for slope in (measured or {"slopes": []})["slopes"] if slope["row"] in (N, LINEAR)]
    own = [slope for slope in slopes if slope["row"] == N]
    if not own or any(slope[what] is None for slope in slopes for what in ("time", "memory")):
        return Finding(MISSING)
    worst = max(max(slope["time"], slope["memory"]) for slope in own)
    figures = "; ".join(
        f"{s['row']}, {s['pass']}: N^{s['time']:.2f} in time, N^{s['memory']:.2f} in memory" for s in slopes
    )
    return Finding(HOLDS if worst <= 1.05 else FAILS, figures)


def parameters() -> Finding:
    """Whether as many parameters are added as the paper says."""
    ours = [count for count in counts() if count.attention == N]
    figures = ", ".join(f"{c.size} {c.added_percent:.2f} % (paper {c.paper_percent} %)" for c in ours)
    same = all(c.paper_percent is not None and abs(c.added_percent - c.paper_percent) < 0.05 for c in ours)
    return Finding(HOLDS if same else FAILS, figures)
