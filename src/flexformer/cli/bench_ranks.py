"""`flexformer bench ranks`: attention over a sequence that is divided over processes."""

from __future__ import annotations

import dataclasses
import time
from pathlib import Path
from typing import Any

from rich.table import Table

from flexformer import bench
from flexformer.bench.ranks import RanksOptions, measure_ranks
from flexformer.bench.ranks_page import NAMES, number, size
from flexformer.bench.record import load, to_json
from flexformer.cli.main import console
from flexformer.files import write_text


def ranks(
    lengths: tuple[int, ...] = (4096, 16384),
    ranks: tuple[int, ...] = (1, 2),
    heads: int = 8,
    dim: int = 64,
    attention: str = "flexformer-n",
    bandwidth: float = 12.5e9,
    latency: float = 2e-5,
    faster: float = 1000.0,
    threads: int = 1,
    rounds: int = 5,
    smoke: bool = False,
    output: Path = Path("results/ranks"),
    json: bool = False,
) -> None:
    """Divide a sequence over processes of this machine; say what a million tokens would cost on up to 512 of them.

    Times attention forward and backward on each number of ranks, counts the bytes they send, does the same for ring
    attention with softmax (forward), and puts what the formula of docs/scaling.md says beside it. Writes JSON.

    Args:
        lengths: Tokens of the whole sequence.
        ranks: Processes; 1 and 2 must be among them. More than there are cores get in each other's way.
        heads: Of the attention.
        dim: Width of a head.
        attention: A kernel attention.
        bandwidth: Bytes a second between the ranks that are foretold.
        latency: Seconds of a message between them.
        faster: How many times as fast as a core of this machine the second kind of foretold ranks computes.
        threads: Threads of each process.
        rounds: How often everything is timed.
        smoke: Run a small case that shows within seconds that everything works; its figures mean nothing.
        output: Folder for the JSON.
        json: Print the JSON instead of tables.

    Example:
        flexformer bench ranks --lengths [8192] --bandwidth 1.25e9
    """
    options = RanksOptions(lengths, ranks, heads, dim, attention, bandwidth, latency, faster, threads, rounds, smoke)
    if smoke:
        options = dataclasses.replace(options, lengths=(96,), heads=2, dim=8, rounds=2)
    load_before, started = load(), time.perf_counter()
    with console(errors=True).status("starting") as status:
        found = measure_ranks(options, lambda what, done, total: status.update(f"{what} ({done}/{total})"))
    given = {key: list(v) if isinstance(v, tuple) else v for key, v in dataclasses.asdict(options).items()}
    record = bench.new_record("ranks", given, found, time.perf_counter() - started, load_before)
    target = output / f"{bench.name_of('ranks', given)}.json"
    write_text(target, to_json(record))
    if json:
        print(to_json(record), end="")
        return
    screen = console()
    screen.print(_measured(record))
    screen.print(_foretold(record))
    screen.print(f"wrote {target}", soft_wrap=True)


def _measured(record: dict[str, Any]) -> Table:
    table = Table(title="measured here", title_justify="left")
    for heading in ("attention", "ranks", "N", "bytes sent", "by the formula", "ms", "by the formula"):
        table.add_column(heading, justify="left" if heading == "attention" else "right")
    for row in record["measurements"]:
        table.add_row(
            NAMES[row["row"]],
            str(row["ranks"]),
            str(row["length"]),
            f"{row['bytes_sent']:,}",
            f"{row['foretold_bytes']:,}",
            f"{1e3 * row['seconds']['median']:.1f}",
            f"{1e3 * row['foretold_seconds']:.1f}",
        )
    return table


def _foretold(record: dict[str, Any]) -> Table:
    table = Table(title="foretold: a million tokens, one layer, forward and backward", title_justify="left")
    for heading in ("form", "a rank is", "ranks", "sent", "sent by a ring", "tokens/s", "tokens/s of a ring"):
        table.add_column(heading, justify="left" if heading == "form" else "right")
    for row in record["foretold"]:
        kind = "such a core" if row["faster"] == 1 else f"{row['faster']:g} of them"
        speeds = (number(row["tokens_per_second"]), number(row["ring_tokens_per_second"]))
        sent = (size(row["bytes_sent"]), size(row["ring_bytes_sent"]))
        table.add_row(row["form"], kind, str(row["ranks"]), *sent, *speeds)
    return table
