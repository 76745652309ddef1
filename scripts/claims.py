"""Write the paper's claims, each beside what runs in results/ say of it, into docs/results.md.

    python scripts/claims.py

How verdicts come about is in `flexformer.experiments.verdicts`.
"""

from __future__ import annotations

import functools
import json
import re
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from flexformer.bench.page import MODEL, SCALING
from flexformer.experiments import cost_judges, frequency_judges, judges
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
SEEDS = {"attention": [0], "maps": [0, 1, 2]}  # by default, where a command has this option
BLOCK = re.compile(r"(<!-- claims begin -->\n).*?(<!-- claims end -->)", re.DOTALL)


@dataclass(frozen=True)
class Claim:
    """One statement of the paper.

    Args:
        text: What it says.
        command: What would test it, as far as there are no records that name theirs; empty if nothing would.
        judge: Looks at the cells of each experiment, then at each record.
        experiments: That they are of; the command is the last one's.
        records: Names of benchmarks.
        spent: What it took where none of these says so.
    """

    text: str
    command: str
    judge: Callable[..., Finding]
    experiments: tuple[Experiment, ...] = ()
    records: tuple[str, ...] = ()
    spent: str = ""

    @functools.cached_property
    def cells(self) -> list[list[Result]]:
        return [cells_of(experiment) for experiment in self.experiments]

    @functools.cached_property
    def found(self) -> Finding:
        return self.judge(*self.cells, *map(bench, self.records))

    def line(self) -> str:
        """Its row of the table."""
        costs = [
            *map(Spent.on, self.cells),
            *(Spent((), 0.0, bench(name).get("seconds", 0.0)) for name in self.records),
        ]
        took = ", ".join(filter(None, (cost.short for cost in costs))) or self.spent
        by = f"`{self.command}`" if self.command else ""
        return f"| {self.text} | {self.found.verdict} | {self.found.figures} | {by} | {took} |"

    def commands(self) -> Iterator[tuple[str, str]]:
        """Those that run the cells or measure, in full, and what each of them took."""
        if self.experiments:
            options = grids_given(self.cells[-1], self.experiments[-1].row_option)
            yield ", ".join(f"`flexformer {self.command}{each}`" for each in options), Spent.on(self.cells[-1]).text
        elif self.command and not self.records:
            yield f"`flexformer {self.command}`", self.spent
        for name in self.records:
            record = bench(name)
            yield f"`{record.get('command', f'flexformer {self.command}')}`", in_minutes(record.get("seconds", 0.0))


@functools.cache
def cells_of(experiment: Experiment) -> list[Result]:
    return experiment.results(RESULTS)[0]


@dataclass(frozen=True)
class Spent:
    """What the runs of a table took; one that several cells start from counts once.

    Args:
        steps: Of each run.
        seconds: Of all runs.
        measuring: Seconds of measurements.
    """

    steps: tuple[int, ...]
    seconds: float
    measuring: float

    @classmethod
    def on(cls, cells: Sequence[Result]) -> Spent:
        runs = {cell.digest: (cell.steps, cell.seconds) for cell in cells if cell.steps}
        runs |= {stage["digest"]: (stage["steps"], stage["seconds"]) for cell in cells for stage in cell.stages}
        measured = sum(cell.seconds for cell in cells if not cell.steps)
        return cls(tuple(steps for steps, _ in runs.values()), sum(seconds for _, seconds in runs.values()), measured)

    @property
    def text(self) -> str:
        """Runs, their steps and their time."""
        if not self.steps:
            return in_minutes(self.measuring)
        least, most = min(self.steps), max(self.steps)
        steps = f"{most:,}" if least == most else f"{least:,} to {most:,}"
        runs = f"{len(self.steps)} run{'s' if len(self.steps) > 1 else ''}"
        trained = f"{runs} of {steps} steps, {self.seconds / 3600:.1f} run-hours"
        return f"{trained}, {in_minutes(self.measuring)}" if self.measuring else trained

    @property
    def short(self) -> str:
        """Their time alone."""
        if self.steps:
            return f"{self.seconds / 3600:.1f} h"
        return f"{self.measuring / 60:.0f} min" if self.measuring else ""


def in_minutes(seconds: float) -> str:
    return f"{seconds / 60:.0f} minutes of measuring" if seconds else ""


