"""Tables as pictures: one panel for each column, one line for each row."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

from .style import ACCENT, GRID, MUTED, PALETTE, new_figure, style, to_png, to_svg

if TYPE_CHECKING:
    from matplotlib.axes import Axes

OURS = "flexformer"
PANEL_WIDTH, LINE_HEIGHT, MARGINS = 2.3, 0.24, 1.15
MOST_PANELS = 6  # beside each other, so that text stays large enough


def plot_tables(tables: Sequence[dict[str, Any]]) -> dict[str, bytes]:
    """PNG and SVG, by file ending; the same tables give the same bytes.

    Args:
        tables: As plain values of `flexformer.experiments.tables.Table`. Columns without a best value are left out;
            what was measured stands in the first line of panels of a table, the paper's numbers in the second.
    """
    lines = [line for table in tables for line in _lines(table)]
    if not lines:
        lines = [(tables[0], list(range(len(tables[0]["columns"]))))]
    heights = [MARGINS + LINE_HEIGHT * len(table["rows"]) for table, _ in lines]
    widest = max(len(columns) for _, columns in lines)
    some_once = any(_some_once(table, columns) for table, columns in lines)
    with style():
        figure = new_figure(1.6 + PANEL_WIDTH * widest, sum(heights))
        grid = figure.add_gridspec(len(lines), widest, height_ratios=heights)
        for i, (table, columns) in enumerate(lines):
            for j, column in enumerate(columns):
                _panel(figure.add_subplot(grid[i, j]), table, column, is_first=j == 0)
        title = tables[0]["title"] + ("; hollow: one seed" if some_once else "")
        figure.suptitle(title, x=0.01, ha="left", fontsize=9, color=MUTED)
        return {"png": to_png(figure), "svg": to_svg(figure)}


def _lines(table: dict[str, Any]) -> list[tuple[dict[str, Any], list[int]]]:
    """Columns of what was measured and of the paper's, as far as they have values to compare."""
    found = []
    for measured in (True, False):
        columns = [
            i
            for i, column in enumerate(table["columns"])
            if column["measured"] is measured
            and column["better"] is not None
            and any(row["values"][i] is not None for row in table["rows"])
        ]
        found += [(table, columns[i : i + MOST_PANELS]) for i in range(0, len(columns), MOST_PANELS)]
    return found


def _some_once(table: dict[str, Any], columns: Sequence[int]) -> bool:
    """Whether some of what was measured is of one run."""
    measured = [i for i in columns if table["columns"][i]["measured"]]
    values = [row["values"][i] for row in table["rows"] for i in measured if row["values"][i] is not None]
    return any(value["std"] is None for value in values)


def _panel(axes: Axes, table: dict[str, Any], index: int, is_first: bool) -> None:
    column, rows = table["columns"][index], table["rows"]
    for y, row in enumerate(rows):
        value = row["values"][index]
        if value is None:
            continue
        ours = row["label"].rpartition(": ")[2].startswith(OURS)
        colour = ACCENT if ours else PALETTE[0] if column["measured"] else MUTED
        face = "white" if column["measured"] and value["std"] is None else colour
        axes.errorbar(value["mean"], y, xerr=value["std"], fmt="o", color=colour, mfc=face, capsize=2.5, elinewidth=1.1)
    axes.set_ylim(len(rows) - 0.4, -0.6)
    axes.set_yticks(range(len(rows)), [row["label"] for row in rows] if is_first else [""] * len(rows))
    axes.set_xmargin(0.12)
    axes.locator_params(axis="x", nbins=4)
    axes.set_title(column["title"] + (", lower is better" if column["better"] == "lower" else ""), fontsize=9)
    axes.set_xlabel(column["group"], fontsize=7.5, color=MUTED)
    axes.grid(axis="y", color=GRID)
