"""`flexformer data list | check | prepare`: what the tasks read, whether it is there, and making it."""

from __future__ import annotations

import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import asdict
from typing import Any

from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, TextColumn, TimeRemainingColumn
from rich.progress import Progress as Bar
from rich.table import Table

from flexformer import tasks
from flexformer.cli.main import console, print_json
from flexformer.tasks import inspection, paper
from flexformer.tasks.base import SPLITS, data_root
from flexformer.tasks.progress import Progress, silent
from flexformer.tasks.sheet import contact_sheet

_SECONDS_BETWEEN_LINES = 5
_COLOURS = {"ok": "green", "missing": "yellow", "corrupt": "red"}


def list_tasks(root: str | None = None, json: bool = False) -> None:
    """List the tasks: where their data comes from, how it is laid out, and whether it is there.

    Shows the paper's table of datasets too, beside the true numbers.

    Args:
        root: Folder the data lives in; default $FLEXFORMER_DATA, else ~/.cache/flexformer/data.
        json: Print everything as JSON instead of tables.

    Example:
        flexformer data list --root ~/data
    """
    folder = data_root(root)
    built = [tasks.build(name, root) for name in tasks.names()]
    found = {name: any(variant.files() for variant in inspection.variants(name, root)) for name in tasks.names()}
    if json:
        rows = [asdict(task.describe()) | {"found": found[task.name]} for task in built]
        datasets = [asdict(row) for row in paper.DATASETS]
        print_json({"root": str(folder), "tasks": rows, "datasets": datasets})
        return
    screen = console()
    table = Table(title=f"Tasks, with data in {folder}", title_justify="left", show_lines=True)
    for column in ("task", "found", "question", "source", "layout"):
        table.add_column(column, overflow="fold")
    for task in built:
        facts = task.describe()
        layout = "(made by flexformer data prepare)" if task.generated else "\nor ".join(facts.layout)
        mark = "[green]yes[/]" if found[task.name] else "[yellow]no[/]"
        table.add_row(task.name, mark, facts.question, facts.source, layout)
    screen.print(table)
    _print_datasets(screen)


def check(task: str | None = None, root: str | None = None, json: bool = False) -> int:
    """Read all data from beginning to end: counts, labels, checksums.

    The exit status is 1 if something is damaged, or if the task that was asked for is missing.

    Args:
        task: Check this task only.
        root: Folder the data lives in; default $FLEXFORMER_DATA, else ~/.cache/flexformer/data.
        json: Print the findings as JSON instead of a table.

    Example:
        flexformer data check --task image --root ~/data
    """
    screen = console()
    findings = []
    for variant in inspection.present(root, task):
        with _progress(screen, f"checking {variant.name}", hidden=json) as progress:
            findings.append(inspection.check(variant, progress))
    findings += [f for name in (tasks.names() if task is None else (task,)) for f in inspection.strangers(name, root)]
    if json:
        print_json({"root": str(data_root(root)), "findings": [asdict(finding) for finding in findings]})
    else:
        _print_findings(screen, findings, str(data_root(root)))
    bad = [f for f in findings if f.state == "corrupt" or (task is not None and f.state == "missing")]
    return 1 if bad else 0


