"""Write the paper's claims, each beside what runs in results/ say of it, into docs/results.md.

    python scripts/claims.py

A verdict needs all cells it speaks of; where some are missing the line says so. Two means are told apart only if they
differ by more than two standard errors over seeds; with one seed the line says "one seed".
"""

from __future__ import annotations

import json
import math
import re
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from statistics import mean, variance
from typing import Any

from flexformer.bench.model import BASES
from flexformer.bench.page import MODEL, SCALING, Figures, divide
from flexformer.experiments.curves import PLAIN_MAPS, curve, stable_from
from flexformer.experiments.kernels import best_cells, divergence
from flexformer.experiments.parameters import counts
from flexformer.experiments.results import Result, read_all
from flexformer.training.atomic import write_text

ROOT = Path(__file__).resolve().parent.parent
RESULTS, PAGE = ROOT / "results", ROOT / "docs" / "results.md"
BLOCK = re.compile(r"(<!-- claims begin -->\n).*?(<!-- claims end -->)", re.DOTALL)
OTHERS = ("linear", "performer", "rfa", "cosformer", "hedgehog", "polaformer")
S, N, SOFTMAX, HEDGEHOG = "flexformer-s", "flexformer-n", "softmax", "hedgehog"
MISSING = "not all cells were run"


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

    values: Sequence[float]

    @property
    def mean(self) -> float:
        return mean(self.values)

    @property
    def error(self) -> float | None:
        """Squared, of the mean; None for one seed."""
        return variance(self.values) / len(self.values) if len(self.values) > 1 else None

    def against(self, other: Scores) -> str:
        """Whether these are better."""
        difference = self.mean - other.mean
        if self.error is None or other.error is None:
            return f"{'holds' if difference > 0 else 'does not hold'} (one seed)"
        if abs(difference) <= 2 * math.sqrt(self.error + other.error):
            return "undecided: within two standard errors"
        return "holds" if difference > 0 else "does not hold"


def cells(table: str) -> list[Result]:
    return read_all(RESULTS, table, "cpu")


def scores(found: Sequence[Result], metric: str, factor: float, **labels: str) -> Scores | None:
    """Of all cells with these labels, seeds in order; None where there is none."""
    own = [r for r in found if all(r.labels.get(key) == value for key, value in labels.items())]
    return Scores([factor * r.metrics[metric] for r in sorted(own, key=lambda r: r.seed)]) if own else None


def by_attention(table: str, metric: str, factor: float) -> dict[str, Scores]:
    """Means over the tasks that all of softmax, ours and the others have; seeds that all those cells share."""
    found = cells(table)
    names = {r.labels["attention"] for r in found}
    tasks = sorted({r.labels.get("task", "") for r in found})
    result = {}
    for name in names:
        by_task = []
        for task in tasks:
            own = [r for r in found if r.labels["attention"] == name and r.labels.get("task", "") == task]
            by_task.append({r.seed: factor * r.metrics[metric] for r in own})
        seeds = sorted(set.intersection(*(set(values) for values in by_task)))
        if seeds:
            result[name] = Scores([mean(values[seed] for values in by_task) for seed in seeds])
    return result


def shown(name: str, score: Scores, digits: int = 2) -> str:
    return f"{name} {abs(score.mean):.{digits}f}"


def beats_others(table: str, metric: str, factor: float) -> Finding:
    """Ours against the best of the other linear attentions."""
    found = by_attention(table, metric, factor)
    if not all(name in found for name in (N, *OTHERS)):
        return Finding(MISSING)
    best = max(OTHERS, key=lambda name: found[name].mean)
    listed = [N, *([S] if S in found else []), best, *([SOFTMAX] if SOFTMAX in found else [])]
    return Finding(found[N].against(found[best]), ", ".join(shown(name, found[name]) for name in listed))


def pair(table: str, metric: str, factor: float, ours: str, theirs: str, digits: int = 2) -> Finding:
    found = by_attention(table, metric, factor)
    if ours not in found or theirs not in found:
        return Finding(MISSING)
    listed = ", ".join(shown(name, found[name], digits) for name in (ours, theirs))
    return Finding(found[ours].against(found[theirs]), listed)


def near_softmax() -> Finding:
    found = by_attention("table2", "test_perplexity", -1)
    if N not in found or SOFTMAX not in found:
        return Finding(MISSING)
    ratio = found[N].mean / found[SOFTMAX].mean
    verdict = "holds" if ratio <= 1.05 else "does not hold"
    return Finding(verdict, f"{100 * (ratio - 1):+.1f} % perplexity; near is taken as at most 5 %")


def transfer() -> Finding:
    found = cells("table4")
    pairs = {(r.labels["source"], r.labels["task"]) for r in found}
    wins, both = 0, 0
    for start, target in sorted(pairs):
        ours, theirs = (
            scores(found, "test_score", 100, source=start, task=target, attention=name) for name in (N, HEDGEHOG)
        )
        if ours is not None and theirs is not None:
            both, wins = both + 1, wins + (ours.mean > theirs.mean)
    if not both:
        return Finding(MISSING)
    verdict = "holds" if wins >= 0.8 * both else "does not hold"
    return Finding(verdict, f"{N} better on {wins} of {both} pairs of source and target")