def grids_given(cells: Sequence[Result], option: str = "attention") -> list[str]:
    """What commands have to be given so that they run these cells and no others: what is not a default."""
    runs = [cell for cell in cells if cell.steps]
    tasks = list(dict.fromkeys(run.labels.get("task") for run in runs))
    row = option.removesuffix("s")
    names = ordered(sorted({run.labels[row] for run in runs}))
    by_grid: dict[tuple[tuple[str | None, ...], tuple[int, ...]], list[str]] = {}  # rows by tasks and seeds
    for name in names:
        own = {(run.labels.get("task"), run.seed) for run in runs if run.labels[row] == name}
        by_seed = {seed: tuple(task for task in tasks if (task, seed) in own) for seed in sorted({s for _, s in own})}
        for same in dict.fromkeys(by_seed.values()):
            seeds = tuple(seed for seed, of_seed in by_seed.items() if of_seed == same)
            by_grid.setdefault((same, seeds), []).append(name)

    def given(name: str, values: Sequence[Any], default: Sequence[Any]) -> str:
        words = (f'"{value}"' if " " in str(value) else str(value) for value in values)
        return "" if list(values) == list(default) else f" --{name} {' '.join(words)}"

    return [
        given(option, of_rows, names) + given("tasks", of_grid, tasks) + given("seeds", seeds, SEEDS[option])
        for (of_grid, seeds), of_rows in by_grid.items()
    ] or [""]


def bench(name: str) -> dict[str, Any]:
    """A record; empty where there is none."""
    path = RESULTS / "bench" / f"{name}.json"
    return json.loads(path.read_text(encoding="utf-8")) if path.exists() else {}


