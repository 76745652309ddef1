"""Write the paper's claims, each beside what runs in results/ say of it, into docs/results.md.

    python scripts/claims.py

How verdicts come about is in `flexformer.experiments.verdicts`.
"""

from __future__ import annotations

import functools
import json
import re
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from flexformer.bench.page import SCALING
from flexformer.experiments import cost_judges, judges
from flexformer.experiments.arena_table import ArenaTable
from flexformer.experiments.curves import DistillationCurves
from flexformer.experiments.efficiency_figure import EfficiencyFigure
from flexformer.experiments.experiment import Experiment, ordered
from flexformer.experiments.frequencies import FrequencySweep
from flexformer.experiments.glue_cells import TWICE
from flexformer.experiments.glue_tables import RecoveryTable, TransferTable
from flexformer.experiments.judges import EARLIER, HEDGEHOG, LEARNED, OTHERS, RANDOM, SOFTMAX, N, S
from flexformer.experiments.kernels import KernelStudy
from flexformer.experiments.language_table import LanguageTable
from flexformer.experiments.results import Result
from flexformer.experiments.verdicts import FAILS, HOLDS, MISSING, UNDECIDED, UNTESTABLE, Finding, beats, pair, together
from flexformer.files import write_text

ROOT = Path(__file__).resolve().parent.parent
RESULTS, PAGE = ROOT / "results", ROOT / "docs" / "results.md"
BLOCK = re.compile(r"(<!-- claims begin -->\n).*?(<!-- claims end -->)", re.DOTALL)


@dataclass(frozen=True)
class Claim:
    """One statement of the paper.

    Args:
        text: What it says.
        command: What runs the cells.
        judge: Looks at the cells of each experiment.
        experiments: That they are of; the command is the last one's. None for what is measured or counted otherwise.
        spent: What that took.
    """

    text: str
    command: str
    judge: Callable[..., Finding]
    experiments: tuple[Experiment, ...] = ()
    spent: str = ""

    @functools.cached_property
    def cells(self) -> list[list[Result]]:
        return [cells_of(experiment) for experiment in self.experiments]

    @functools.cached_property
    def found(self) -> Finding:
        return self.judge(*self.cells)

    def line(self) -> str:
        """Its row of the table."""
        found, spent = self.found, "; ".join(filter(None, map(budget, self.cells))) or self.spent
        return f"| {self.text} | {found.verdict} | {found.figures} | {self.by()} | {spent} |"

    def by(self) -> str:
        """The commands that run the cells."""
        has_seeds = bool(self.cells) and self.experiments[-1].row_option == "attention"
        options = seeds_given(self.cells[-1]) if has_seeds else [""]
        return ", ".join(f"`flexformer {self.command}{each}`" for each in options)


@functools.cache
def cells_of(experiment: Experiment) -> list[Result]:
    return experiment.results(RESULTS)[0]


def budget(cells: Sequence[Result]) -> str:
    """Of a table: how many runs of how many steps, and their time; a run that several cells start from counts once."""
    runs = {cell.digest: (cell.steps, cell.seconds) for cell in cells if cell.steps}
    runs |= {stage["digest"]: (stage["steps"], stage["seconds"]) for cell in cells for stage in cell.stages}
    measured = measuring(sum(cell.seconds for cell in cells if not cell.steps))
    if not runs:
        return measured
    counts = [steps for steps, _ in runs.values()]
    steps = f"{max(counts):,}" if len(set(counts)) == 1 else f"{min(counts):,} to {max(counts):,}"
    hours = sum(seconds for _, seconds in runs.values()) / 3600
    trained = f"{len(runs)} run{'s' if len(runs) > 1 else ''} of {steps} steps, {hours:.1f} run-hours"
    return f"{trained}, {measured}" if measured else trained


def measuring(seconds: float) -> str:
    return f"{seconds / 60:.0f} minutes of measuring" if seconds else ""


def seeds_given(cells: Sequence[Result]) -> list[str]:
    """What commands have to be given beside the first seed, which they take by themselves."""
    runs = [cell for cell in cells if cell.steps]
    names = ordered(sorted({run.labels["attention"] for run in runs}))
    seeds = {name: tuple(sorted({run.seed for run in runs if run.labels["attention"] == name})) for name in names}
    groups = {own: [name for name in names if seeds[name] == own] for own in sorted(set(seeds.values()))}
    if not groups:
        return [""]
    if len(groups) == 1:
        (own,) = groups
        return ["" if own == (0,) else f" --seeds {' '.join(map(str, own))}"]
    more = {own[1:]: same for own, same in groups.items() if len(own) > 1}
    return ["", *(f" --attention {' '.join(same)} --seeds {' '.join(map(str, own))}" for own, same in more.items())]


