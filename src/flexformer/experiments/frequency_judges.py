"""What the sweep over numbers of frequencies says of the paper's claims."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import replace
from statistics import mean

from .arena_table import TITLES, has_learned
from .frequencies import MULTIPLES, title_of, trained
from .judges import OTHERS, POINT, N, accuracies, explained, language
from .paired import Panel, fitted_line
from .results import Result
from .verdicts import HOLDS, MISSING, UNDECIDED, Finding, beats, decided, pair, seeds, together

HALF = f"{N} with d / 2 frequencies"
USUAL = "1"  # times the width of a head, as in the other tables


def frequencies(found: Sequence[Result], task: str) -> Panel:
    """Of ours, what a task gives by n / d and seed; perplexities are negative."""
    scores: dict[float, dict[int, float]] = {}
    for r in _own(found, task):
        right = r.metrics.get("test_accuracy")
        value = -r.metrics["test_perplexity"] if right is None else 100 * right
        scores.setdefault(r.labels["n"] / r.labels["head_dim"], {})[r.seed] = value
    return Panel({f"{each:g}": values for each, values in scores.items()})


def _own(found: Sequence[Result], task: str) -> list[Result]:
    return [r for r in trained(found) if (r.labels["task"], r.labels["attention"]) == (task, N)]


def more_frequencies(found: Sequence[Result]) -> Finding:
    """Whether a language model is the better the more frequencies there are, by the slope against log n."""
    panel = frequencies(found, "lm")
    names = [f"{multiple:g}" for multiple in MULTIPLES]
    common = panel.common(*names) if panel.has(*names) else []
    if not common:
        return Finding(MISSING)
    heights = [mean(panel.scores[name][seed] for seed in common) for name in names]
    slope = fitted_line([math.log2(multiple) for multiple in MULTIPLES], heights, len(common))
    judged = decided(slope)
    figures = ", ".join(f"{-height:.2f} at {name} d" for name, height in zip(names, heights, strict=True))
    figures += f"; {-slope.mean:+.2f} for every doubling"
    best = names[heights.index(max(heights))]
    if judged.kind == HOLDS and best != names[-1]:
        return Finding(UNDECIDED, figures, len(common), f"best at {best} d")
    return replace(judged, figures=figures)


def swept_beside(arena: Sequence[Result], swept: Sequence[Result], task: str) -> tuple[Panel, str]:
    """The sweep of a task beside the runs of table 1, which tell its noise, and how far from n = d others are.

    Runs with n = d are in both. Attentions and numbers of frequencies with a run that did not learn are unsteady.
    """
    own, others = frequencies(swept, task), accuracies(arena, [task])
    usual = {**others.scores.get(N, {}), **own.scores.get(USUAL, {})}
    rivals = {name: values for name, values in others.scores.items() if name != N}
    unsteady = {USUAL if name == N else name for name in others.unsteady}
    unsteady |= {f"{r.labels['n'] / r.labels['head_dim']:g}" for r in _own(swept, task) if not has_learned(r)}
    panel = Panel({**rivals, **own.scores, **({USUAL: usual} if usual else {})}, frozenset(unsteady))
    if not usual:
        return panel, ""
    known = [f"{multiple:g}" for multiple in MULTIPLES if multiple != 1 and f"{multiple:g}" in panel]
    leads = {name: lead for name in known if (lead := panel.difference(name, USUAL))}
    figures = f"{mean(usual.values()):.2f} at d ({seeds(len(usual))})"
    if leads:
        figures += f"; estimated {', '.join(f'{lead.mean:+.2f} at {name} d' for name, lead in leads.items())}"
    return panel, figures


def peaked(arena: Sequence[Result], swept: Sequence[Result], task: str) -> Finding:
    """Whether more frequencies help while there are few, and harm when there are many."""
    panel, figures = swept_beside(arena, swept, task)
    few, many = f"{MULTIPLES[0]:g}", f"{MULTIPLES[-1]:g}"
    judged = together({f"d against {other} d": pair(panel, USUAL, other) for other in (few, many)})
    return replace(judged, figures=figures)


def saturated(arena: Sequence[Result], swept: Sequence[Result], tasks: Sequence[str]) -> Finding:
    """Whether more frequencies than a head is wide give next to nothing."""

    def of(task: str) -> Finding:
        panel, figures = swept_beside(arena, swept, task)
        more = [f"{multiple:g}" for multiple in MULTIPLES if multiple > 1]
        if not panel.has(*(f"{multiple:g}" for multiple in MULTIPLES)):
            return Finding(MISSING)
        judged = together({f"{name} d": pair(panel, USUAL, name, margin=-POINT) for name in more})
        return replace(judged, figures=figures)

    whole = together({TITLES[task]: of(task) for task in tasks})
    return explained(whole, f"saturated is taken as less than {POINT:g} point more at 2 d and 4 d than at d")


def few_suffice(arena: Sequence[Result], swept: Sequence[Result], task: str) -> Finding:
    """Whether a quarter of the usual frequencies is about as good."""
    panel, figures = swept_beside(arena, swept, task)
    judged = pair(panel, f"{MULTIPLES[0]:g}", USUAL, margin=-POINT)
    return explained(replace(judged, figures=figures), f"competitive is taken as less than {POINT:g} point below d")


def half_suffices(
    models: Sequence[Result], arena: Sequence[Result], swept: Sequence[Result], tasks: Sequence[str]
) -> Finding:
    """Whether half the usual frequencies are ahead of other linear attentions, as language models and on tasks."""
    beside = {TITLES[task]: swept_beside(arena, swept, task)[0] for task in tasks}
    words = frequencies(swept, "lm")
    panels = {title_of("lm"): Panel({**language(models).scores, **words.only("0.5").scores}), **beside}

    def of(panel: Panel) -> Finding:
        called = {name: name for name in panel.scores} | {"0.5": HALF}
        scores = {called[name]: values for name, values in panel.scores.items()}
        return beats(Panel(scores, frozenset(called[name] for name in panel.unsteady)), HALF, OTHERS)

    return together({title: of(panel) for title, panel in panels.items()})
