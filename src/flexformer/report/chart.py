"""Line and bar charts as inline SVG, coloured by the page's own style so that they follow light and dark."""

from __future__ import annotations

import itertools
import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass

from .html import Markup, join, tag
from .scale import Scale, number

WIDTH, HEIGHT = 440, 270
RIGHT, TOP, BOTTOM = 12, 12, 44
CHARACTER = 7.2  # about the width of a figure, for the room that numbers beside an axis need
BAR = 24

# Names that mean the same everywhere have one colour everywhere; the others take what is left in turn.
COLOURS = {
    "flexformer-n": "c0",
    "flexformer-s": "c0",
    "flexformer-c": "c5",
    "softmax": "c1",
    "softmax-unfused": "c1",
    "softmax-preallocated": "c1",
    "linear": "c2",
    "learned": "c0",
    "converted": "c0",
    "start": "c8",
    "limit": "c8",
}
DASHED = {"flexformer-s", "softmax-unfused", "softmax-preallocated", "start", "limit"}
FREE = ("c3", "c4", "c6", "c7", "c9", "c2", "c5")


@dataclass(frozen=True)
class Series:
    """One line."""

    name: str
    points: Sequence[tuple[float, float]]
    note: str = ""
    """Shown with the name where the mouse rests."""


@dataclass(frozen=True)
class Panel:
    """What one chart shows."""

    title: str
    x_label: str
    y_label: str
    series: Sequence[Series]
    log_x: bool = False
    log_y: bool = False
    x_ticks: Sequence[float] = ()
    from_zero: bool = False
    markers: bool = False
    x_format: Callable[[float], str] = number
    y_format: Callable[[float], str] = number


def colours(names: Sequence[str]) -> dict[str, str]:
    """A colour class for each name."""
    known = {name: COLOURS.get(name) for name in names}
    free = itertools.cycle([colour for colour in FREE if colour not in known.values()])
    return {name: colour or next(free) for name, colour in known.items()}


def figure(panels: Sequence[Panel], caption: object = None, *, small: bool = False) -> Markup:
    """Charts side by side, or one below the other where the page is narrow, with one legend for all.

    Args:
        panels: The charts.
        caption: Stands below.
        small: More charts fit into a row.
    """
    names = [series.name for panel in panels for series in panel.series]
    chosen = colours(names)
    charts = join(
        tag("div", tag("h4", panel.title) if panel.title else None, line_chart(panel, chosen)) for panel in panels
    )
    return tag(
        "figure",
        legend(chosen) if len(chosen) > 1 or any(not panel.title for panel in panels) else None,
        tag("div", charts, class_="panels small" if small else "panels"),
        None if caption is None else tag("figcaption", caption),
    )


def legend(chosen: dict[str, str]) -> Markup:
    """Names with the look of their lines."""

    def entry(name: str, colour: str) -> Markup:
        line = tag("line", x1=0, y1=5, x2=22, y2=5, class_=f"series {colour}{_dashes(name)}")
        return tag("li", tag("svg", line, viewBox="0 0 22 10", width=22, height=10, aria_hidden="true"), name)

    return tag("ul", join(entry(name, colour) for name, colour in chosen.items()), class_="legend")


def line_chart(panel: Panel, chosen: dict[str, str]) -> Markup:
    """One chart; lines are broken where a value is not a number."""
    points = [point for series in panel.series for point in series.points]
    x = Scale.of([p[0] for p in points], log=panel.log_x, ticks=panel.x_ticks)
    y = Scale.of([p[1] for p in points], log=panel.log_y, zero=panel.from_zero)
    frame = Frame(panel, x, y)
    described = f"{panel.title}: {panel.y_label or panel.title} against {panel.x_label}"
    return tag(
        "svg",
        tag("title", described),
        frame.grid(),
        *(frame.line(series, chosen[series.name]) for series in panel.series),
        viewBox=f"0 0 {WIDTH} {HEIGHT}",
        role="img",
        class_="chart",
    )


