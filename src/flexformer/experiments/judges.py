"""What runs at cpu scale say of the paper's claims, one by one."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import replace
from statistics import mean

from flexformer.attention import ATTENTIONS
from flexformer.tasks.glue import TASKS as GLUE_TASKS
from flexformer.tasks.paper import accuracy

from .arena_table import ORDER, RETRIEVAL, SUBSTITUTE, TITLES, averages, stuck
from .curves import curve, stable_from
from .glue_cells import TASKS, TWICE
from .glue_tables import SOURCES
from .kernels import RATES, best_cells, divergence
from .paired import LEVEL, Difference, Panel
from .results import Result
from .verdicts import (
    FAILS,
    HOLDS,
    MISSING,
    UNDECIDED,
    Finding,
    ahead_of_all,
    beats,
    by_attention,
    figures_of,
    pair,
    together,
)

LINEAR = "linear"
RANDOM = ("performer", "rfa")
S, N, C, SOFTMAX = "flexformer-s", "flexformer-n", "flexformer-c", "softmax"
HEDGEHOG, POLAFORMER = "hedgehog", "polaformer"
EARLIER = (LINEAR, *RANDOM, "cosformer")
LEARNED = (HEDGEHOG, POLAFORMER)
OTHERS = (*EARLIER, *LEARNED)
# What the paper's words are taken to mean: points below, a share of what softmax has, a share of pairs, points more,
# and a share of the output.
SUBSTANTIAL, SEVERE, CLOSE, NEARLY, ALMOST_ALL, POINT, CLOSELY = 2.0, 10.0, 1.05, 0.95, 0.8, 1.0, 0.1


def on_average(found: Sequence[Result], judge: Callable[[Panel], Finding]) -> Finding:
    """What a judge says of accuracies over the paper's tasks; nothing stands in for Retrieval where it is missing."""
    tasks = papers_tasks(found)
    judged = judge(accuracies(found, tasks))
    return judged if RETRIEVAL in tasks else explained(judged, f"averages without {TITLES[RETRIEVAL]}")


def papers_tasks(found: Sequence[Result]) -> list[str]:
    """Those of the paper; without Retrieval where it was not run."""
    has_retrieval = any(r.labels["task"] == RETRIEVAL for r in found)
    return [task for task in ORDER if task != SUBSTITUTE and (has_retrieval or task != RETRIEVAL)]


def accuracies(found: Sequence[Result], tasks: Sequence[str]) -> Panel:
    """Over some tasks."""
    behind = stuck([r for r in found if r.labels["task"] in tasks])
    return by_attention(found, "test_accuracy", 100, tasks, {name for names in behind.values() for name in names})


def second(found: Panel) -> Finding:
    """Whether the stationary kernel is ahead of all attentions but the other of the paper's."""
    complete = [name for name in ATTENTIONS if name in found and name not in (N, S, C)]
    left_out = [name for name in ATTENTIONS if name not in found]
    judged = beats(found, S, complete, (N,))
    return explained(judged, f"not run on all tasks: {', '.join(left_out)}") if left_out else judged


def best_on(found: Sequence[Result], tasks: Sequence[str]) -> Finding:
    """Whether ours is ahead of all that the paper has, task by task."""

    def of(task: str) -> Finding:
        return beats(accuracies(found, [task]), N, [name for name in accuracy(task) if name != N])

    return together({TITLES[task]: of(task) for task in tasks})


def competitive(found: Sequence[Result], tasks: Sequence[str]) -> Finding:
    """Whether ours is nearly as good as the best of softmax and the linear attentions that learned a task."""

    def of(task: str) -> Finding:
        panel = accuracies(found, [task])
        return beats(panel, N, [name for name in (SOFTMAX, *OTHERS) if name not in panel.unsteady], margin=-POINT)

    whole = together({TITLES[task]: of(task) for task in tasks})
    return explained(whole, f"competitive is taken as less than {POINT:g} point below any")


