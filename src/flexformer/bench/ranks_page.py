"""The figures of the page on scaling out, from the record of `flexformer bench ranks`."""

from __future__ import annotations

from typing import Any

from .figures import table
from .page import COMMANDS, OTHER_BLOCKS, Records, missing

RANKS = "ranks-1-thread"
NAMES = {"whole": "ours", "causal": "ours, causal", "ring": "ring softmax, forward"}


def checked(records: Records) -> str:
    """Bytes and seconds as measured and as foretold."""
    if RANKS not in records:
        return missing(RANKS)
    lines = [
        [
            NAMES[row["row"]],
            str(row["ranks"]),
            str(row["length"]),
            f"{row['bytes_sent']:,}",
            f"{row['foretold_bytes']:,}",
            f"{1e3 * row['seconds']['median']:.0f}",
            f"{1e3 * row['foretold_seconds']:.0f}",
        ]
        for row in records[RANKS]["measurements"]
    ]
    head = ["", "ranks", "N", "bytes sent", "by the formula", "ms", "by the formula"]
    return table(head, lines)


def link(records: Records) -> str:
    """What the formula was given."""
    if RANKS not in records:
        return missing(RANKS)
    found, options = records[RANKS]["link"], records[RANKS]["options"]
    return (
        f"Between two processes of this machine gloo moves {found['bandwidth'] / 1e9:.1f} GB a second with a latency "
        f"of {1e6 * found['latency']:.0f} microseconds. The tables below assume {options['bandwidth'] / 1e9:g} GB a "
        f"second and {1e6 * options['latency']:g} microseconds, as between machines with a fast network."
    )


def foretold(faster: bool, form: str) -> Any:
    """A million tokens on many ranks."""

    def block(records: Records) -> str:
        if RANKS not in records:
            return missing(RANKS)
        chosen = [row for row in records[RANKS]["foretold"] if (row["faster"] > 1) == faster and row["form"] == form]
        lines = [
            [
                str(row["ranks"]),
                size(row["bytes_sent"]),
                size(row["ring_bytes_sent"]),
                number(row["tokens_per_second"]),
                number(row["ring_tokens_per_second"]),
                f"{100 * row['exchanging']:.1f} %",
            ]
            for row in chosen
        ]
        head = ["ranks", "sent, ours", "sent, ring", "tokens/s, ours", "tokens/s, ring", "ours exchanging"]
        return table(head, lines)

    return block


def size(count: float) -> str:
    return f"{count / 2**20:,.2f} MiB" if count < 100 * 2**20 else f"{count / 2**20:,.0f} MiB"


def number(value: float) -> str:
    digits = f"{value:.2g}" if value < 10 else f"{float(f'{value:.3g}'):,.0f}"
    return digits


# So that one command writes either page.
COMMANDS[RANKS] = "flexformer bench ranks"
OTHER_BLOCKS |= {
    "ranks-checked": checked,
    "ranks-link": link,
    "ranks-whole": foretold(False, "whole"),
    "ranks-causal": foretold(False, "causal"),
    "ranks-whole-faster": foretold(True, "whole"),
    "ranks-causal-faster": foretold(True, "causal"),
}