ARENA, LANGUAGE, SWEEP = ArenaTable("cpu"), LanguageTable("cpu"), FrequencySweep("cpu")
GLUE, CARRIED, FIGURE = RecoveryTable("cpu"), TransferTable("cpu"), EfficiencyFigure("cpu")
CLAIMS = {
    "Long Range Arena": (
        Claim("flexformer-n is better on average than every other linear attention (the paper: by 4.4 %)",
              "reproduce table1",
              lambda found: judges.on_average(found, lambda own: beats(own, N, OTHERS, (S, SOFTMAX))), (ARENA,)),
        Claim("so is flexformer-s", "reproduce table1",
              lambda found: judges.on_average(found, lambda own: beats(own, S, OTHERS, (N, SOFTMAX))), (ARENA,)),
        Claim("flexformer-n is better on average than flexformer-s", "reproduce table1",
              lambda found: judges.on_average(found, lambda own: pair(own, N, S)), (ARENA,)),
        Claim("flexformer-n is better on average than softmax", "reproduce table1",
              lambda found: judges.on_average(found, lambda own: pair(own, N, SOFTMAX)), (ARENA,)),
        Claim("flexformer-s is second on average, behind flexformer-n alone", "reproduce table1",
              lambda found: judges.on_average(found, judges.second), (ARENA,)),
        Claim("ListOps: random features are far below softmax (the paper: by 20 points)", "reproduce table1",
              lambda found: judges.below(judges.accuracies(found, ["listops"]), RANDOM, judges.SEVERE, "far"),
              (ARENA,)),
        Claim("random features are substantially below softmax on average", "reproduce table1",
              lambda found: judges.on_average(
                  found, lambda own: judges.below(own, RANDOM, judges.SUBSTANTIAL, "substantially")), (ARENA,)),
        Claim("Image, Pathfinder: flexformer-n is the best of all, softmax included", "reproduce table1",
              lambda found: judges.best_on(found, ("image", "pathfinder")), (ARENA,)),
        Claim("ListOps, Text: flexformer-n is highly competitive", "reproduce table1",
              lambda found: judges.competitive(found, ("listops", "text")), (ARENA,)),
        Claim("Hedgehog and Polaformer are strong on certain tasks, but not on all", "reproduce table1",
              lambda found: judges.uneven(found, LEARNED), (ARENA,)),
        Claim("Retrieval: flexformer-n is the best of all, softmax included, and random features are far below",
              "reproduce table1 --tasks retrieval",
              lambda: Finding(UNTESTABLE, "its corpus, AAN, is not at hand; Articles is another task")),
    ),
    "Language models": (
        Claim("flexformer-n has a lower perplexity than every other linear attention", "reproduce table2",
              lambda found: beats(judges.language(found), N, OTHERS, (S, SOFTMAX)), (LANGUAGE,)),
        Claim("so has flexformer-s", "reproduce table2",
              lambda found: beats(judges.language(found), S, OTHERS, (N, SOFTMAX)), (LANGUAGE,)),
        Claim("flexformer-n is better than flexformer-s", "reproduce table2",
              lambda found: pair(judges.language(found), N, S), (LANGUAGE,)),
        Claim("flexformer-s is better than Hedgehog and Polaformer, with about as many parameters as Hedgehog and "
              "fewer than Polaformer", "reproduce table2", judges.better_with_as_many, (LANGUAGE,)),
        Claim("both kernels gain more by each added parameter than Hedgehog and Polaformer",
              "reproduce table2", judges.gain_by_parameter, (LANGUAGE,)),
        Claim("Hedgehog and Polaformer are better than linear attentions before them", "reproduce table2",
              lambda found: together({name: beats(judges.language(found), name, EARLIER) for name in LEARNED}),
              (LANGUAGE,)),
        Claim("Hedgehog and Polaformer fall short of softmax", "reproduce table2",
              lambda found: together({name: pair(judges.language(found), SOFTMAX, name) for name in LEARNED}),
              (LANGUAGE,)),
        Claim("both kernels are very close to softmax", "reproduce table2",
              lambda found: judges.very_close(judges.language(found)), (LANGUAGE,)),
        Claim("a big model is better with both kernels than with softmax, and Hedgehog and Polaformer come nearer to "
              "it than in a small one", "reproduce table2 --preset paper",
              lambda: Finding(UNTESTABLE, "247 million parameters and 6.6 billion tokens need a GPU")),
    ),
    "A pretrained model on GLUE": (
        Claim("random features in place of softmax degrade a model severely", "reproduce table3",
              lambda found: judges.below(judges.glue(found), RANDOM, judges.SEVERE, "severely"), (GLUE,)),
        Claim("distilled kernels recover a model nearly fully", "reproduce table3",
              judges.recovered, (GLUE,)),
        Claim("distilled flexformer-n has a better average than distilled Hedgehog", "reproduce table3",
              lambda found: pair(judges.glue(found), N, HEDGEHOG, 1), (GLUE,)),
        Claim("CoLA: distilled flexformer-n is better than softmax", "reproduce table3",
              lambda found: beats(judges.glue(found, ["cola"]), N, (SOFTMAX, TWICE), (HEDGEHOG,)), (GLUE,)),
        Claim("kernels of flexformer-n carry over to other tasks better than Hedgehog's in almost all cases (elsewhere "
              "in the paper: in all)",
              "reproduce table4", judges.transfer, (CARRIED,)),
        Claim("CoLA: kernels of other tasks lose less than Hedgehog's do", "reproduce table4",
              lambda own, carried: judges.smaller_drop(own, carried, "cola"), (GLUE, CARRIED)),
        Claim("how good Hedgehog is varies with the task its kernels come from", "reproduce table4 --preset paper",
              lambda: Finding(UNTESTABLE, "two sources are too few")),
    ),
    "Recovering softmax": (
        Claim("flexformer-n recovers softmax attention closely, as its family contains softmax's kernel",
              "reproduce kernels",
              judges.closely, (KernelStudy("cpu"),)),
        Claim("it has a lower loss than Hedgehog", "reproduce kernels",
              lambda found: pair(judges.distilled(found).only(N, HEDGEHOG), N, HEDGEHOG, 3), (KernelStudy("cpu"),)),
        Claim("it is more expressive than flexformer-s, here taken as a lower loss", "reproduce kernels",
              lambda found: pair(judges.distilled(found).only(N, S), N, S, 3), (KernelStudy("cpu"),)),
        Claim("flexformer-n is stable in fewer steps than Hedgehog", "reproduce distill-curves",
              judges.recovery_speed, (DistillationCurves("cpu"),)),
        Claim("positive definite kernels appear to induce desirable attention and to avoid pathological patterns",
              "", lambda: Finding(UNTESTABLE, "the paper does not say what would be measured")),
    ),
    "Number of frequencies": (
        Claim("language models: the more frequencies, the better (the paper: large ones, which also fit better)",
              "reproduce n-sweep",
              frequency_judges.more_frequencies, (SWEEP,)),
        Claim("language models, Image, ListOps: with fewer frequencies still better than other linear attentions",
              "reproduce n-sweep",
              lambda models, arena, swept: frequency_judges.half_suffices(models, arena, swept, ("image", "listops")),
              (LANGUAGE, ARENA, SWEEP)),
        Claim("Image: more frequencies help while there are few, and harm when there are many (the paper: overfit)",
              "reproduce n-sweep", lambda arena, swept: frequency_judges.peaked(arena, swept, "image"), (ARENA, SWEEP)),
        Claim("Image, ListOps: more frequencies give no more beyond a certain point, here taken as the width of a head",
              "reproduce n-sweep", lambda arena, swept: frequency_judges.saturated(arena, swept, ("image", "listops")),
              (ARENA, SWEEP)),
        Claim("ListOps: a very small number of frequencies is competitive, here taken as a quarter",
              "reproduce n-sweep", lambda arena, swept: frequency_judges.few_suffice(arena, swept, "listops"),
              (ARENA, SWEEP)),
        Claim("more frequencies take more time and memory", "reproduce n-sweep",
              lambda found: cost_judges.dearer_with_more(found, SWEEP.tasks), (SWEEP,)),
    ),
    "Time, memory and parameters": (
        Claim("Retrieval's model: a forward pass with softmax takes time and memory as the square of the length",
              "reproduce fig2", cost_judges.softmax_grows, (FIGURE,)),
        Claim("Retrieval's model: with every linear attention a step takes less time and memory than with softmax",
              "reproduce fig2", cost_judges.all_cheaper, (FIGURE,), (MODEL,)),
        Claim("Retrieval's model: a step is marginally dearer than with other linear attentions", "reproduce fig2",
              cost_judges.little_dearer, (FIGURE,), (MODEL,)),
        Claim("Retrieval's model: a step takes less time and memory than with any other (the figure's caption)",
              "reproduce fig2", cost_judges.cheapest, (FIGURE,), (MODEL,)),
        Claim("Retrieval's model: a step is 2.6 times faster with 84 % less memory than softmax's", "reproduce fig2",
              cost_judges.retrieval_step, (FIGURE,), (MODEL,)),
        Claim("attention by itself: a forward pass takes time and memory linear in the length, like the Linear "
              "Transformer",
              "bench scaling", cost_judges.growth, records=(SCALING,)),
        Claim("about one per cent of parameters is added", "reproduce params", cost_judges.parameters,
              spent="none, they are counted"),
        Claim("flexformer-s adds about as many as Hedgehog, flexformer-n fewer than Polaformer, each about the same "
              "share in both sizes", "reproduce params", cost_judges.shares_of_parameters,
              spent="none, they are counted"),
    ),
}  # fmt: skip