def uneven(found: Sequence[Result], names: Sequence[str]) -> Finding:
    """Whether each of them is behind softmax on some task: by a point, or with a run that did not learn it.

    As the task is picked among all, a lead has to be as much clearer.
    """
    panels = {TITLES[task]: accuracies(found, [task]) for task in papers_tasks(found)}
    if not all(panel.has(SOFTMAX, *names) for panel in panels.values()):
        return Finding(MISSING)

    def of(name: str) -> Finding:
        leads = {title: panel.difference(SOFTMAX, name, margin=POINT) for title, panel in panels.items()}
        if not all(leads.values()):
            return Finding(MISSING)
        known = {title: lead for title, lead in leads.items() if lead}
        clear = {title for title, lead in known.items() if lead.mean > 0 and lead.is_clear_among(len(known))}
        stuck_on = {title for title, panel in panels.items() if name in panel.unsteady}
        behind = [title for title in known if title in clear | stuck_on]
        never = all(lead.mean < 0 and lead.is_clear for lead in known.values())
        kind = HOLDS if behind else FAILS if never else UNDECIDED
        fewest = min(lead.seeds for lead in known.values())
        return Finding(kind, f"{name} behind on {', '.join(behind) or 'no task for certain'}", fewest)

    meaning = f"behind is taken as {POINT:g} point below softmax, or a run that did not learn the task"
    return explained(together({name: of(name) for name in names}), meaning)


def language(found: Sequence[Result]) -> Panel:
    """Perplexities, negative, as less is better."""
    return by_attention(found, "test_perplexity", -1)


def very_close(found: Panel) -> Finding:
    """Whether ours are about as good as softmax."""
    whole = together({name: pair(found, name, SOFTMAX, share=CLOSE) for name in (N, S)})
    if whole.kind == MISSING:
        return whole
    means = {name: mean(found.scores[name].values()) for name in (N, S, SOFTMAX)}
    more = " and ".join(f"{100 * (means[name] / means[SOFTMAX] - 1):.1f} %" for name in (N, S))
    return explained(whole, f"{more} more; very close is taken as at most {100 * (CLOSE - 1):.0f} %")


def better_with_as_many(found: Sequence[Result]) -> Finding:
    """Whether the stationary kernel is ahead of other learned ones, with their sizes beside it."""
    judged = beats(language(found), S, LEARNED)
    sizes = {r.labels["attention"]: r.parameters for r in found}
    counted = ", ".join(f"{name} {sizes[name]:,}" for name in (S, *LEARNED) if name in sizes)
    return explained(judged, f"parameters: {counted}")


def gain_by_parameter(found: Sequence[Result]) -> Finding:
    """Whether what is added to a model lowers its perplexity more, parameter for parameter, than with others."""
    perplexity, names = language(found), (LINEAR, *LEARNED, S, N)
    if not perplexity.has(*names):
        return Finding(MISSING)
    sizes = {r.labels["attention"]: r.parameters for r in found}
    by_one = {name: 1000 / (sizes[name] - sizes[LINEAR]) for name in names if name != LINEAR}

    def gains_over(ours: str, theirs: str | None = None) -> Difference | None:
        """By each parameter beyond those of linear, as a sum of scores."""
        rival = by_one[theirs] if theirs else 0.0
        weights = {ours: by_one[ours], LINEAR: rival - by_one[ours]} | ({theirs: -rival} if theirs else {})
        return perplexity.contrast(weights)

    parts = {ours: ahead_of_all({name: gains_over(ours, name) for name in LEARNED})[0] for ours in (N, S)}
    own = {name: gain for name in by_one if (gain := gains_over(name))}
    figures = ", ".join(f"{name} {gain.mean:+.2f}" for name, gain in own.items())
    figures += "; perplexity below linear's for 1,000 parameters more than linear has"
    return replace(together(parts), figures=figures)


def glue(found: Sequence[Result], tasks: Sequence[str] = TASKS["cpu"]) -> Panel:
    """Scores over some tasks; attentions with a run that gave one answer to all are not as steady as others."""
    silent = {r.labels["attention"] for r in found if r.labels["task"] in tasks and r.metrics["test_score"] == 0}
    return by_attention(found, "test_score", 100, tasks, silent)


def below(found: Panel, names: Sequence[str], points: float, word: str) -> Finding:
    """Whether each of them is far below softmax."""

    def of(name: str) -> Finding:
        judged = pair(found, SOFTMAX, name, margin=points)
        return judged if judged.kind == MISSING else replace(judged, figures=figures_of(found, name, SOFTMAX))

    return explained(together({name: of(name) for name in names}), f"{word} is taken as {points:g} points")