class Frame:
    """The area between a chart's axes.

    Args:
        panel: What is shown.
        x: The horizontal axis.
        y: The vertical axis.
    """

    def __init__(self, panel: Panel, x: Scale, y: Scale) -> None:
        self.panel, self.x, self.y = panel, x, y
        self.ticks = [(tick, panel.y_format(tick)) for tick in y.ticks]
        room = CHARACTER * max((len(name) for _, name in self.ticks), default=0)
        self.left = room + (28 if panel.y_label else 10)
        self.right, self.bottom = WIDTH - RIGHT, HEIGHT - BOTTOM

    def across(self, value: float) -> float:
        return self.left + self.x.place(value) * (self.right - self.left)

    def down(self, value: float) -> float:
        return self.bottom - self.y.place(value) * (self.bottom - TOP)

    def grid(self) -> Markup:
        """Lines, numbers and names of the axes."""
        parts, bottom = [], self.bottom
        for tick, name in self.ticks:
            place = self.down(tick)
            parts.append(tag("line", x1=self.left, x2=self.right, y1=place, y2=place, class_="grid"))
            parts.append(tag("text", name, x=self.left - 7, y=place + 4, text_anchor="end", class_="tick"))
        for tick in self.x.ticks:
            place, name = self.across(tick), self.panel.x_format(tick)
            parts.append(tag("line", x1=place, x2=place, y1=bottom, y2=bottom + 4, class_="axis"))
            parts.append(tag("text", name, x=place, y=bottom + 17, text_anchor="middle", class_="tick"))
        parts.append(tag("line", x1=self.left, x2=self.right, y1=bottom, y2=bottom, class_="axis"))
        middle = {"text_anchor": "middle", "class_": "label"}
        parts.append(tag("text", self.panel.x_label, x=(self.left + self.right) / 2, y=HEIGHT - 8, **middle))
        if self.panel.y_label:
            up = (TOP + bottom) / 2
            parts.append(tag("text", self.panel.y_label, x=12, y=up, transform=f"rotate(-90 12 {up:g})", **middle))
        return join(parts)

    def line(self, series: Series, colour: str) -> Markup:
        pieces: list[list[tuple[float, float]]] = [[]]
        for across, down in series.points:
            if math.isfinite(down) and (down > 0 or not self.y.log):
                pieces[-1].append((self.across(across), self.down(down)))
            elif pieces[-1]:
                pieces.append([])
        look = f"series {colour}{_dashes(series.name)}"
        marks = [
            tag("polyline", points=" ".join(f"{a:.1f},{b:.1f}" for a, b in piece), class_=look)
            for piece in pieces
            if len(piece) > 1
        ]
        if self.panel.markers or any(len(piece) == 1 for piece in pieces):
            marks += [tag("circle", cx=a, cy=b, r=3, class_=f"fill {colour}") for piece in pieces for a, b in piece]
        return tag("g", tag("title", f"{series.name}, {series.note}" if series.note else series.name), *marks)


def bar_chart(rows: Sequence[tuple[str, float]], unit: str, format_: Callable[[float], str] = number) -> Markup:
    """Horizontal bars from zero, named on the left and with their values on the right."""
    chosen = colours([name for name, _ in rows])
    most = max((value for _, value in rows), default=1.0) or 1.0
    left, right = 150, 64
    height = BAR * len(rows) + 26
    parts = []
    for i, (name, value) in enumerate(rows):
        width, middle = max(1.0, (WIDTH - left - right) * value / most), BAR * i + BAR / 2
        parts.append(
            tag("text", name, x=left - 8, y=middle + 4, text_anchor="end")
            + tag("rect", x=left, y=middle - 8, width=width, height=16, rx=2, class_=f"fill {chosen[name]}")
            + tag("text", format_(value), x=left + width + 6, y=middle + 4, class_="muted")
        )
    parts.append(tag("text", unit, x=left, y=height - 6, class_="muted"))
    return tag("svg", join(parts), viewBox=f"0 0 {WIDTH} {height}", role="img", class_="chart")


def _dashes(name: str) -> str:
    return " dashed" if name in DASHED else ""
