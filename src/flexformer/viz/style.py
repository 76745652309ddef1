"""One look for all plots."""

from __future__ import annotations

import io
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

INK, MUTED, GRID = "#1b2733", "#5f6f7d", "#e3e8ec"

# Distinct for colour-blind readers too, after Okabe and Ito; the first is ours wherever it is among others.
ACCENT = "#d1495b"
PALETTE = ("#0072b2", "#009e73", "#e69f00", "#56b4e9", "#8c6bb1", "#7a5c3e", "#cc79a7", "#4c5b61")
OWN = {
    "flexformer-n": ACCENT,
    "flexformer-c": PALETTE[4],
    "flexformer-s": PALETTE[2],
    "softmax": PALETTE[0],
    "hedgehog": PALETTE[1],
}
"""attention -> its colour wherever attentions are lines"""

SETTINGS: dict[str, Any] = {
    "figure.dpi": 130,
    "savefig.dpi": 130,
    "svg.hashsalt": "flexformer",  # names inside of an SVG are random otherwise
    "figure.facecolor": "white",
    "figure.constrained_layout.use": True,
    "font.family": "sans-serif",
    "font.size": 9.5,
    "text.color": INK,
    "axes.edgecolor": MUTED,
    "axes.labelcolor": INK,
    "axes.linewidth": 0.8,
    "axes.titlesize": 10.5,
    "axes.titleweight": "bold",
    "axes.titlelocation": "left",
    "axes.spines.top": False,
    "axes.spines.right": False,
    "axes.grid": True,
    "axes.axisbelow": True,
    "grid.color": GRID,
    "grid.linewidth": 0.8,
    "xtick.color": MUTED,
    "ytick.color": MUTED,
    "xtick.labelcolor": INK,
    "ytick.labelcolor": INK,
    "xtick.minor.size": 0,
    "ytick.minor.size": 0,
    "lines.linewidth": 1.7,
    "lines.markersize": 4,
    "lines.solid_capstyle": "round",
    "legend.frameon": False,
    "legend.fontsize": 8.5,
}


def colours(labels: Iterable[str]) -> dict[str, str]:
    """A colour for each label, "attention" or "attention, variant"; the first of an attention has that one's own."""
    found: dict[str, str] = {}
    for label in labels:
        own = OWN.get(label.partition(",")[0])
        if own is not None and own not in found.values():
            found[label] = own
    spare = iter([colour for colour in PALETTE if colour not in found.values()] * 3)
    return {label: found.get(label) or next(spare) for label in labels}


@contextmanager
def style() -> Iterator[None]:
    """Settings of our own inside, the caller's untouched outside."""
    import matplotlib

    settings: Any = SETTINGS
    with matplotlib.rc_context(settings):
        yield


def new_figure(width: float, height: float) -> Figure:
    """A figure in inches that belongs to no window and to no global list."""
    from matplotlib.backends.backend_agg import FigureCanvasAgg
    from matplotlib.figure import Figure

    figure = Figure(figsize=(width, height))
    FigureCanvasAgg(figure)
    return figure


def to_png(figure: Figure) -> bytes:
    """The picture as a file's content; the same picture gives the same bytes."""
    buffer = io.BytesIO()
    figure.savefig(buffer, format="png", metadata={"Software": None})
    return buffer.getvalue()


def to_svg(figure: Figure) -> bytes:
    """The picture as vectors; the same picture gives the same bytes, inside `style`."""
    buffer = io.BytesIO()
    figure.savefig(buffer, format="svg", metadata={"Date": None, "Creator": None})
    return buffer.getvalue()


def plain_ticks(axes: Axes) -> None:
    """Numbers as one writes them on logarithmic axes, and none between the chosen lengths."""
    from matplotlib.ticker import NullLocator

    axes.xaxis.set_minor_locator(NullLocator())
    axes.yaxis.set_minor_locator(NullLocator())
    axes.yaxis.set_major_formatter("{x:,.10g}")


def logarithmic(*plots: Axes) -> None:
    """Logarithmic vertical axes with numbers as one writes them, dense enough for those that span one power of ten."""
    from matplotlib.ticker import LogLocator, NullLocator

    for axes in plots:
        axes.set_yscale("log")
        axes.yaxis.set_major_locator(LogLocator(subs=(1.0, 2.0, 3.0, 5.0)))
        axes.yaxis.set_minor_locator(NullLocator())
        axes.yaxis.set_major_formatter("{x:,.10g}")


def label_ends(axes: Axes, ends: list[tuple[float, float, str, str]], gap: float = 0.045) -> None:
    """Write names beside the ends of lines instead of a legend, moved apart where they would overlap.

    Args:
        axes: with its scales and limits set.
        ends: (x, y, name, colour) in data coordinates.
        gap: smallest distance between names, in shares of the height.
    """
    to_axes = axes.transData + axes.transAxes.inverted()
    placed = sorted((float(to_axes.transform((x, y))[1]), name, colour) for x, y, name, colour in ends)
    wanted = [height for height, _, _ in placed]
    # Moved up only and moved down only both keep the distance, and so does their mean, which stays nearest.
    up = _apart(wanted, gap)
    down = [-height for height in reversed(_apart([-height for height in reversed(wanted)], gap))]
    heights = [(a + b) / 2 for a, b in zip(up, down, strict=True)]
    overflow = max(0.0, heights[-1] - 1.0) if heights else 0.0
    for height, (_, name, colour) in zip(heights, placed, strict=True):
        axes.annotate(
            name,
            (1.0, height - overflow),
            xycoords="axes fraction",
            xytext=(6, 0),
            textcoords="offset points",
            color=colour,
            fontsize=8.5,
            va="center",
            annotation_clip=False,
        )


def _apart(heights: list[float], gap: float) -> list[float]:
    """Rising heights moved up until neighbours are `gap` apart."""
    moved: list[float] = []
    for height in heights:
        moved.append(max(height, moved[-1] + gap) if moved else height)
    return moved
