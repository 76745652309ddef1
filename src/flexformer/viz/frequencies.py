"""Accuracy or perplexity, speed and memory against the number of frequencies."""

from __future__ import annotations

from collections.abc import Sequence
from statistics import mean
from typing import TYPE_CHECKING, Any

from .style import ACCENT, MUTED, PALETTE, new_figure, style, to_png, to_svg

if TYPE_CHECKING:
    from matplotlib.axes import Axes

PANELS = (
    ("test_accuracy", 100.0, "Test accuracy", "%"),
    ("test_bits_per_byte", 1.0, "Test bits per byte", "lower is better"),
    ("test_perplexity", 1.0, "Test perplexity", "lower is better"),
    ("steps_per_second", 1.0, "Training speed", "steps per second"),
    ("peak_memory", 2.0**-20, "Peak memory of a step", "MiB"),
)


def plot_frequencies(points: Sequence[dict[str, Any]], scale: str) -> dict[str, bytes]:
    """One panel for each thing that was measured, as PNG and SVG by file ending.

    Args:
        points: With `task`, `frequencies`, `head_dim`, `seed` and what the panels show; seeds are averaged, and
            drawn as dots where there are several.
        scale: The preset's name, for the caption.
    """
    with style():
        panels = [panel for panel in PANELS if any(point.get(panel[0]) is not None for point in points)]
        figure = new_figure(3.7 * len(panels), 3.6)
        lines = list(dict.fromkeys((point["task"], point["attention"]) for point in points))
        several = len({attention for _, attention in lines}) > 1
        grid = figure.subplots(1, len(panels), squeeze=False)[0]
        for axes, (field, factor, title, unit) in zip(grid, panels, strict=True):
            for line, colour in zip(lines, (ACCENT, *PALETTE), strict=False):
                known = [p for p in points if (p["task"], p["attention"]) == line and p.get(field) is not None]
                if known:
                    _line(axes, known, field, factor, colour, " ".join(line) if several else line[0])
            axes.set_xscale("log", base=2)
            counts = sorted({point["frequencies"] for point in points})
            axes.set_xticks(counts, [str(count) for count in counts])
            axes.set(title=title, xlabel="frequencies n", ylabel=unit)
            axes.set_ymargin(0.15)
        figure.axes[-1].legend()
        attention = ", ".join(dict.fromkeys(point["attention"] for point in points))
        widths = ", ".join(dict.fromkeys(f"{p['task']} {p['head_dim']}" for p in points))
        figure.suptitle(f"{attention}, {scale} scale; heads of {widths}", x=0.01, ha="left", fontsize=9, color=MUTED)
        return {"png": to_png(figure), "svg": to_svg(figure)}


def _line(axes: Axes, points: Sequence[dict[str, Any]], field: str, factor: float, colour: str, name: str) -> None:
    by_count: dict[int, list[float]] = {}
    for point in points:
        by_count.setdefault(point["frequencies"], []).append(factor * point[field])
    counts = sorted(by_count)
    axes.plot(counts, [mean(by_count[n]) for n in counts], "o-", color=colour, label=name)
    for n in counts:
        if len(by_count[n]) > 1:
            axes.plot([n] * len(by_count[n]), by_count[n], ".", color=colour, alpha=0.5)
