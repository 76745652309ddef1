"""Tables of results beside the paper's numbers, as Markdown and LaTeX."""

from __future__ import annotations

import re
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from statistics import mean, stdev
from typing import Literal, TypeAlias

Better: TypeAlias = Literal["higher", "lower"] | None


@dataclass(frozen=True)
class Value:
    """A mean, its standard deviation over seeds, and how many there were.

    Args:
        mean: Of the seeds.
        std: With n - 1 in the denominator; None for one seed.
        runs: Seeds; 0 for numbers that were printed elsewhere.
    """

    mean: float
    std: float | None = None
    runs: int = 0

    @classmethod
    def of(cls, values: Sequence[float]) -> Value | None:
        """Of one value for each seed; None where there is none."""
        if not values:
            return None
        return cls(mean(values), stdev(values) if len(values) > 1 else None, len(values))

    @classmethod
    def printed(cls, pair: Sequence[float] | float | None) -> Value | None:
        """A number of the paper's, with its standard deviation where it prints one."""
        if pair is None:
            return None
        return cls(float(pair)) if isinstance(pair, int | float) else cls(float(pair[0]), float(pair[1]))


@dataclass(frozen=True)
class Column:
    """What a column shows.

    Args:
        title: Its heading.
        group: Heading over neighbouring columns: who measured, on what.
        digits: After the point.
        better: Whether the best value is the highest or the lowest; None marks none.
        measured: Here, not in the paper.
        std_digits: Digits of standard deviations, where they are more.
    """

    title: str
    group: str
    digits: int = 2
    better: Better = "higher"
    measured: bool = True
    std_digits: int | None = None

    def text(self, value: Value | None, plus_minus: str = " ± ") -> str:
        if value is None:
            return ""
        shown = f"{value.mean:,.{self.digits}f}"
        digits = self.digits if self.std_digits is None else self.std_digits
        return shown if value.std is None else f"{shown}{plus_minus}{value.std:,.{digits}f}"


@dataclass(frozen=True)
class Row:
    """One attention, or one model.

    Args:
        label: Its name.
        values: One for each column; None is shown as an empty cell.
        unranked: Not among those the best is chosen from, such as a reference.
    """

    label: str
    values: tuple[Value | None, ...]
    unranked: bool = False


@dataclass(frozen=True)
class Table:
    """A whole table.

    Args:
        name: Of its files.
        title: One line.
        head: Heading over the rows' labels.
        columns: What is shown.
        rows: Of what.
        notes: What a reader has to know: the budget, the source of the paper's numbers.
    """

    name: str
    title: str
    head: str
    columns: tuple[Column, ...]
    rows: tuple[Row, ...]
    notes: tuple[str, ...] = field(default_factory=tuple)

    def best(self, column: int) -> set[int]:
        """Rows that are best in a column, to the digits that are shown."""
        about = self.columns[column]
        shown = {
            i: round(value.mean, about.digits)
            for i, row in enumerate(self.rows)
            if (value := row.values[column]) is not None and not row.unranked
        }
        if about.better is None or len(shown) < 2:
            return set()
        top = max(shown.values()) if about.better == "higher" else min(shown.values())
        return {i for i, value in shown.items() if value == top}

    def groups(self) -> list[tuple[str, int]]:
        """Group headings and how many columns each spans."""
        found: list[tuple[str, int]] = []
        for column in self.columns:
            if found and found[-1][0] == column.group:
                found[-1] = (column.group, found[-1][1] + 1)
            else:
                found.append((column.group, 1))
        return found


def markdown(tables: Iterable[Table]) -> str:
    """All tables one below the other."""
    return "\n".join(_markdown(table) for table in tables)


def _markdown(table: Table) -> str:
    best = [table.best(i) for i in range(len(table.columns))]
    headings = [f"{c.group}: {c.title}" if c.group else c.title for c in table.columns]
    lines = [f"### {table.title}", "", f"| {table.head} | {' | '.join(headings)} |", f"|---|{'---:|' * len(headings)}"]
    for i, row in enumerate(table.rows):
        cells = []
        for j, (column, value) in enumerate(zip(table.columns, row.values, strict=True)):
            text = column.text(value)
            cells.append(f"**{text}**" if i in best[j] else text)
        lines.append(f"| {row.label} | {' | '.join(cells)} |")
    return "\n".join([*lines, "", *(f"{note}\n" for note in table.notes)])


def latex(tables: Iterable[Table]) -> str:
    """All tables for `booktabs`, one after the other."""
    return "\n".join(_latex(table) for table in tables)


def _latex(table: Table) -> str:
    best = [table.best(i) for i in range(len(table.columns))]
    spans = " & ".join(rf"\multicolumn{{{width}}}{{c}}{{{_escaped(name)}}}" for name, width in table.groups())
    lines = [
        r"\begin{table}",
        r"\centering",
        rf"\caption{{{_escaped(' '.join((f'{table.title}.', *table.notes)))}}}",
        rf"\label{{tab:{table.name}}}",
        rf"\begin{{tabular}}{{l{'r' * len(table.columns)}}}",
        r"\toprule",
        rf" & {spans} \\",
        rf"{_escaped(table.head)} & {' & '.join(_escaped(c.title) for c in table.columns)} \\",
        r"\midrule",
    ]
    for i, row in enumerate(table.rows):
        cells = []
        for j, (column, value) in enumerate(zip(table.columns, row.values, strict=True)):
            text = column.text(value, r"$\pm$")
            cells.append(rf"\textbf{{{text}}}" if i in best[j] else text)
        lines.append(rf"{_escaped(row.label)} & {' & '.join(cells)} \\")
    return "\n".join([*lines, r"\bottomrule", r"\end{tabular}", r"\end{table}", ""])


def _escaped(text: str) -> str:
    text = re.sub(r"([&%$#_{}])", r"\\\1", re.sub(r"`([^`]*)`", r"\1", text))
    return text.replace("±", r"$\pm$").replace("×", r"$\times$").replace("–", "--")
