"""Write the paper's claims, each beside what runs in results/ say of it, into docs/results.md.

    python scripts/claims.py

A verdict needs all cells it speaks of; where some are missing the line says so. Runs of the same seed see the same data
in the same order, so two attentions are compared seed by seed: they are told apart only if the mean of the differences
is further from zero than Student's distribution allows in 95 of 100 cases. With one seed the line says "one seed".
"""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from statistics import mean
from typing import Any

from flexformer.bench.figures import Figures, divide
from flexformer.bench.model import BASES
from flexformer.bench.page import MODEL, SCALING
from flexformer.experiments.arena_table import ORDER, RETRIEVAL, SUBSTITUTE, ArenaTable, averages
from flexformer.experiments.curves import DistillationCurves, curve, stable_from
from flexformer.experiments.glue_cells import TASKS
from flexformer.experiments.glue_tables import SOURCES, RecoveryTable, TransferTable
from flexformer.experiments.kernels import RATES, KernelStudy, best_cells, divergence
from flexformer.experiments.language_table import LanguageTable
from flexformer.experiments.paired import Difference
from flexformer.experiments.parameters import counts
from flexformer.experiments.results import Result
from flexformer.files import write_text

ROOT = Path(__file__).resolve().parent.parent
RESULTS, PAGE = ROOT / "results", ROOT / "docs" / "results.md"
BLOCK = re.compile(r"(<!-- claims begin -->\n).*?(<!-- claims end -->)", re.DOTALL)
OTHERS = ("linear", "performer", "rfa", "cosformer", "hedgehog", "polaformer")
S, N, SOFTMAX, HEDGEHOG = "flexformer-s", "flexformer-n", "softmax", "hedgehog"
MISSING = "not all cells were run"
NEAR, ALMOST_ALL = 1.05, 0.8  # what the paper's words are taken to mean


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
class Claim:
    """One statement of the paper.

    Args:
        text: What it says.
        command: What runs the cells.
        judge: Looks at the cells.
    """

    text: str
    command: str
    judge: Callable[[], Finding]


@dataclass(frozen=True)
class Scores:
    """By seed, of one attention; higher is better."""

    values: Mapping[int, float]

    def against(self, other: Scores) -> str:
        """Whether these are better."""
        found = Difference.of(self.values, other.values)
        if found is None:
            return "undecided: no seed in common"
        verdict = "holds" if found.mean > 0 else "does not hold"
        if found.seeds > 1 and not found.is_clear:
            return f"undecided: {found.seeds} seeds do not tell them apart"
        return f"{verdict} ({seeds(found.seeds)})"


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


def arena() -> dict[str, Scores]:
    """Accuracies over five tasks; Articles among them where there is no Retrieval."""
    found, _ = ArenaTable("cpu").results(RESULTS)
    present = {r.labels["task"] for r in found}
    return by_attention(
        found, "test_accuracy", 100, [t for t in ORDER if t != (SUBSTITUTE if RETRIEVAL in present else RETRIEVAL)]
    )


def language() -> dict[str, Scores]:
    return by_attention(LanguageTable("cpu").results(RESULTS)[0], "test_perplexity", -1)


def recovered() -> dict[str, Scores]:
    return by_attention(RecoveryTable("cpu").results(RESULTS)[0], "test_score", 100, TASKS["cpu"])


def distilled() -> dict[str, Scores]:
    """By map, the divergence at its best learning rate; maps that have not tried all are left out."""
    found, _ = KernelStudy("cpu").results(RESULTS)
    best = best_cells(found)
    tried = {label: {r.labels["lr"] for r in found if r.labels["map"] == label} for label in best}
    whole = {label: own for label, own in best.items() if tried[label] >= set(RATES["cpu"])}
    return {label: Scores({r.seed: -divergence(r) for r in own}) for label, own in whole.items()}


def stable(found: Sequence[Result]) -> dict[str, Scores]:
    """By map, the step from which on its divergence is stable."""
    by_map: dict[str, dict[int, float]] = {}
    for result in found:
        by_map.setdefault(result.labels["map"], {})[result.seed] = -float(stable_from(curve(result)))
    return {label: Scores(steps) for label, steps in by_map.items()}


def compared(found: Mapping[str, Scores], ours: str, theirs: str, also: Sequence[str] = (), digits: int = 2) -> Finding:
    """Verdict and figures over the seeds that both have; others are shown if they have them too."""
    common = set(found[ours].values) & set(found[theirs].values)
    shown = [name for name in (ours, theirs, *also) if name in found and common <= set(found[name].values)]
    means = {name: abs(mean(found[name].values[seed] for seed in common)) for name in shown if common}
    figures = ", ".join(f"{name} {value:.{digits}f}" for name, value in means.items())
    return Finding(found[ours].against(found[theirs]), figures)


def beats_others(found: Mapping[str, Scores]) -> Finding:
    """Ours against the other linear attention that comes nearest to it or is furthest ahead."""
    if not all(name in found for name in (N, *OTHERS)):
        return Finding(MISSING)
    leads = {name: Difference.of(found[N].values, found[name].values) for name in OTHERS}
    margins = {name: lead.mean for name, lead in leads.items() if lead is not None}
    if len(margins) < len(OTHERS):
        return Finding(MISSING)
    return compared(found, N, min(margins, key=margins.__getitem__), (S, SOFTMAX))