def recovery_loss() -> Finding:
    best = best_cells(cells("kernels"))
    if any(label not in best for label in PLAIN_MAPS):
        return Finding(MISSING)
    found = {label: Scores([-divergence(r) for r in best[label]]) for label in PLAIN_MAPS}
    return Finding(found[N].against(found[HEDGEHOG]), ", ".join(shown(k, v, 3) for k, v in found.items()))


def recovery_speed() -> Finding:
    best = best_cells(cells("kernels"))
    if N not in best or HEDGEHOG not in best:
        return Finding(MISSING)
    found = {name: Scores([-float(stable_from(curve(r))) for r in best[name]]) for name in (N, HEDGEHOG)}
    listed = ", ".join(f"{name} from step {-found[name].mean:.0f}" for name in found)
    return Finding(found[N].against(found[HEDGEHOG]), listed)


def bench(name: str) -> dict[str, Any]:
    found: dict[str, Any] = json.loads((RESULTS / "bench" / f"{name}.json").read_text(encoding="utf-8"))
    return found


def retrieval_step() -> Finding:
    figures = Figures(bench(MODEL))
    length, step = figures.lengths[0], "training step"
    faster = {base: figures.ratio(base, N, length, step) for base in BASES}
    smaller = {base: divide(figures.peak(N, length, step), figures.peak(base, length, step)) for base in BASES}
    dropped, _, fused = BASES
    if None in (*faster.values(), *smaller.values()):
        return Finding(MISSING)
    listed = "; ".join(f"{faster[b]:.1f}x, {_less(smaller[b])} than {b}" for b in (dropped, fused))
    return Finding("holds" if faster[dropped] >= 2.6 and smaller[dropped] <= 0.16 else "does not hold", listed)


def _less(share: float) -> str:
    return f"{abs(1 - share):.0%} {'less' if share < 1 else 'more'} memory"


def growth() -> Finding:
    slopes = [slope for slope in bench(SCALING)["slopes"] if slope["row"] == N]
    worst = max(max(slope["time"], slope["memory"]) for slope in slopes)
    listed = ", ".join(f"{s['pass']} N^{s['time']:.2f} in time, N^{s['memory']:.2f} in memory" for s in slopes)
    return Finding("holds" if worst <= 1.05 else "does not hold", listed)


def parameters() -> Finding:
    ours = {count.size: count for count in counts() if count.attention == N}
    listed = ", ".join(f"{size} {count.added_percent:.2f} %" for size, count in ours.items())
    return Finding("holds", listed)


CLAIMS = (
    Claim(
        "Long Range Arena: better on average than every other linear attention",
        "reproduce table1",
        lambda: beats_others("table1", "test_accuracy", 100),
    ),
    Claim(
        "Long Range Arena: the nonstationary kernel is better than the stationary one",
        "reproduce table1",
        lambda: pair("table1", "test_accuracy", 100, N, S),
    ),
    Claim(
        "Language models: lower perplexity than every other linear attention",
        "reproduce table2",
        lambda: beats_others("table2", "test_perplexity", -1),
    ),
    Claim("Language models: very close to softmax", "reproduce table2", near_softmax),
    Claim(
        "GLUE: a distilled Flexformer recovers more than a distilled Hedgehog",
        "reproduce table3",
        lambda: pair("table3", "test_score", 100, N, HEDGEHOG, 1),
    ),
    Claim("GLUE: kernels carry over to other tasks better than Hedgehog's in almost all cases", "reproduce table4",
          transfer),
    Claim("Distillation: lower loss than Hedgehog", "reproduce kernels", recovery_loss),
    Claim("Distillation: stable in fewer steps than Hedgehog", "reproduce distill-curves", recovery_speed),
    Claim("A training step on Retrieval is 2.6 times faster with 84 % less memory than softmax's", "bench model",
          retrieval_step),
    Claim("Time and memory grow linearly with the length", "bench scaling", growth),
    Claim("Few parameters are added", "reproduce params", parameters),
)  # fmt: skip


def lines() -> str:
    rows = ["| the paper says | here | figures | by |", "|---|---|---|---|"]
    for claim in CLAIMS:
        found = claim.judge()
        rows.append(f"| {claim.text} | {found.verdict} | {found.figures} | `flexformer {claim.command}` |")
    return "\n".join(rows)


def with_claims(page: str) -> str:
    """The page with its block written anew."""
    return BLOCK.sub(lambda match: f"{match[1]}\n{lines()}\n\n{match[2]}", page)


def main() -> None:
    write_text(PAGE, with_claims(PAGE.read_text(encoding="utf-8")))
    print(f"wrote {PAGE.relative_to(ROOT)}")


if __name__ == "__main__":
    main()
