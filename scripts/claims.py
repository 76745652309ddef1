"""Write the paper's claims, each beside what runs in results/ say of it, into docs/results.md.

    python scripts/claims.py

How verdicts come about is in `flexformer.experiments.verdicts`.
"""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from flexformer.bench.page import MODEL, SCALING
from flexformer.experiments import judges
from flexformer.experiments.arena_table import ArenaTable
from flexformer.experiments.curves import DistillationCurves
from flexformer.experiments.efficiency_figure import EfficiencyFigure
from flexformer.experiments.experiment import Experiment
from flexformer.experiments.frequencies import FrequencySweep
from flexformer.experiments.glue_tables import RecoveryTable, TransferTable
from flexformer.experiments.judges import HEDGEHOG, OTHERS, SOFTMAX, N, S
from flexformer.experiments.kernels import KernelStudy
from flexformer.experiments.language_table import LanguageTable
from flexformer.experiments.results import Result
from flexformer.experiments.verdicts import Finding, beats, pair, together, within
from flexformer.files import write_text

ROOT = Path(__file__).resolve().parent.parent
RESULTS, PAGE = ROOT / "results", ROOT / "docs" / "results.md"
BLOCK = re.compile(r"(<!-- claims begin -->\n).*?(<!-- claims end -->)", re.DOTALL)
NEAR, CLOSE = "at most 5 % more", "at most 5 % less"


@dataclass(frozen=True)
class Claim:
    """One statement of the paper.

    Args:
        text: What it says.
        command: What runs the cells.
        judge: Looks at the cells.
        experiment: That they are of; None for what is measured or counted otherwise.
    """

    text: str
    command: str
    judge: Callable[[Sequence[Result]], Finding]
    experiment: Experiment | None = None

    def line(self) -> str:
        """Its row of the table."""
        cells = [] if self.experiment is None else self.experiment.results(RESULTS)[0]
        found = self.judge(cells)
        return f"| {self.text} | {found.verdict} | {found.figures} | `flexformer {self.command}` | {budget(cells)} |"


def budget(cells: Sequence[Result]) -> str:
    """Of a table: how many runs of how many steps, and their time; a run that several cells start from counts once."""
    runs = {cell.digest: (cell.steps, cell.seconds) for cell in cells if cell.steps}
    runs |= {stage["digest"]: (stage["steps"], stage["seconds"]) for cell in cells for stage in cell.stages}
    if not runs:
        return ""
    counts = [steps for steps, _ in runs.values()]
    steps = f"{max(counts):,}" if len(set(counts)) == 1 else f"{min(counts):,} to {max(counts):,}"
    hours = sum(seconds for _, seconds in runs.values()) / 3600
    return f"{len(runs)} run{'s' if len(runs) > 1 else ''} of {steps} steps, {hours:.1f} h"


def bench(name: str) -> dict[str, Any] | None:
    path = RESULTS / "bench" / f"{name}.json"
    return json.loads(path.read_text(encoding="utf-8")) if path.exists() else None


ARENA, LANGUAGE, GLUE, SWEEP = ArenaTable("cpu"), LanguageTable("cpu"), RecoveryTable("cpu"), FrequencySweep("cpu")
CLAIMS = (
    Claim("Long Range Arena: better on average than every other linear attention", "reproduce table1",
          lambda found: beats(judges.arena(found), N, OTHERS, (S, SOFTMAX)), ARENA),
    Claim("Long Range Arena: so is the stationary kernel", "reproduce table1",
          lambda found: beats(judges.arena(found), S, OTHERS, (N, SOFTMAX)), ARENA),
    Claim("Long Range Arena: the nonstationary kernel is better than the stationary one", "reproduce table1",
          lambda found: pair(judges.arena(found), N, S), ARENA),
    Claim("Image, Pathfinder: the best of all, softmax included", "reproduce table1",
          lambda found: judges.best_on(found, ("image", "pathfinder")), ARENA),
    Claim("Language models: lower perplexity than every other linear attention", "reproduce table2",
          lambda found: beats(judges.language(found), N, OTHERS, (S, SOFTMAX)), LANGUAGE),
    Claim("Language models: so has the stationary kernel", "reproduce table2",
          lambda found: beats(judges.language(found), S, OTHERS, (N, SOFTMAX)), LANGUAGE),
    Claim("Language models: very close to softmax", "reproduce table2",
          lambda found: within(judges.language(found), N, SOFTMAX, 1.05, f"very close is taken as {NEAR}"), LANGUAGE),
    Claim("Language models: a big one is better than with softmax", "reproduce table2 --preset paper",
          lambda found: Finding("not testable here", "247 million parameters and 6.6 billion tokens need a GPU")),
    Claim("GLUE: random features in place of softmax degrade a model severely", "reproduce table3",
          lambda found: judges.degraded(judges.glue(found), ("performer", "rfa")), GLUE),
    Claim("GLUE: distilled kernels recover a model nearly fully", "reproduce table3",
          lambda found: together({
              name: within(judges.glue(found), name, SOFTMAX, 0.95, f"nearly is taken as {CLOSE}")
              for name in (HEDGEHOG, N)
          }), GLUE),
    Claim("GLUE: a distilled Flexformer recovers more than a distilled Hedgehog", "reproduce table3",
          lambda found: pair(judges.glue(found), N, HEDGEHOG, 1), GLUE),
    Claim("GLUE: kernels carry over to other tasks better than Hedgehog's in almost all cases", "reproduce table4",
          judges.transfer, TransferTable("cpu")),
    Claim("Distillation: lower loss than Hedgehog", "reproduce kernels",
          lambda found: pair(judges.distilled(found), N, HEDGEHOG, 3), KernelStudy("cpu")),
    Claim("Distillation: stable in fewer steps than Hedgehog", "reproduce distill-curves",
          judges.recovery_speed, DistillationCurves("cpu")),
    Claim("Language models: every larger number of frequencies is better", "reproduce n-sweep",
          judges.more_frequencies, SWEEP),
    Claim("Image, ListOps: more frequencies than a head is wide give next to nothing", "reproduce n-sweep",
          lambda found: judges.saturated(found, ("image", "listops")), SWEEP),
    Claim("Retrieval: with every linear attention a training step takes less time and memory than with softmax",
          "reproduce fig2", judges.all_cheaper, EfficiencyFigure("cpu")),
    Claim("A training step on Retrieval is 2.6 times faster with 84 % less memory than softmax's", "bench model",
          lambda found: judges.retrieval_step(bench(MODEL))),
    Claim("Time and memory grow linearly with the length", "bench scaling",
          lambda found: judges.growth(bench(SCALING))),
    Claim("About one per cent of parameters is added", "reproduce params", lambda found: judges.parameters()),
)  # fmt: skip


def lines() -> str:
    rows = ["| the paper says | here | figures | by | budget of the table |", "|---|---|---|---|---|"]
    return "\n".join([*rows, *(claim.line() for claim in CLAIMS)])


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
