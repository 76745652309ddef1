"""`flexformer bench vocabulary`: what the adaptive vocabulary of language models saves."""

from __future__ import annotations

import dataclasses
import importlib
import time
from pathlib import Path
from typing import Any

from rich.table import Table

from flexformer import bench
from flexformer.bench.record import load, to_json
from flexformer.bench.vocabulary import VocabularyOptions, measure_vocabulary
from flexformer.cli.main import console
from flexformer.files import write_text

HEADINGS = ("vocabulary", "parameters", "ms", "peak MiB")


def vocabulary(
    words: int = 267_744,
    width: int = 512,
    cutoffs: tuple[int, ...] = (20_000, 60_000),
    tokens: int = 512,
    threads: int = 1,
    rounds: int = 5,
    smoke: bool = False,
    output: Path = Path("results/vocabulary"),
    json: bool = False,
) -> None:
    """Compare ways to score a block of text against a large vocabulary: time and peak memory, forward and backward.

    Rows: adaptive computes only the bands of rarer words that occur; adaptive-in-full the same distribution over all
    words; tied one softmax over full-width vectors of all words. Writes JSON and a table.

    Args:
        words: Size of the vocabulary; WikiText-103's by default.
        width: Of the model; the paper's small one by default.
        cutoffs: Where bands begin.
        tokens: Of the block.
        threads: Threads that torch may use.
        rounds: How often everything takes its turn.
        smoke: Run a small case that shows within seconds that everything works; its figures mean nothing.
        output: Folder for the files.
        json: Print the JSON instead of a table.

    Example:
        flexformer bench vocabulary --tokens 2048
    """
    importlib.import_module("transformers")  # where it is missing, say so before anything is measured
    options = VocabularyOptions(words, width, cutoffs, tokens, threads, rounds, smoke=smoke)
    if smoke:
        options = dataclasses.replace(options, words=5000, width=32, cutoffs=(500, 2000), tokens=64, rounds=2)
    load_before, started = load(), time.perf_counter()
    with console(errors=True).status("starting") as status:
        found = measure_vocabulary(options, lambda what, done, total: status.update(f"{what} ({done}/{total})"))
    given = {key: list(v) if isinstance(v, tuple) else v for key, v in dataclasses.asdict(options).items()}
    record = bench.new_record("vocabulary", given, found, time.perf_counter() - started, load_before)
    target = output / f"{bench.name_of('vocabulary', given)}.json"
    write_text(target, to_json(record))
    write_text(target.with_suffix(".md"), markdown(record))
    if json:
        print(to_json(record), end="")
        return
    screen = console()
    screen.print(_table(record))
    screen.print(f"wrote {target} and {target.with_suffix('.md').name}", soft_wrap=True)


def markdown(record: dict[str, Any]) -> str:
    """The table of a record, for pages."""
    lines = [HEADINGS, ("---", "---:", "---:", "---:"), *_rows(record)]
    table = "\n".join(f"| {' | '.join(cells)} |" for cells in lines)
    return f"### {_title(record)}\n\n{table}\n\n{_title(record)}; {record['options']['threads']} thread(s).\n"


def _table(record: dict[str, Any]) -> Table:
    table = Table(title=_title(record), title_justify="left")
    for heading in HEADINGS:
        table.add_column(heading, justify="left" if heading == HEADINGS[0] else "right")
    for cells in _rows(record):
        table.add_row(*cells)
    return table


def _title(record: dict[str, Any]) -> str:
    options = record["options"]
    return f"{options['tokens']:,} tokens against {options['words']:,} words, forward and backward"


def _rows(record: dict[str, Any]) -> list[tuple[str, ...]]:
    rows: list[tuple[str, ...]] = []
    for row in record["measurements"]:
        name, parameters = row["row"], f"{row['parameters']:,}"
        if row["note"]:
            rows.append((name, parameters, row["note"], ""))
            continue
        peak = "–" if row["peak_bytes"] is None else f"{row['peak_bytes'] / 2**20:,.0f}"
        rows.append((name, parameters, f"{1000 * row['seconds']['median']:,.0f}", peak))
    return rows
