"""Benchmark records as tables for the terminal."""

from __future__ import annotations

from typing import Any

from rich.console import Console
from rich.table import Table

from flexformer.bench.scaling import STEADY, drift

Record = dict[str, Any]

SOFTMAX, OURS = "softmax", "flexformer-n"
BASES = ("softmax-unfused-dropout", "softmax-unfused", SOFTMAX)


def show(screen: Console, record: Record) -> None:
    """Print what a run found."""
    {"attention": _attention, "scaling": _scaling, "decode": _decode, "model": _model}[record["bench"]](screen, record)


def _attention(screen: Console, record: Record) -> None:
    for direction in record["options"]["passes"]:
        screen.print(_ratios(record, direction))
    _notes(screen, record["measurements"])
    for package, reason in record["missing"].items():
        screen.print(f"{package}: {reason}", soft_wrap=True, style="dim")
    if (times := drift(record)) > STEADY:
        screen.print(
            f"The machine was {times:.1f} times slower at one length than at another: compare rows, not lengths, or "
            "measure again while nothing else runs",
            soft_wrap=True,
            style="yellow",
        )


def _scaling(screen: Console, record: Record) -> None:
    _attention(screen, record)
    table = Table(title=f"Growth from N = {record['options']['fit_from']} on: cost ~ N^power", title_justify="left")
    for column in ("row", "pass", "time", "memory"):
        table.add_column(column, justify="left" if column in ("row", "pass") else "right")
    for fit in record["slopes"]:
        powers = ["too few lengths" if p is None else f"{p:.2f}" for p in (fit["time"], fit["memory"])]
        table.add_row(fit["row"], fit["pass"], *powers)
    screen.print(table)
    million = record.get("million")
    if million and million.get("peak_bytes") is not None:
        share = million["peak_bytes"] / million["tensors_bytes"]
        screen.print(
            f"{OURS} forward over {million['length']} tokens, one head: peak {_mib(million['peak_bytes'])}, "
            f"{share:.2f} times q, k, v and out together"
        )
    elif million:
        screen.print(f"{OURS} over {million['length']} tokens: {million.get('note') or 'memory not measured'}")


def _ratios(record: Record, direction: str) -> Table:
    """How many times as fast as fused softmax every row is; at the longest length also what it took."""
    found = {(m["row"], m["length"]): m for m in record["measurements"] if m["pass"] == direction}
    rows = list(dict.fromkeys(row for row, _ in found))
    lengths = sorted({length for _, length in found})
    has_softmax = any(row == SOFTMAX for row in rows)
    what = "times as fast as softmax (SDPA)" if has_softmax else "ms"
    title = f"{direction}: {what}; at the last length also ms, spread and peak memory"
    table = Table(title=title, title_justify="left")
    table.add_column("row", no_wrap=True)
    for length in lengths:
        table.add_column(str(length), justify="right")
    for column in ("ms", "quartiles", "peak"):
        table.add_column(column, justify="right", no_wrap=True)
    for row in rows:
        cells = [_cell(found.get((row, length)), found.get((SOFTMAX, length)), has_softmax) for length in lengths]
        last = found.get((row, lengths[-1])) or {"seconds": None, "memory": None}
        table.add_row(row, *cells, *_details(last), style="bold" if row == OURS else None)
    return table


def _cell(this: Record | None, softmax: Record | None, relative: bool) -> str:
    if this is None or not this["seconds"]:
        return "" if this is None else (this["note"] or "").partition(":")[0]
    if not relative:
        return _ms(this["seconds"]["median"])
    if softmax is None or not softmax["seconds"]:
        return "-"
    return f"{softmax['seconds']['median'] / this['seconds']['median']:.2f}x"


def _details(this: Record) -> tuple[str, str, str]:
    seconds, memory = this["seconds"], this["memory"]
    peak = _mib(memory["peak_bytes"]) if memory and memory["peak_bytes"] is not None else ""
    if not seconds:
        return "", "", peak
    return _ms(seconds["median"]), f"{_ms(seconds['lower'])}-{_ms(seconds['upper'])}", peak


def _decode(screen: Console, record: Record) -> None:
    found = {(m["row"], m["context"]): m for m in record["measurements"]}
    contexts = sorted({context for _, context in found})
    table = Table(title="One more token: ms after a context of ... tokens, and what is kept", title_justify="left")
    table.add_column("row", no_wrap=True)
    for context in contexts:
        table.add_column(str(context), justify="right")
    table.add_column("last / first", justify="right")
    table.add_column(f"kept at {contexts[-1]}", justify="right")
    for row in dict.fromkeys(row for row, _ in found):
        these = [found[row, context] for context in contexts]
        times = [m["seconds"]["median"] if m["seconds"] else None for m in these]
        cells = ["failed" if t is None else f"{1e3 * t:.3f}" for t in times]
        growth = f"{times[-1] / times[0]:.2f}x" if times[0] and times[-1] else ""
        kept = _mib(these[-1]["state_bytes"])
        table.add_row(row, *cells, growth, kept, style="bold" if row == OURS else None)
    screen.print(table)
    _notes(screen, record["measurements"])


def _model(screen: Console, record: Record) -> None:
    found = {m["row"]: m for m in record["measurements"]}
    title = "A training step; compared with unfused softmax with and without dropout, and with SDPA"
    table = Table(title=title, title_justify="left")
    table.add_column("row", no_wrap=True)
    for column in ("seconds", "quartiles", "times as fast", "peak MiB", "memory saved"):
        table.add_column(column, justify="right")
    for row, this in found.items():
        seconds, memory = this["seconds"], this["memory"]
        cells, peaks = [""] * 3, [""] * 2
        if seconds:
            cells = [
                f"{seconds['median']:.3f}",
                f"{seconds['lower']:.3f}-{seconds['upper']:.3f}",
                " / ".join(_speed(found.get(base), this) for base in BASES),
            ]
        if memory and memory["peak_bytes"] is not None:
            saved = " / ".join(_saved(found.get(base), this) for base in BASES)
            peaks = [f"{memory['peak_bytes'] / 2**20:.0f}", saved]
        table.add_row(row, *cells, *peaks, style="bold" if row == OURS else None)
    screen.print(table)
    _notes(screen, record["measurements"])


def _speed(base: Record | None, this: Record) -> str:
    if base is None or not base["seconds"]:
        return "-"
    return f"{base['seconds']['median'] / this['seconds']['median']:.2f}x"


def _saved(base: Record | None, this: Record) -> str:
    if base is None or not base["memory"] or not base["memory"]["peak_bytes"]:
        return "-"
    return f"{1 - this['memory']['peak_bytes'] / base['memory']['peak_bytes']:.0%}"


def _notes(screen: Console, measurements: list[Record]) -> None:
    for this in measurements:
        if this["note"]:
            where = f"N = {this['length']}" if "length" in this else f"context {this['context']}"
            direction = f", {this['pass']}" if "pass" in this else ""
            screen.print(f"{this['row']}, {where}{direction}: {this['note']}", soft_wrap=True, style="dim")


def _ms(seconds: float) -> str:
    return f"{1e3 * seconds:.3g}" if seconds < 1 else f"{1e3 * seconds:.0f}"


def _mib(size: float) -> str:
    return f"{size / 2**20:.1f} MiB"
