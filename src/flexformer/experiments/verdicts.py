"""Whether runs bear a statement out.

A verdict needs all runs it speaks of. Attentions are compared seed by seed, see `paired`; where there is one seed, the
verdict says so.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from statistics import mean

from .arena_table import averages
from .paired import Difference
from .results import Result

MISSING = "not all cells were run"
HOLDS, FAILS, UNDECIDED = "holds", "does not hold", "undecided"


@dataclass(frozen=True)
class Finding:
    """What runs say of a claim.

    Args:
        verdict: holds, does not hold, undecided, or why there is none.
        figures: The numbers it rests on.
    """

    verdict: str
    figures: str = ""


@dataclass(frozen=True)
class Scores:
    """By seed, of one attention; higher is better."""

    values: Mapping[int, float]

    def against(self, other: Scores) -> str:
        """Whether these are better."""
        found = Difference.of(self.values, other.values)
        if found is None:
            return f"{UNDECIDED}: no seed in common"
        if found.seeds > 1 and not found.is_clear:
            return f"{UNDECIDED}: {found.seeds} seeds do not tell them apart"
        return f"{HOLDS if found.mean > 0 else FAILS} ({seeds(found.seeds)})"


def seeds(count: int) -> str:
    return "one seed" if count == 1 else f"{count} seeds"


def by_attention(
    found: Sequence[Result], metric: str, factor: float, tasks: Sequence[str | None] = (None,)
) -> dict[str, Scores]:
    """Of each attention that has all tasks, the means over them for every seed that it has them with."""
    result = {}
    for name in sorted({r.labels["attention"] for r in found}):
        own = [r for r in found if r.labels["attention"] == name]
        by_task = [{r.seed: factor * r.metrics[metric] for r in own if r.labels.get("task") == task} for task in tasks]
        if found_for := averages(by_task):
            result[name] = Scores(found_for)
    return result


def compared(found: Mapping[str, Scores], ours: str, theirs: str, also: Sequence[str] = (), digits: int = 2) -> Finding:
    """Verdict and figures over the seeds that both have; others are shown if they have them too."""
    common = set(found[ours].values) & set(found[theirs].values)
    shown = [name for name in (ours, theirs, *also) if name in found and common <= set(found[name].values)]
    means = {name: abs(mean(found[name].values[seed] for seed in common)) for name in shown if common}
    figures = ", ".join(f"{name} {value:.{digits}f}" for name, value in means.items())
    return Finding(found[ours].against(found[theirs]), figures)


def pair(found: Mapping[str, Scores], ours: str, theirs: str, digits: int = 2) -> Finding:
    """One against the other."""
    if ours not in found or theirs not in found:
        return Finding(MISSING)
    return compared(found, ours, theirs, digits=digits)


def beats(found: Mapping[str, Scores], ours: str, others: Sequence[str], also: Sequence[str] = ()) -> Finding:
    """One against that of the others which comes nearest to it or is furthest ahead."""
    if not all(name in found for name in (ours, *others)):
        return Finding(MISSING)
    leads = {name: Difference.of(found[ours].values, found[name].values) for name in others}
    margins = {name: lead.mean for name, lead in leads.items() if lead is not None}
    if len(margins) < len(others):
        return Finding(MISSING)
    return compared(found, ours, min(margins, key=margins.__getitem__), also)


def within(found: Mapping[str, Scores], ours: str, theirs: str, share: float, words: str) -> Finding:
    """Whether one reaches a share of the other's score: 0.95 for at most 5 % less, 1.05 for 5 % more of what is bad."""
    if ours not in found or theirs not in found:
        return Finding(MISSING)
    limit = Scores({seed: share * score for seed, score in found[theirs].values.items()})
    return Finding(found[ours].against(limit), f"{compared(found, ours, theirs).figures}; {words}")


def together(findings: Mapping[str, Finding]) -> Finding:
    """One verdict on a statement that has parts, by name: it holds if all do, and fails if one does."""
    verdicts = [each.verdict for each in findings.values()]
    figures = "; ".join(f"{name}: {each.figures}" for name, each in findings.items() if each.figures)
    if MISSING in verdicts:
        return Finding(MISSING)
    for kind in (FAILS, UNDECIDED):
        for verdict in verdicts:
            if verdict.startswith(kind):
                return Finding(verdict, figures)
    return Finding(verdicts[0], figures)