def bench(name: str) -> dict[str, Any]:
    """A record; empty where there is none."""
    path = RESULTS / "bench" / f"{name}.json"
    return json.loads(path.read_text(encoding="utf-8")) if path.exists() else {}


ARENA, LANGUAGE, SWEEP = ArenaTable("cpu"), LanguageTable("cpu"), FrequencySweep("cpu")
GLUE, CARRIED, FIGURE = RecoveryTable("cpu"), TransferTable("cpu"), EfficiencyFigure("cpu")
CLAIMS = (
    Claim("Long Range Arena: better on average than every other linear attention (the paper: by 4.4 %)",
          "reproduce table1",
          lambda found: judges.on_average(found, lambda own: beats(own, N, OTHERS, (S, SOFTMAX))), (ARENA,)),
    Claim("Long Range Arena: so is the stationary kernel", "reproduce table1",
          lambda found: judges.on_average(found, lambda own: beats(own, S, OTHERS, (N, SOFTMAX))), (ARENA,)),
    Claim("Long Range Arena: the nonstationary kernel is better than the stationary one", "reproduce table1",
          lambda found: judges.on_average(found, lambda own: pair(own, N, S)), (ARENA,)),
    Claim("ListOps: random features are far below softmax (the paper: by 20 points)", "reproduce table1",
          lambda found: judges.below(judges.accuracies(found, ["listops"]), RANDOM, judges.SEVERE, "far"), (ARENA,)),
    Claim("Long Range Arena: random features are substantially below softmax", "reproduce table1",
          lambda found: judges.on_average(
              found, lambda own: judges.below(own, RANDOM, judges.SUBSTANTIAL, "substantially")), (ARENA,)),
    Claim("Image, Pathfinder: the best of all, softmax included", "reproduce table1",
          lambda found: judges.best_on(found, ("image", "pathfinder")), (ARENA,)),
    Claim("Retrieval: the best of all, softmax included", "reproduce table1 --tasks retrieval",
          lambda: Finding(UNTESTABLE, "its corpus, AAN, is not at hand; Articles is another task")),
    Claim("Language models: lower perplexity than every other linear attention", "reproduce table2",
          lambda found: beats(judges.language(found), N, OTHERS, (S, SOFTMAX)), (LANGUAGE,)),
    Claim("Language models: so has the stationary kernel", "reproduce table2",
          lambda found: beats(judges.language(found), S, OTHERS, (N, SOFTMAX)), (LANGUAGE,)),
    Claim("Language models: the nonstationary kernel is better than the stationary one", "reproduce table2",
          lambda found: pair(judges.language(found), N, S), (LANGUAGE,)),
    Claim("Language models: the stationary kernel is better than Hedgehog and Polaformer with no more parameters",
          "reproduce table2", lambda found: beats(judges.language(found), S, LEARNED), (LANGUAGE,)),
    Claim("Language models: both kernels gain more by each added parameter than Hedgehog and Polaformer",
          "reproduce table2", judges.gain_by_parameter, (LANGUAGE,)),
    Claim("Language models: Hedgehog and Polaformer are better than linear attentions before them", "reproduce table2",
          lambda found: together({name: beats(judges.language(found), name, EARLIER) for name in LEARNED}),
          (LANGUAGE,)),
    Claim("Language models: both kernels are very close to softmax", "reproduce table2",
          lambda found: judges.very_close(judges.language(found)), (LANGUAGE,)),
    Claim("Language models: a big one is better than with softmax", "reproduce table2 --preset paper",
          lambda: Finding(UNTESTABLE, "247 million parameters and 6.6 billion tokens need a GPU")),
    Claim("GLUE: random features in place of softmax degrade a model severely", "reproduce table3",
          lambda found: judges.below(judges.glue(found), RANDOM, judges.SEVERE, "severely"), (GLUE,)),
    Claim("GLUE: distilled kernels recover a model nearly fully", "reproduce table3",
          judges.recovered, (GLUE,)),
    Claim("GLUE: a distilled Flexformer has a better average than a distilled Hedgehog", "reproduce table3",
          lambda found: pair(judges.glue(found), N, HEDGEHOG, 1), (GLUE,)),
    Claim("CoLA: distilled kernels are better than softmax", "reproduce table3",
          lambda found: beats(judges.glue(found, ["cola"]), N, (SOFTMAX, TWICE), (HEDGEHOG,)), (GLUE,)),
    Claim("GLUE: kernels carry over to other tasks better than Hedgehog's in almost all cases", "reproduce table4",
          judges.transfer, (CARRIED,)),
    Claim("CoLA: kernels of other tasks lose less than Hedgehog's do", "reproduce table4",
          lambda own, carried: judges.smaller_drop(own, carried, "cola"), (GLUE, CARRIED)),
    Claim("GLUE: how good Hedgehog is varies with the task its kernels come from", "reproduce table4 --preset paper",
          lambda: Finding(UNTESTABLE, "two tasks to come from show no spread")),
    Claim("Distillation: softmax attention is recovered closely", "reproduce kernels",
          judges.closely, (KernelStudy("cpu"),)),
    Claim("Distillation: lower loss than Hedgehog", "reproduce kernels",
          lambda found: pair(judges.distilled(found).only(N, HEDGEHOG), N, HEDGEHOG, 3), (KernelStudy("cpu"),)),
    Claim("Distillation: stable in fewer steps than Hedgehog", "reproduce distill-curves",
          judges.recovery_speed, (DistillationCurves("cpu"),)),
    Claim("Language models: the more frequencies, the better (the paper: large ones)", "reproduce n-sweep",
          judges.more_frequencies, (SWEEP,)),
    Claim("Language models: with fewer frequencies still better than other linear attentions", "reproduce n-sweep",
          judges.half_suffices, (LANGUAGE, SWEEP)),
    Claim("Image, ListOps: more frequencies give no more beyond a certain point, here taken as the width of a head",
          "reproduce n-sweep", lambda found: judges.saturated(found, ("image", "listops")), (SWEEP,)),
    Claim("ListOps: a very small number of frequencies is competitive, here taken as a quarter", "reproduce n-sweep",
          lambda found: judges.few_suffice(found, "listops"), (SWEEP,)),
    Claim("More frequencies take more time and memory", "reproduce n-sweep",
          lambda found: cost_judges.dearer_with_more(found, SWEEP.tasks), (SWEEP,)),
    Claim("Retrieval: softmax takes time and memory as the square of the length", "reproduce fig2",
          cost_judges.softmax_grows, (FIGURE,)),
    Claim("Retrieval: with every linear attention a training step takes less time and memory than with softmax",
          "reproduce fig2", cost_judges.all_cheaper, (FIGURE,)),
    Claim("Retrieval: a training step is marginally dearer than with other linear attentions", "reproduce fig2",
          cost_judges.little_dearer, (FIGURE,)),
    Claim("Retrieval: a training step takes less time and memory than with any other attention (the figure's caption)",
          "reproduce fig2", cost_judges.cheapest, (FIGURE,)),
    Claim("Retrieval: a training step is 2.6 times faster with 84 % less memory than softmax's", "reproduce fig2",
          cost_judges.retrieval_step, (FIGURE,)),
    Claim("Time and memory grow linearly with the length, as they do with the Linear Transformer",
          bench(SCALING).get("command", "flexformer bench scaling").removeprefix("flexformer "),
          lambda: cost_judges.growth(bench(SCALING)), spent=measuring(bench(SCALING).get("seconds", 0))),
    Claim("About one per cent of parameters is added", "reproduce params", cost_judges.parameters,
          spent="none, they are counted"),
)  # fmt: skip


