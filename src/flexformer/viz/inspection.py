"""Plots of what kernels have learned: spectra, curves, attention maps."""

from __future__ import annotations

import io
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any, NamedTuple

from .style import ACCENT, MUTED, PALETTE, new_figure, style, to_png

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

MOST_HEADS = 8
MOST_LABELS = 40
"""tokens beyond which an attention map does without their names"""


class Drawing(NamedTuple):
    """A picture in two formats."""

    png: bytes
    svg: bytes


class Line(NamedTuple):
    """One line of a panel; `role` is learned, start, softmax or other."""

    x: Sequence[float]
    y: Sequence[float]
    role: str
    name: str


class Cell(NamedTuple):
    """One panel of a grid."""

    title: str
    lines: Sequence[Line]


LOOKS: dict[str, dict[str, Any]] = {
    "learned": {"color": ACCENT, "linewidth": 1.7},
    "second": {"color": ACCENT, "linewidth": 1.1, "linestyle": "-."},
    "start": {"color": MUTED, "linewidth": 1.1, "linestyle": "--"},
    "softmax": {"color": PALETTE[0], "linewidth": 1.1},
    "other": {"color": PALETTE[1], "linewidth": 1.4},
}


def plot_grid(rows: Sequence[Sequence[Cell]], x_label: str, caption: str) -> Drawing:
    """Small panels, a row to a layer and a column to a head, on common scales."""
    with style():
        columns = max(len(row) for row in rows)
        figure = new_figure(max(4.5, 1.9 * columns), 1.1 + 1.5 * len(rows))
        grid = figure.subplots(len(rows), columns, sharex=True, sharey=True, squeeze=False)
        names: dict[str, Any] = {}
        for i, row in enumerate(rows):
            for j in range(columns):
                axes = grid[i][j]
                if j >= len(row):
                    axes.set_visible(False)
                    continue
                _panel(axes, row[j], names)
                if i == len(rows) - 1:
                    axes.set_xlabel(x_label, fontsize=8)
        figure.legend(
            names.values(), names.keys(), loc="outside lower center", ncols=len(names), fontsize=8, handlelength=1.6
        )
        figure.suptitle(caption, x=0.01, ha="left", fontsize=9, color=MUTED)
        return _drawing(figure)


def _panel(axes: Axes, cell: Cell, names: dict[str, Any]) -> None:
    for line in cell.lines:
        (drawn,) = axes.plot(line.x, line.y, **LOOKS[line.role])
        names.setdefault(line.name, drawn)
    axes.set_title(cell.title, fontsize=8.5)
    axes.tick_params(labelsize=7)


def plot_attention(
    maps: Sequence[tuple[str, Sequence[Sequence[float]], Sequence[Sequence[float]]]],
    tokens: Sequence[str],
    caption: str,
) -> Drawing:
    """Softmax above, the kernel below, a column to a head; negative weights are blue.

    Args:
        maps: Title, softmax's weights and the kernel's, (T, T) each.
        tokens: Names of the T positions.
        caption: What is shown.
    """
    with style():
        columns = len(maps)
        labelled = len(tokens) <= MOST_LABELS
        size = 2.0 if not labelled else max(2.0, 0.13 * len(tokens))
        figure = new_figure(1.2 + size * columns, 1.0 + 2 * size)
        grid = figure.subplots(2, columns, squeeze=False)
        for j, (title, softmax, kernel) in enumerate(maps):
            _map(grid[0][j], softmax, f"{title}, softmax", tokens if labelled and j == 0 else [])
            _map(grid[1][j], kernel, f"{title}, kernel", tokens if labelled and j == 0 else [])
        figure.suptitle(caption, x=0.01, ha="left", fontsize=9, color=MUTED)
        return _drawing(figure)


def _map(axes: Axes, weights: Sequence[Sequence[float]], title: str, tokens: Sequence[str]) -> None:
    from matplotlib.colors import LinearSegmentedColormap, SymLogNorm

    colours = LinearSegmentedColormap.from_list("signed", [PALETTE[0], "#ffffff", ACCENT])
    axes.imshow(weights, cmap=colours, norm=SymLogNorm(0.02, vmin=-1.0, vmax=1.0), interpolation="nearest")
    axes.set_title(title, fontsize=8.5)
    axes.grid(visible=False)
    axes.set_xticks([])
    if tokens:
        axes.set_yticks(range(len(tokens)), [token.replace("$", r"\$") for token in tokens], fontsize=6)
    else:
        axes.set_yticks([])


def _drawing(figure: Figure) -> Drawing:
    buffer = io.BytesIO()
    figure.savefig(buffer, format="svg", metadata={"Date": None, "Creator": None})
    return Drawing(to_png(figure), buffer.getvalue())