def prepare(
    task: str,
    root: str | None = None,
    train: int | None = None,
    validation: int | None = None,
    test: int | None = None,
    seed: int | None = None,
    min_length: int | None = None,
    max_length: int | None = None,
    contour_length: int | None = None,
    source: str | None = None,
    workers: int | None = None,
    sheet: str | None = None,
    json: bool = False,
) -> None:
    """Make a task's data ready: generate ListOps and Pathfinder, see that the others' files are there.

    The same options give the same bytes, whatever the number of workers. What is there already is checked and
    kept. Options that are not given are the benchmark's.

    Args:
        task: A name that `flexformer data list` shows.
        root: Folder the data lives in; default $FLEXFORMER_DATA, else ~/.cache/flexformer/data.
        train: Examples to train on (listops, pathfinder, articles).
        validation: Examples to validate with (the same tasks).
        test: Examples to test with (the same tasks).
        seed: Of the set (the same tasks).
        min_length: Tokens an expression must exceed (listops).
        max_length: Tokens an expression must stay below (listops), or bytes read of a text.
        contour_length: Dashes of a contour (pathfinder).
        source: A Hugging Face datasets id instead of files (text, image, retrieval, articles).
        workers: Processes; default one for each core.
        sheet: Write a contact sheet, a PNG with pictures of each class, to this file (pathfinder, image).
        json: Print what was made as JSON.

    Example:
        flexformer data prepare pathfinder --root ~/data --train 20000 --sheet pathfinder.png
    """
    given: dict[str, Any] = {
        "train": train,
        "validation": validation,
        "test": test,
        "seed": seed,
        "min_length": min_length,
        "max_length": max_length,
        "contour_length": contour_length,
        "source": source,
    }
    built = tasks.build(task, root, **{name: value for name, value in given.items() if value is not None})
    screen = console()
    started = time.perf_counter()
    with _progress(screen, f"preparing {task}", hidden=json) as progress:
        built.prepare(progress, workers=workers)
    seconds = time.perf_counter() - started
    counts = {split: len(built.examples(split).labels) for split in SPLITS}
    written = None if sheet is None else str(contact_sheet(built, sheet))
    files = [str(path) for path in built.files()]
    if json:
        record = {"task": task, "counts": counts, "files": files, "seconds": round(seconds, 3), "sheet": written}
        print_json(record)
        return
    numbers = ", ".join(f"{count:,} {split}" for split, count in counts.items())
    where = built.files()[0].parent if files else source
    screen.print(f"{built.title}: {numbers} in {where} ({seconds:.1f} s).", soft_wrap=True)
    for note in built.describe().notes:
        screen.print(f"  {note}", soft_wrap=True)
    if written:
        screen.print(f"Contact sheet: {written}, {_sheet_order(built.name)}", soft_wrap=True)


@contextmanager
def _progress(screen: Console, title: str, hidden: bool) -> Iterator[Progress]:
    """A bar on a terminal; elsewhere a line now and then, so that a log shows that something goes on."""
    if hidden:
        yield silent
    elif screen.is_terminal:
        columns = (TextColumn("{task.description}"), BarColumn(), MofNCompleteColumn(), TimeRemainingColumn())
        with Bar(*columns, console=screen, transient=True) as bars:
            row = bars.add_task(title, total=None)
            yield lambda done, total: bars.update(row, completed=done, total=total)
    else:
        spoken = time.monotonic()

        def line(done: int, total: int) -> None:
            nonlocal spoken
            if time.monotonic() - spoken > _SECONDS_BETWEEN_LINES:
                spoken = time.monotonic()
                screen.print(f"{title}: {done:,} of {total:,}")

        yield line


def _sheet_order(name: str) -> str:
    return "not joined above, joined below." if name == "pathfinder" else "class by class."


def _print_datasets(screen: Console) -> None:
    table = Table(title="Sizes in the paper, and true ones", title_justify="left")
    for column in ("dataset", "task"):
        table.add_column(column)
    for split in SPLITS:
        table.add_column(f"{split}\npaper", justify="right")
        table.add_column("\ntrue", justify="right")
    table.add_column("note")
    for row in paper.DATASETS:
        cells = [cell for pair in zip(row.paper, map(_number, row.true), strict=True) for cell in pair]
        table.add_row(row.name, row.task or "–", *(cell or "–" for cell in cells), row.note)
    screen.print(table)


def _number(count: int | None) -> str | None:
    return None if count is None else f"{count:,}"


def _print_findings(screen: Console, findings: list[inspection.Finding], root: str) -> None:
    table = Table(title=f"Data in {root}", title_justify="left")
    for column in ("task", "state", "place", *SPLITS, "as published"):
        table.add_column(column, justify="right" if column in SPLITS else "left")
    for finding in findings:
        state = f"[{_COLOURS[finding.state]}]{finding.state}[/]"
        counts = [_number(finding.counts.get(split)) or "–" for split in SPLITS]
        published = {True: "yes", False: "no", None: "–"}[finding.published]
        table.add_row(finding.task, state, finding.place or "–", *counts, published)
    screen.print(table)
    for finding in findings:
        if finding.problem:
            screen.print(f"[{_COLOURS[finding.state]}]{finding.task}[/]: {finding.problem}", soft_wrap=True)
        for file, digest in finding.checksums.items():
            screen.print(f"{digest}  {file}", soft_wrap=True)