def tally() -> str:
    """How many claims there are of each kind."""
    kinds = {HOLDS: "hold", f"{HOLDS} ": "hold in part", FAILS: "do not hold", UNDECIDED: "are undecided",
             MISSING: "wait for runs", UNTESTABLE: "cannot be tested here"}  # fmt: skip
    # "holds against ... only" is a kind of its own.
    found = [next(kind for kind in reversed(kinds) if claim.found.kind.startswith(kind)) for claim in CLAIMS]
    counted = [f"{found.count(kind)} {words}" for kind, words in kinds.items() if kind in found]
    return f"Of {len(CLAIMS)} claims {', '.join(counted)}."


def lines() -> str:
    rows = ["| the paper says | here | figures | by | budget of the table |", "|---|---|---|---|---|"]
    return "\n".join([*rows, *(claim.line() for claim in CLAIMS)])


def with_claims(page: str) -> str:
    """The page with its block written anew."""
    if len(BLOCK.findall(page)) != 1:
        raise ValueError(f"{PAGE} needs one block <!-- claims begin --> ... <!-- claims end -->")
    return BLOCK.sub(lambda match: f"{match[1]}\n{tally()}\n\n{lines()}\n\n{match[2]}", page)


def main() -> None:
    write_text(PAGE, with_claims(PAGE.read_text(encoding="utf-8")))
    print(f"wrote {PAGE.relative_to(ROOT)}")


if __name__ == "__main__":
    main()