def tally() -> str:
    """How many claims there are of each kind."""
    kinds = {HOLDS: "hold", f"{HOLDS} ": "hold in part", FAILS: "do not hold", UNDECIDED: "are undecided",
             MISSING: "wait for runs", UNTESTABLE: "cannot be tested here"}  # fmt: skip
    # "holds against ... only" is a kind of its own.
    claims = [claim for own in CLAIMS.values() for claim in own]
    found = [next(kind for kind in reversed(kinds) if claim.found.kind.startswith(kind)) for claim in claims]
    counted = [f"{found.count(kind)} {words}" for kind, words in kinds.items() if kind in found]
    return f"Of {len(claims)} claims {', '.join(counted)}."


def topic(name: str, claims: Sequence[Claim]) -> str:
    """A table of claims, with the commands that run their cells below it."""
    rows = ["| the paper says | here | figures | by | took |", "|---|---|---|---|---|"]
    commands = dict(pair for claim in claims for pair in claim.commands())
    told = [f"- {command}{f': {spent}' if spent else ''}" for command, spent in commands.items()]
    return "\n".join([f"**{name}**", "", *rows, *(claim.line() for claim in claims), "", *told])


def lines() -> str:
    return "\n\n".join(topic(name, claims) for name, claims in CLAIMS.items())


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
