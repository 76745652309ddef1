"""Plots of benchmark records."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from itertools import pairwise
from typing import TYPE_CHECKING, Any, NamedTuple

from .style import ACCENT, GRID, INK, MUTED, PALETTE, label_ends, new_figure, plain_ticks, style, to_png

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

Record = dict[str, Any]

OURS = "flexformer-n"
LIMIT = "limit"


class Look(NamedTuple):
    colour: str
    line: str = "-"
    width: float = 1.7


LOOKS = {
    OURS: Look(ACCENT, width=2.6),
    "flexformer-s": Look(ACCENT, "--"),
    "flexformer-c": Look(ACCENT, "-."),
    "flexformer-c-pairs": Look("#e39aa4", "-."),
    "flexformer-n-whole": Look("#e39aa4"),
    LIMIT: Look(INK, ":"),
    "softmax": Look(PALETTE[0], width=2.2),
    "softmax-unfused": Look(PALETTE[0], "--"),
    "softmax-unfused-dropout": Look(PALETTE[0]),
    "softmax-preallocated": Look(PALETTE[0], "--"),
    "linear": Look(PALETTE[1]),
    "performer-pytorch": Look(PALETTE[2]),
    "fast-transformers-favor": Look(PALETTE[4]),
    "fast-transformers-elu": Look(PALETTE[4], "--"),
    "linear-attention-transformer": Look(PALETTE[5]),
    "flash-linear-attention-naive": Look(PALETTE[6]),
}
OTHERS = Look("#b4bfc7", width=1.0)


def plot_of(record: Record) -> bytes:
    """The plot of a record of `flexformer bench`, as PNG."""
    draw = {"attention": _attention, "scaling": _scaling, "decode": _decode, "model": _model}[record["bench"]]
    with style():
        return to_png(draw(record))


def _attention(record: Record) -> Figure:
    figure = new_figure(11, 4.6)
    passes = record["options"]["passes"]
    for axes, direction in zip(figure.subplots(1, len(passes), squeeze=False)[0], passes, strict=True):
        found = [m for m in record["measurements"] if m["pass"] == direction and m["seconds"]]
        _lines(axes, found, lambda m: 1e3 * m["seconds"]["median"], spread=True)
        axes.set(title=f"Time of {_in_words(direction)}", xlabel="length N", ylabel="ms")
    figure.suptitle(_setting(record), x=0.01, ha="left", fontsize=9, color=MUTED)
    return figure


def _scaling(record: Record) -> Figure:
    figure = new_figure(11, 4.6)
    passes = record["options"]["passes"]
    direction = passes[-1]
    found = [m for m in record["measurements"] if m["pass"] == direction and m["row"] != LIMIT]
    left, right = figure.subplots(1, 2)
    _lines(left, [m for m in found if m["seconds"]], lambda m: 1e3 * m["seconds"]["median"], spread=True)
    left.set(title=f"Time of {_in_words(direction)}", xlabel="length N", ylabel="ms")
    known = [m for m in found if m["memory"] and m["memory"]["peak_bytes"]]
    _lines(right, known, lambda m: m["memory"]["peak_bytes"] / 2**20)
    right.set(title=f"Peak memory of {_in_words(direction)}", xlabel="length N", ylabel="MiB above inputs")
    figure.suptitle(_setting(record), x=0.01, ha="left", fontsize=9, color=MUTED)
    return figure


def _decode(record: Record) -> Figure:
    figure = new_figure(11, 4.6)
    left, right = figure.subplots(1, 2)
    found = [{**m, "length": m["context"]} for m in record["measurements"] if m["seconds"]]
    _lines(left, found, lambda m: 1e3 * m["seconds"]["median"], spread=True)
    left.set(title="Time of one more token", xlabel="context", ylabel="ms")
    _lines(right, found, lambda m: m["state_bytes"] / 2**20)
    right.set(title="What is kept of the context", xlabel="context", ylabel="MiB")
    figure.suptitle(_setting(record), x=0.01, ha="left", fontsize=9, color=MUTED)
    return figure


def _model(record: Record) -> Figure:
    found = sorted((m for m in record["measurements"] if m["seconds"]), key=lambda m: -m["seconds"]["median"])
    figure = new_figure(11, 1.2 + 0.27 * max(len(found), 3))
    left, right = figure.subplots(1, 2, sharey=True)
    _bars(left, found, lambda m: m["seconds"]["median"])
    left.set(title="Time of a training step", xlabel="seconds")
    known = [m if m["memory"] else {**m, "memory": {"peak_bytes": None}} for m in found]
    _bars(right, known, lambda m: (m["memory"]["peak_bytes"] or 0) / 2**20)
    right.set(title="Peak memory of a training step", xlabel="MiB above the model")
    figure.suptitle(_setting(record), x=0.01, ha="left", fontsize=9, color=MUTED)
    return figure


def _lines(axes: Axes, found: Sequence[Record], value: Callable[[Record], float], spread: bool = False) -> None:
    """One line to a row over lengths, both scales logarithmic; rows without a look of their own stay behind in grey."""
    axes.set(xscale="log", yscale="log")
    rows = list(dict.fromkeys(m["row"] for m in found))
    longest = max((m["length"] for m in found), default=0)
    ends = []
    for row in sorted(rows, key=lambda row: (row in LOOKS, row == OURS)):
        points = sorted(((m["length"], value(m), m) for m in found if m["row"] == row), key=lambda point: point[0])
        look = LOOKS.get(row, OTHERS)
        x, y = [p[0] for p in points], [p[1] for p in points]
        marker = "o" if row in LOOKS and row != LIMIT else ""
        axes.plot(x, y, look.line, color=look.colour, linewidth=look.width, marker=marker)
        if spread and row in LOOKS:
            lower, upper = ([1e3 * p[2]["seconds"][edge] for p in points] for edge in ("lower", "upper"))
            axes.fill_between(x, lower, upper, color=look.colour, alpha=0.15, linewidth=0)
        if row in LOOKS:  # where a row was skipped beyond some length, its name stands at the height it had reached
            ends.append((longest, y[-1], row, look.colour))
    if rows:
        ticks = sorted({m["length"] for m in found})
        crowded = {tick for tick, following in pairwise(ticks) if following < 1.4 * tick}
        axes.set_xticks(ticks, ["" if tick in crowded else _short(tick) for tick in ticks])
        axes.set_xlim(ticks[0] * 0.9, ticks[-1] * 1.1)
        plain_ticks(axes)
    if not LOOKS.keys() >= set(rows):
        axes.plot([], [], color=OTHERS.colour, linewidth=OTHERS.width, label="other attentions of this package")
        axes.legend(loc="best")
    axes.figure.canvas.draw()  # so that limits are final before names are placed by them
    label_ends(axes, ends)


def _bars(axes: Axes, found: Sequence[Record], value: Callable[[Record], float]) -> None:
    names, values = [m["row"] for m in found], [value(m) for m in found]
    colours = [LOOKS[name].colour if name in LOOKS else OTHERS.colour for name in names]
    bars = axes.barh(names, values, color=colours, height=0.68)
    axes.bar_label(bars, [_number(v) if v else "not measured" for v in values], padding=4, fontsize=8.5)
    axes.grid(axis="y", visible=False)
    axes.grid(axis="x", color=GRID)
    axes.spines["left"].set_visible(False)
    axes.tick_params(axis="y", length=0)
    axes.margins(x=0.14)


def _number(value: float) -> str:
    return f"{value:,.0f}" if value >= 100 else f"{value:.3g}"


def _in_words(direction: str) -> str:
    return {"forward": "a forward pass", "forward+backward": "forward and backward"}.get(direction, direction)


def _short(length: int) -> str:
    return f"{length // 1024}k" if length >= 1024 and length % 1024 == 0 else str(length)


def _setting(record: Record) -> str:
    options, machine = record["options"], record["machine"]
    parts = []
    if "is_causal" in options:
        parts.append("causal" if options["is_causal"] else "bidirectional")
    if record["bench"] == "model":
        parts.append(f"{_count(options['pairs'], 'pair')} of {options['length']} bytes")
        parts.append(_count(options["layers"], "layer"))
    if "dtype" in options:
        parts.append(options["dtype"])
    if "head_dim" in options:
        parts.append(f"batch {options['batch']}, {options['heads']} heads of {options['head_dim']}")
    return " · ".join([*parts, _count(record["threads"], "thread"), machine["cpu"]])


def _count(number: int, noun: str) -> str:
    return f"{number} {noun}" if number == 1 else f"{number} {noun}s"
