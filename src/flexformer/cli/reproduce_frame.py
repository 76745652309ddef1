"""What all commands of `flexformer reproduce` do with an experiment: plan it, run it, show it."""

from __future__ import annotations

import math
import sys
import time
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from pathlib import Path

from rich.console import Console
from rich.table import Table as ScreenTable

from flexformer.cli.main import UserError, console, print_json
from flexformer.experiments.estimate import Planned, plan
from flexformer.experiments.experiment import Experiment, Shown
from flexformer.experiments.grid import GridError, Places, by_seed, finish
from flexformer.experiments.tables import Table, Value


class UnfinishedError(UserError):
    """A cell failed or was interrupted: one line, and its exit status."""

    def __init__(self, error: GridError) -> None:
        super().__init__(str(error))
        self.status = error.status if error.status > 0 else 1


@dataclass(frozen=True)
class Request:
    """What was asked for beside the experiment itself.

    What follows `seeds` are options of the commands, described here for all of them.

    Args:
        rows: To run; None for all.
        seeds: One run of each cell for each.
        output: Working folder with a folder for each run; default runs/TABLE.
        results: Where JSON files of cells, tables and pictures go.
        tables_only: Run nothing, write tables from the cells that are there.
        dry_run: Print the cells, which are done, and how long the others would take where it can be told.
        time_limit: Minutes after which no cell is started; training stops with a checkpoint, to go on another time.
        json: Print cells as JSON; progress goes to the error stream.
    """

    rows: list[str] | None
    seeds: list[int]
    output: Path | None = None
    results: Path = Path("results")
    tables_only: bool = False
    dry_run: bool = False
    time_limit: float | None = None
    json: bool = False

    def working_folder(self, experiment: Experiment) -> Path:
        return Path("runs", experiment.name) if self.output is None else self.output


def reproduce(experiment: Experiment, request: Request) -> int:
    """Do what a command of `flexformer reproduce` was asked to."""
    if not request.seeds:
        raise ValueError("seeds is empty; name at least one")
    if request.time_limit is not None and not request.time_limit > 0:
        raise ValueError(f"time_limit {request.time_limit} leaves no time; use more than 0 minutes")
    screen = console(request.json)
    if request.dry_run:
        _plan(experiment, request, screen)
        return 0
    if not request.tables_only:
        _run(experiment, request, screen)
    _print(experiment.show(request.results), screen, experiment, request)
    return 0


def _plan(experiment: Experiment, request: Request, screen: Console) -> None:
    attentions = experiment.check(request.rows)
    known, _ = experiment.results(request.results)
    cells = by_seed(experiment.cells(attentions, request.seeds))
    cells += experiment.following(known, attentions, request.seeds)
    with screen.status("planning") as status:
        planned = plan(cells, known, request.results, request.working_folder(experiment), status.update)
    if request.json:
        print_json([asdict(each) for each in planned])
    else:
        screen.print(plan_table(planned, experiment.stem))


def _run(experiment: Experiment, request: Request, screen: Console) -> None:
    """Run what is missing, until time is up."""
    limit = request.time_limit
    places = Places(
        request.working_folder(experiment),
        request.results,
        sys.stderr if request.json else sys.stdout,
        lambda line: screen.print(line, soft_wrap=True),
        None if limit is None else time.monotonic() + 60 * limit,
    )
    attentions = experiment.check(request.rows)
    try:
        found = finish(by_seed(experiment.cells(attentions, request.seeds)), places, experiment.details)
        if found is not None:
            found = finish(experiment.following(found, attentions, request.seeds), places, experiment.details)
    except GridError as error:
        if experiment.results(request.results)[0]:
            experiment.show(request.results)
        raise UnfinishedError(error) from error
    if found is None:
        screen.print(f"{limit:g} minutes are over; the same command goes on from here.", soft_wrap=True)


def _print(made: Shown, screen: Console, experiment: Experiment, request: Request) -> None:
    if request.json:
        found, _ = experiment.results(request.results)
        print_json([asdict(result) for result in found])
        return
    for table in made.tables:
        screen.print(screen_table(table))
        for note in table.notes:
            screen.print(note, soft_wrap=True)
    if made.outdated:
        names = ", ".join(result.cell for result in made.outdated)
        screen.print(f"Left out, because options have changed since: {names}", soft_wrap=True)
    screen.print(f"Written: {', '.join(map(str, made.files))}", soft_wrap=True)


def screen_table(table: Table) -> ScreenTable:
    """A table for the terminal."""
    shown = ScreenTable(title=table.title, title_justify="left")
    shown.add_column(table.head, no_wrap=True)
    before = None
    for column in table.columns:
        group = "" if column.group == before else column.group
        shown.add_column(f"{group}\n{column.title}", justify="right")
        before = column.group
    best = [table.best(i) for i in range(len(table.columns))]
    for i, row in enumerate(table.rows):
        pairs = zip(table.columns, row.values, strict=True)
        # Deviations of the paper's would make lines too long for most terminals; the files have them.
        texts = [c.text(v if c.measured or v is None else Value(v.mean), "±") for c, v in pairs]
        shown.add_row(row.label, *(f"[bold]{t}[/bold]" if i in best[j] else t for j, t in enumerate(texts)))
    return shown


def plan_table(planned: Sequence[Planned], title: str) -> ScreenTable:
    """The plan, with the total at the end."""
    table = ScreenTable(title=f"Plan of {title}", title_justify="left")
    for heading in ("cell", "status", "about", ""):
        table.add_column(heading, justify="right" if heading == "about" else "left", overflow="fold")
    for before, each in zip((None, *planned), planned, strict=False):
        repeated = before is not None and each.note and each.note == before.note
        table.add_row(each.name, each.status, _duration(each.seconds), "as above" if repeated else each.note)
    table.add_section()
    total = sum(each.seconds for each in planned if each.seconds is not None)
    unknown = sum(each.seconds is None for each in planned)
    done = sum(each.status == "done" for each in planned)
    note = f"and {unknown} that could not be timed" if unknown else ""
    table.add_row(f"{len(planned)} cells", f"{done} done", _duration(total), note)
    return table


def _duration(seconds: float | None) -> str:
    if seconds is None:
        return "?"
    if seconds == 0:
        return ""
    minutes = seconds / 60
    if minutes < 1:
        return f"{math.ceil(seconds)} s"
    return f"{minutes:.0f} min" if minutes < 90 else f"{minutes / 60:.1f} h"
