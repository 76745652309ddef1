"""Whether runs bear a statement out.

A verdict needs all runs it speaks of. Attentions are compared seed by seed, see `paired`, and nothing is decided where
their difference could be noise, or where no seed was repeated, so that nobody knows what noise there is.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, replace
from statistics import mean

from .arena_table import averages
from .paired import Difference, Panel
from .results import Result

HOLDS, FAILS, UNDECIDED = "holds", "does not hold", "undecided"
MISSING, UNTESTABLE = "not all cells were run", "not testable here"


@dataclass(frozen=True)
class Finding:
    """What runs say of a claim.

    Args:
        kind: holds, does not hold, undecided, or why there is none of these.
        figures: The numbers it rests on.
        seeds: How many seeds it rests on; 0 where that is not the question.
        remark: What has to be known about the verdict.
    """

    kind: str
    figures: str = ""
    seeds: int = 0
    remark: str = ""

    @property
    def verdict(self) -> str:
        """In a few words."""
        counted = f" ({seeds(self.seeds)})" if self.seeds and self.kind in (HOLDS, FAILS) else ""
        return f"{self.kind}{counted}{self.remark and f': {self.remark}'}"


def seeds(count: int) -> str:
    return "one seed" if count == 1 else f"{count} seeds"


def decided(found: Difference | None) -> Finding:
    """Whether it is above zero."""
    if found is None:
        return Finding(UNDECIDED, remark="no seeds connect them")
    if found.error is None:
        remark = seeds(1) if found.seeds == 1 else "nothing tells what runs vary by"
        return Finding(UNDECIDED, seeds=found.seeds, remark=remark)
    if found.is_clear:
        return Finding(HOLDS if found.mean > 0 else FAILS, seeds=found.seeds)
    return Finding(UNDECIDED, seeds=found.seeds, remark=f"{seeds(found.seeds)} cannot tell")


def by_attention(
    found: Sequence[Result],
    metric: str,
    factor: float,
    tasks: Sequence[str | None] = (None,),
    unsteady: Collection[str] = (),
) -> Panel:
    """Of each attention that has all tasks, the means over them for every seed that it has them with."""
    result = {}
    for name in sorted({r.labels["attention"] for r in found}):
        own = [r for r in found if r.labels["attention"] == name]
        by_task = [{r.seed: factor * r.metrics[metric] for r in own if r.labels.get("task") == task} for task in tasks]
        if found_for := averages(by_task):
            result[name] = found_for
    return Panel(result, frozenset(unsteady))


def figures_of(found: Panel, ours: str, theirs: str, also: Sequence[str] = (), digits: int = 2) -> str:
    """Means as tables have them, and how far the fit of all runs has the two apart where they differ in seeds."""
    means = {name: mean(found.scores[name].values()) for name in (ours, theirs, *also) if name in found}
    shown = {name: f"{name} {abs(value):.{digits}f}" for name, value in means.items()}
    apart = None if set(found.scores[ours]) == set(found.scores[theirs]) else found.difference(ours, theirs)
    if apart is not None:
        sign = -1 if means[ours] < 0 else 1  # of what is bad, scores are negative
        shown[theirs] += f" (estimated {sign * apart.mean:+.{digits}f})"
    return ", ".join(shown.values())


def pair(found: Panel, ours: str, theirs: str, digits: int = 2, share: float = 1.0, margin: float = 0.0) -> Finding:
    """Whether one is above a share of the other, by a margin: a share of 0.95 is at most 5 % less.

    Of what is bad, such as a perplexity, scores are negative, and a share of 1.05 is at most 5 % more.
    """
    if not found.has(ours, theirs):
        return Finding(MISSING)
    judged = decided(found.difference(ours, theirs, share, margin))
    return Finding(judged.kind, figures_of(found, ours, theirs, digits=digits), judged.seeds, judged.remark)


def beats(found: Panel, ours: str, others: Sequence[str], also: Sequence[str] = (), margin: float = 0.0) -> Finding:
    """Whether one is above each of the others, by a margin.

    It holds if one is clearly above all, each at 5 %. It fails if another is clearly above it; that one was picked
    among all, and has to be as much clearer.
    """
    if not found.has(ours, *others):
        return Finding(MISSING)
    leads = {name: found.difference(ours, name, margin=margin) for name in others}
    words = "not told from" if margin == 0 else f"not told to be within {-margin:g} point of"
    judged, nearest = ahead_of_all(leads, words)
    return judged if nearest is None else replace(judged, figures=figures_of(found, ours, nearest, also))


def ahead_of_all(leads: Mapping[str, Difference | None], words: str = "not told from") -> tuple[Finding, str | None]:
    """Whether all leads over others are above zero, as `beats` has it, and whose is the least or decides."""
    known = {name: lead for name, lead in leads.items() if lead is not None}
    if len(known) < len(leads):
        return Finding(MISSING), None
    nearest = min(known, key=lambda name: known[name].mean)
    ahead = [name for name in known if known[name].mean < 0 and known[name].is_clear_among(len(known))]
    if ahead:
        first = min(ahead, key=lambda name: known[name].mean)
        return Finding(FAILS, seeds=known[first].seeds), first
    fewest = min(lead.seeds for lead in known.values())
    level = [name for name, lead in known.items() if not (lead.mean > 0 and lead.is_clear)]
    if not level:
        return Finding(HOLDS, seeds=fewest), nearest
    once = [name for name in level if known[name].error is None]
    if once == level:
        return Finding(UNDECIDED, seeds=fewest, remark="one seed"), nearest
    told = f"{words} {', '.join(name for name in level if name not in once)}"
    remark = f"{told}, one seed in common with {', '.join(once)}" if once else told
    return Finding(UNDECIDED, seeds=fewest, remark=remark), nearest


def together(findings: Mapping[str, Finding]) -> Finding:
    """One verdict on a statement that has parts, by name: it holds if all do, and fails if one does."""
    parts = list(findings.values())
    if any(part.kind == MISSING for part in parts):
        return Finding(MISSING)
    named = {name: each.figures for name, each in findings.items() if each.figures}
    figures = "; ".join(text if text.startswith(name) else f"{name}: {text}" for name, text in named.items())
    for kind in (FAILS, UNDECIDED):
        of_kind = {name: part for name, part in findings.items() if part.kind == kind}
        if of_kind:
            remarks = dict.fromkeys(part.remark for part in of_kind.values())
            alike = {remark: [name for name, part in of_kind.items() if part.remark == remark] for remark in remarks}
            said = [", ".join(filter(None, (" and ".join(names), remark))) for remark, names in alike.items()]
            for other in (UNDECIDED, HOLDS):
                rest = [name for name, part in findings.items() if part.kind == other != kind]
                said += [f"{other} for {' and '.join(rest)}"] if rest else []
            return Finding(kind, figures, min(part.seeds for part in of_kind.values()), "; ".join(said))
    return Finding(HOLDS, figures, min(part.seeds for part in parts))