def recovered(found: Sequence[Result]) -> Finding:
    """Whether distilled kernels reach what softmax reaches when it is fine-tuned as often."""
    whole = together({name: pair(glue(found), name, TWICE, 1, share=NEARLY) for name in (HEDGEHOG, N)})
    if whole.kind == MISSING:
        return whole
    by_task = {task: glue(found, [task]).scores for task in TASKS["cpu"]}
    once = glue(found).scores.get(SOFTMAX, {})
    paper_s = f"; fine-tuned once, as the paper's softmax is, {mean(once.values()):.1f}" if once else ""
    changes = ", ".join(
        f"{GLUE_TASKS[task].title} {round(100 * (mean(own[N].values()) / mean(own[TWICE].values()) - 1)):+d} %"
        for task, own in by_task.items()
    )
    by_word = f"nearly is taken as at most {100 * (1 - NEARLY):.0f} % less than {TWICE}{paper_s}"
    return explained(whole, f"{N} by task: {changes}; {by_word}")


def explained(found: Finding, words: str) -> Finding:
    """With what was made of the paper's words."""
    return replace(found, figures=found.figures and f"{found.figures}; {words}")


def transfer(found: Sequence[Result]) -> Finding:
    """Whether ours carries over better than Hedgehog's for almost all pairs of tasks, by tests of signs.

    Pairs less than a point apart are level: one example of a small test set must not decide.
    """
    differences, gains = [], {}
    for start, target in pairs_of_tasks():
        own = glue([r for r in found if r.labels["source"] == start], [target])
        difference = Difference.of(own.scores[N], own.scores[HEDGEHOG]) if own.has(N, HEDGEHOG) else None
        if difference is None:
            return Finding(MISSING)
        differences.append(difference)
        theirs = mean(own.scores[HEDGEHOG][seed] for seed in own.common(N, HEDGEHOG))
        gains[f"{GLUE_TASKS[start].title} to {GLUE_TASKS[target].title}"] = difference.mean / theirs if theirs else 0.0
    better, worse = (sum(sign * each.mean >= POINT for each in differences) for sign in (1, -1))
    different, fewest = better + worse, min(each.seeds for each in differences)
    by_gain = sorted(gains, key=gains.__getitem__)
    ends = [f"{100 * gains[name]:+.0f} % ({name})" for name in (by_gain[0], by_gain[-1])]
    figures = (
        f"{N} better on {better}, worse on {worse} and level on {len(differences) - different} pairs, from "
        f"{' to '.join(ends)}, the paper's up to +13 %; almost all is taken as {100 * ALMOST_ALL:.0f} % of those that "
        f"differ by {POINT:g} point or more"
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
    if not all(drops.values()):
        return Finding(UNDECIDED, remark="no seeds connect them")
    judged = pair(Panel(drops), N, HEDGEHOG, 1)
    means = {name: mean(values.values()) for name, values in drops.items()}
    return replace(judged, figures=", ".join(f"{name} {value:+.1f}" for name, value in means.items()))


def distilled(found: Sequence[Result]) -> Panel:
    """By map, the divergence at its best learning rate; maps that have not tried all are left out."""
    best = best_cells(found)
    tried = {label: {r.labels["lr"] for r in found if r.labels["map"] == label} for label in best}
    whole = {label: own for label, own in best.items() if tried[label] >= set(RATES["cpu"])}
    return Panel({label: {r.seed: -divergence(r) for r in own} for label, own in whole.items()})


def closely(found: Sequence[Result]) -> Finding:
    """Whether distilled attention gives nearly the output of softmax."""
    own = best_cells(found).get(N)
    if not own:
        return Finding(MISSING)
    errors, negative = ([r.metrics[f"after_{what}"] for r in own] for what in ("output_error", "negative_weights"))
    kind = FAILS if min(errors) > CLOSELY else HOLDS if max(errors) <= CLOSELY else UNDECIDED
    figures = f"{N}: output error {100 * mean(errors):.0f} %, {100 * mean(negative):.0f} % of weights are negative"
    return explained(Finding(kind, figures, len(own)), f"closely is taken as an error of at most {100 * CLOSELY:.0f} %")


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
