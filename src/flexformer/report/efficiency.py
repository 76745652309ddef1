"""The sections about speed and memory: records of `flexformer bench`, and the demo's own measurements."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

from .chart import Panel, Series, bar_chart, figure
from .html import Markup, details, join, table, tag
from .scale import length as short
from .sources import Bench

Measured = dict[str, Any]

TITLES = {
    "attention": "Attention, side by side",
    "scaling": "How time and memory grow with the length",
    "decode": "One more token after long contexts",
    "model": "A training step of a whole model",
    "vocabulary": "The vocabulary's part of a step",
}
PASSES = {"forward": "forward pass", "forward+backward": "forward and backward"}
SHOWN = ("softmax", "linear", "flexformer-s", "flexformer-n", "flexformer-c", "performer", "limit")
"""Rows of a long comparison that are drawn; the table beside it has all."""


def section(benches: Sequence[Bench]) -> Markup:
    return join(
        tag("section", tag("h3", _title(bench)), tag("p", _setting(bench.record), class_="note"), _drawn(bench.record))
        for bench in benches
    )


def _title(bench: Bench) -> str:
    kind = str(bench.record["bench"])
    return TITLES.get(kind, kind)


def _drawn(record: Measured) -> Markup:
    kind, measured = record["bench"], list(record["measurements"])
    if kind == "decode":
        found = [{**m, "length": m["context"]} for m in measured]
        return _charts(
            found, [("Time of one more token", _milliseconds, "ms"), ("Kept of the context", _state, "MiB")], "context"
        )
    if kind == "model":
        return _bars(measured)
    if kind in ("attention", "scaling"):
        return join(_pass(measured, direction) for direction in dict.fromkeys(m["pass"] for m in measured))
    return _table(measured)


def _pass(measured: list[Measured], direction: str) -> Markup:
    own = [m for m in measured if m["pass"] == direction]
    what = PASSES.get(direction, direction)
    drawn = [m for m in own if m["row"] in SHOWN] or own
    charts = _charts(drawn, [(f"Time, {what}", _milliseconds, "ms"), (f"Peak memory, {what}", _peak, "MiB")], "length")
    return join([charts, details(f"All figures, {what}", _table(own))])


def _charts(
    found: list[Measured], wanted: Sequence[tuple[str, Callable[[Measured], float | None], str]], x_label: str
) -> Markup:
    lengths = sorted({float(m["length"]) for m in found})
    panels = []
    for title, value, unit in wanted:
        series = []
        for row in dict.fromkeys(m["row"] for m in found):
            points = [(float(m["length"]), v) for m in found if m["row"] == row and (v := value(m)) is not None]
            if points:
                series.append(Series(str(row), sorted(points)))
        if series:
            ticks = lengths[:: -(-len(lengths) // 8)]
            panels.append(Panel(title, x_label, unit, series, True, True, x_ticks=ticks, markers=True, x_format=short))
    return figure(panels) if panels else tag("p", "Nothing was measured.", class_="note")


def _bars(measured: list[Measured]) -> Markup:
    timed = sorted((m for m in measured if m["seconds"]), key=lambda m: m["seconds"]["median"])
    charts = [
        tag(
            "div",
            tag("h4", "Time of a training step"),
            bar_chart([(m["row"], m["seconds"]["median"]) for m in timed], "seconds", lambda v: f"{v:.2f}"),
        )
    ]
    peaks = [(m["row"], peak) for m in timed if (peak := _peak(m)) is not None]
    if peaks:
        memory = bar_chart(peaks, "MiB above the model", lambda v: f"{v:,.0f}")
        charts.append(tag("div", tag("h4", "Peak memory of a training step"), memory))
    return tag("figure", tag("div", *charts, class_="panels"))


def _table(measured: list[Measured]) -> Markup:
    """Times of all rows at all lengths, or why there is none."""
    places = sorted({m["length"] for m in measured if "length" in m})
    if not places:
        rows = [[str(m.get("row", "")), _cell(m)] for m in measured]
        return table(["", "ms"], rows)
    found = {(m["row"], m["length"]): m for m in measured}
    rows = [
        [row, *(_cell(found.get((row, place))) for place in places)]
        for row in dict.fromkeys(m["row"] for m in measured)
    ]
    return table(["ms", *(short(place) for place in places)], rows)


def _cell(m: Measured | None) -> str:
    if m is None:
        return "–"
    value = _milliseconds(m)
    return (
        str(m.get("note") or "–").partition(":")[0]
        if value is None
        else f"{value:,.3g}"
        if value < 1000
        else f"{value:,.0f}"
    )


def _milliseconds(m: Measured) -> float | None:
    return 1e3 * m["seconds"]["median"] if m.get("seconds") else None


def _peak(m: Measured) -> float | None:
    peak = (m.get("memory") or {}).get("peak_bytes")
    return peak / 2**20 if peak else None


def _state(m: Measured) -> float | None:
    return m["state_bytes"] / 2**20 if m.get("state_bytes") else None


def _setting(record: Measured) -> str:
    options, machine = record.get("options") or {}, record.get("machine") or {}
    parts = []
    if "is_causal" in options:
        parts.append("causal" if options["is_causal"] else "bidirectional")
    if "head_dim" in options:
        parts.append(f"batch {options.get('batch', 1)}, {options.get('heads')} heads of {options['head_dim']}")
    parts += [str(options[key]) for key in ("dtype",) if key in options]
    threads = record.get("threads")
    if threads:
        parts.append("1 thread" if threads == 1 else f"{threads} threads")
    if machine.get("cpu"):
        parts.append(str(machine["cpu"]))
    return " · ".join(parts)