def pair(found: Mapping[str, Scores], ours: str, theirs: str, digits: int = 2) -> Finding:
    if ours not in found or theirs not in found:
        return Finding(MISSING)
    return compared(found, ours, theirs, digits=digits)


def near_softmax(found: Mapping[str, Scores]) -> Finding:
    if N not in found or SOFTMAX not in found:
        return Finding(MISSING)
    limit = Scores({seed: NEAR * score for seed, score in found[SOFTMAX].values.items()})
    return Finding(
        found[N].against(limit),
        f"{compared(found, N, SOFTMAX).figures}; very close is taken as at most {NEAR - 1:.0%} more",
    )


def transfer(found: Sequence[Result]) -> Finding:
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
        return Finding("undecided: level everywhere", figures)
    verdict = "holds" if better >= ALMOST_ALL * (better + worse) else "does not hold"
    few = seeds(min(each.seeds for each in differences))
    return Finding(f"{verdict} ({few})", f"{figures}; almost all is taken as {ALMOST_ALL:.0%} of those that differ")


def recovery_speed(found: Sequence[Result]) -> Finding:
    by_map = stable(found)
    judged = pair(by_map, N, HEDGEHOG, 0)
    figures = judged.figures and f"steps: {judged.figures}"
    if judged.verdict == MISSING:
        return judged
    first, second, *_ = (step for step, _ in curve(next(r for r in found if r.labels["map"] == N)))
    # The true step is between an evaluation and the one before it.
    apart = Difference.of(by_map[N].values, by_map[HEDGEHOG].values)
    if apart is not None and abs(apart.mean) <= second - first:
        return Finding("undecided: at most one evaluation apart", figures)
    return Finding(judged.verdict, figures)


def bench(name: str) -> dict[str, Any] | None:
    path = RESULTS / "bench" / f"{name}.json"
    return json.loads(path.read_text(encoding="utf-8")) if path.exists() else None


def retrieval_step() -> Finding:
    measured = bench(MODEL)
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
    return Finding(f"holds against {' and '.join(good)} only" if good else "does not hold", "; ".join(parts))


def growth() -> Finding:
    slopes = [slope for slope in (bench(SCALING) or {"slopes": []})["slopes"] if slope["row"] == N]
    if not slopes or any(slope[what] is None for slope in slopes for what in ("time", "memory")):
        return Finding(MISSING)
    worst = max(max(slope["time"], slope["memory"]) for slope in slopes)
    figures = ", ".join(f"{s['pass']} N^{s['time']:.2f} in time, N^{s['memory']:.2f} in memory" for s in slopes)
    return Finding("holds" if worst <= 1.05 else "does not hold", figures)


def parameters() -> Finding:
    ours = [count for count in counts() if count.attention == N]
    figures = ", ".join(f"{c.size} {c.added_percent:.2f} % (paper {c.paper_percent} %)" for c in ours)
    same = all(c.paper_percent is not None and abs(c.added_percent - c.paper_percent) < 0.05 for c in ours)
    return Finding("holds" if same else "does not hold", figures)


CLAIMS = (
    Claim(
        "Long Range Arena: better on average than every other linear attention",
        "reproduce table1",
        lambda: beats_others(arena()),
    ),
    Claim(
        "Long Range Arena: the nonstationary kernel is better than the stationary one",
        "reproduce table1",
        lambda: pair(arena(), N, S),
    ),
    Claim(
        "Language models: lower perplexity than every other linear attention",
        "reproduce table2",
        lambda: beats_others(language()),
    ),
    Claim("Language models: very close to softmax", "reproduce table2", lambda: near_softmax(language())),
    Claim(
        "GLUE: a distilled Flexformer recovers more than a distilled Hedgehog",
        "reproduce table3",
        lambda: pair(recovered(), N, HEDGEHOG, 1),
    ),
    Claim("GLUE: kernels carry over to other tasks better than Hedgehog's in almost all cases", "reproduce table4",
          lambda: transfer(TransferTable("cpu").results(RESULTS)[0])),
    Claim("Distillation: lower loss than Hedgehog", "reproduce kernels",
          lambda: pair(distilled(), N, HEDGEHOG, 3)),
    Claim("Distillation: stable in fewer steps than Hedgehog", "reproduce distill-curves",
          lambda: recovery_speed(DistillationCurves("cpu").results(RESULTS)[0])),
    Claim("A training step on Retrieval is 2.6 times faster with 84 % less memory than softmax's", "bench model",
          retrieval_step),
    Claim("Time and memory grow linearly with the length", "bench scaling", growth),
    Claim("About one per cent of parameters is added", "reproduce params", parameters),
)  # fmt: skip


def lines() -> str:
    rows = ["| the paper says | here | figures | by |", "|---|---|---|---|"]
    for claim in CLAIMS:
        found = claim.judge()
        rows.append(f"| {claim.text} | {found.verdict} | {found.figures} | `flexformer {claim.command}` |")
    return "\n".join(rows)


def with_claims(page: str) -> str:
    """The page with its block written anew."""
    if len(BLOCK.findall(page)) != 1:
        raise ValueError(f"{PAGE} needs one block <!-- claims begin --> ... <!-- claims end -->")
    return BLOCK.sub(lambda match: f"{match[1]}\n{lines()}\n\n{match[2]}", page)


def main() -> None:
    write_text(PAGE, with_claims(PAGE.read_text(encoding="utf-8")))
    print(f"wrote {PAGE.relative_to(ROOT)}")


if __name__ == "__main__":
    main()
