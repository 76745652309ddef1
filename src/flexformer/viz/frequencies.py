"""Accuracy or perplexity, speed and memory against the number of frequencies."""

from __future__ import annotations

from collections.abc import Sequence
from statistics import mean
from typing import TYPE_CHECKING, Any

from .style import MUTED, colours, new_figure, style, to_png, to_svg

if TYPE_CHECKING:
    from matplotlib.axes import Axes

PANELS = (
    ("test_accuracy", 100.0, "test accuracy", "%"),
    ("test_bits_per_byte", 1.0, "test bits per byte", "lower is better"),
    ("test_perplexity", 1.0, "test perplexity", "lower is better"),
    ("steps_per_second", 1.0, "training speed", "steps per second"),
    ("peak_memory", 2.0**-20, "peak memory", "MiB"),
)
FROM_ZERO = ("steps_per_second", "peak_memory")  # where a part of the axis would make little look like much


def plot_frequencies(points: Sequence[dict[str, Any]], scale: str) -> dict[str, bytes]:
    """A line of panels for each task, one for each thing that was measured, as PNG and SVG by file ending.

    Args:
        points: With `task`, `attention`, `frequencies`, `head_dim`, `seed` and what the panels show; seeds are
            averaged, and drawn as dots where there are several.
        scale: The preset's name, for the caption.
    """
    with style():
        tasks = {task: [p for p in points if p["task"] == task] for task in dict.fromkeys(p["task"] for p in points)}
        panels = {
            task: [panel for panel in PANELS if any(p.get(panel[0]) is not None for p in own)]
            for task, own in tasks.items()
        }
        figure = new_figure(3.7 * max(map(len, panels.values())), 0.6 + 2.9 * len(tasks))
        grid = figure.subplots(len(tasks), max(map(len, panels.values())), squeeze=False)
        chosen = colours(list(dict.fromkeys(point["attention"] for point in points)))
        for line, (task, own) in zip(grid, tasks.items(), strict=True):
            for axes in line[len(panels[task]) :]:
                axes.set_axis_off()
            for axes, (field, factor, title, unit) in zip(line, panels[task], strict=False):
                for attention, colour in chosen.items():
                    known = [p for p in own if p["attention"] == attention and p.get(field) is not None]
                    if known:
                        _line(axes, known, field, factor, colour, attention)
                axes.set_xscale("log", base=2)
                counts = sorted({point["frequencies"] for point in own})
                axes.set_xticks(counts, [str(count) for count in counts])
                axes.set(title=f"{task}: {title}", xlabel=f"frequencies n, heads of {own[0]['head_dim']}", ylabel=unit)
                axes.set_ymargin(0.15)
                if field in FROM_ZERO:
                    axes.set_ylim(bottom=0)
        handles = {h.get_label(): h for axes in figure.axes for h in axes.get_lines() if h.get_label() in chosen}
        figure.legend(handles=list(handles.values()), loc="outside lower center", ncols=len(handles))
        seeds = len({point["seed"] for point in points})
        caption = f"Number of frequencies, {scale} scale; {'one seed' if seeds == 1 else f'{seeds} seeds'}"
        figure.suptitle(caption, x=0.01, ha="left", fontsize=9, color=MUTED)
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
