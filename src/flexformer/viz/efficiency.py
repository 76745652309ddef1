"""Time and memory of a model: over lengths, and of every attention beside its accuracy."""

from __future__ import annotations

import textwrap
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any

from .bench import LOOKS, OTHERS
from .style import ACCENT, MUTED, PALETTE, label_ends, new_figure, plain_ticks, style, to_png, to_svg

if TYPE_CHECKING:
    from matplotlib.axes import Axes

OURS = "flexformer"
SMALLEST_DOT, LARGEST_DOT = 25.0, 420.0


def plot_efficiency(
    lengths: Sequence[dict[str, Any]],
    attentions: Sequence[dict[str, Any]],
    accuracy: Mapping[str, float],
    task: str,
    caption: str,
) -> dict[str, bytes]:
    """PNG and SVG, by file ending.

    Args:
        lengths: Measurements with `row`, `length`, `seconds` and `memory`, over lengths.
        attentions: The same at one length, of every attention.
        accuracy: By attention, in per cent.
        task: Whose accuracy that is.
        caption: The scale.
    """
    with style():
        figure = new_figure(12.6, 4.0)
        left, middle, right = figure.subplots(1, 3, width_ratios=(1, 1, 1.35))
        _growth(left, lengths, "seconds", "median", 1e3, "(a) Forward pass", "ms")
        _growth(middle, lengths, "memory", "peak_bytes", 2.0**-20, "(a) Peak memory", "MiB")
        if attentions:
            _trade(right, attentions, accuracy, task)
        else:
            right.set_axis_off()
        figure.suptitle(caption, x=0.01, ha="left", fontsize=9, color=MUTED)
        return {"png": to_png(figure), "svg": to_svg(figure)}


def _growth(
    axes: Axes, measured: Sequence[dict[str, Any]], field: str, part: str, unit: float, title: str, name: str
) -> None:
    ends = []
    axes.set(xscale="log", yscale="log", title=title, xlabel="N tokens", ylabel=name)
    for row in dict.fromkeys(m["row"] for m in measured):
        look = LOOKS.get(row, OTHERS)
        points = [
            (m["length"], unit * m[field][part]) for m in measured if m["row"] == row and m[field] and m[field][part]
        ]
        if points:
            axes.plot(
                *zip(*sorted(points), strict=True), look.line, marker="o", color=look.colour, linewidth=look.width
            )
            ends.append((*max(points), row, look.colour))
    ticks = sorted({m["length"] for m in measured})
    axes.set_xticks(ticks, [f"{n // 1024}k" if n >= 1024 and n % 1024 == 0 else str(n) for n in ticks])
    plain_ticks(axes)
    label_ends(axes, ends)


def _trade(axes: Axes, measured: Sequence[dict[str, Any]], accuracy: Mapping[str, float], task: str) -> None:
    """Speed against accuracy, dots as large as memory; where few accuracies are known, bars of speed with memory."""
    known = [m for m in measured if m["seconds"] and m["memory"] and m["memory"]["peak_bytes"]]
    axes.set(title="(b) Training step of every attention", xlabel="steps per second")
    with_accuracy = [m for m in known if m["row"] in accuracy]
    if 2 * len(with_accuracy) < len(known) or len(with_accuracy) < 2:
        _bars(axes, sorted(known, key=lambda m: m["seconds"]["median"]))
        return
    largest = max(m["memory"]["peak_bytes"] for m in known)
    for m in with_accuracy:
        size = SMALLEST_DOT + (LARGEST_DOT - SMALLEST_DOT) * m["memory"]["peak_bytes"] / largest
        x, y = 1 / m["seconds"]["median"], accuracy[m["row"]]
        axes.scatter(x, y, s=size, color=_colour(m), alpha=0.65, linewidths=0)
        axes.annotate(m["row"], (x, y), xytext=(5, 4), textcoords="offset points", fontsize=7.5)
    axes.set_ylabel(f"{task}, accuracy in % (size: peak memory)")
    axes.margins(0.15)
    if left_out := [m["row"] for m in known if m["row"] not in accuracy]:
        text = textwrap.fill(f"without an accuracy: {', '.join(left_out)}", 60)
        axes.text(0.02, 0.02, text, transform=axes.transAxes, fontsize=7, color=MUTED)


def _bars(axes: Axes, measured: Sequence[dict[str, Any]]) -> None:
    """The fastest on top, peak memory beside each bar."""
    for y, m in enumerate(measured):
        x = 1 / m["seconds"]["median"]
        axes.barh(y, x, color=_colour(m), alpha=0.8, height=0.7)
        peak = f"{m['memory']['peak_bytes'] / 2**20:,.0f} MiB"
        axes.annotate(peak, (x, y), xytext=(4, 0), textcoords="offset points", va="center", fontsize=7.5, color=MUTED)
    axes.set_yticks(range(len(measured)), [m["row"] for m in measured], fontsize=8)
    axes.set_ylim(len(measured) - 0.4, -0.6)
    axes.set_xmargin(0.16)
    axes.grid(axis="y", visible=False)


def _colour(measured: Mapping[str, Any]) -> str:
    return ACCENT if measured["row"].startswith(OURS) else PALETTE[0]
