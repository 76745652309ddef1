"""What every table and figure of the paper has: cells to run, and something to show of their results."""

from __future__ import annotations

import abc
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any, ClassVar

from flexformer.attention import ATTENTIONS
from flexformer.files import write_bytes

from .cells import Cell
from .results import Result, read_all
from .tables import Table, latex, markdown

OURS = "flexformer"
FORMATS = ("md", "tex", "png", "svg")


@dataclass(frozen=True)
class Shown:
    """What was made of an experiment's results.

    Args:
        tables: For the screen.
        files: Where they were written, with the plot.
        outdated: Results that were left out, because they were made with other options than cells have now.
    """

    tables: list[Table]
    files: list[Path]
    outdated: list[Result]


class Experiment(abc.ABC):
    """A table or a figure at one scale.

    Args:
        preset: paper, cpu or smoke.
        root: Folder the data lives in.
    """

    name: ClassVar[str]
    row_option: ClassVar[str] = "attention"
    """of the command: what rows are named by"""
    presets: ClassVar[tuple[str, ...]] = ("paper", "cpu", "smoke")
    """scales that there are"""

    def __init__(self, preset: str, root: str | None = None) -> None:
        self.preset = self.check_preset(preset)
        self.root = root

    @classmethod
    def check_preset(cls, preset: str) -> str:
        """A scale that there is."""
        if preset not in cls.presets:
            raise ValueError(f"preset {preset!r} is unknown; use one of {', '.join(cls.presets)}")
        return preset

    @property
    def stem(self) -> str:
        """Of the files that are written."""
        return f"{self.name}-{self.preset}"

    @abc.abstractmethod
    def rows(self) -> tuple[str, ...]:
        """Every attention that can be asked for, in the order of the table."""

    @abc.abstractmethod
    def cells(self, attentions: Sequence[str], seeds: Sequence[int]) -> list[Cell]:
        """What is run for these, in order."""

    def following(self, found: Sequence[Result], attentions: Sequence[str], seeds: Sequence[int]) -> list[Cell]:
        """Cells that can be named only when those before have results."""
        return []

    @abc.abstractmethod
    def tables(self, found: Sequence[Result]) -> list[Table]:
        """Results beside the paper's numbers."""

    def details(self, cell: Cell, output: Path) -> Mapping[str, Any]:
        """What to keep of a finished cell beyond what all have."""
        return {}

    def plot(self, tables: Sequence[Table], found: Sequence[Result]) -> dict[str, bytes]:
        """The picture, by file ending."""
        from flexformer.viz.tables import plot_tables

        return plot_tables([asdict(table) for table in tables])

    def check(self, attentions: Sequence[str] | None) -> list[str]:
        """Attentions that were asked for; all by default."""
        known = self.rows()
        for name in attentions or ():
            if name not in known:
                raise ValueError(f"{self.row_option} has {name!r}; {self.name} knows {'; '.join(known)}")
        return list(attentions or known)

    def results(self, folder: Path) -> tuple[list[Result], list[Result]]:
        """Results of this experiment with the options that cells have now, and outdated ones."""
        found = read_all(folder, self.name, self.preset)
        by_name = {result.cell: result for result in found}
        known = [(by_name[cell.name], cell.digest) for cell in self.planned(found) if cell.name in by_name]
        good = [result for result, wanted in known if result.digest == wanted]
        return good, [result for result, wanted in known if result.digest != wanted]

    def planned(self, found: Sequence[Result]) -> list[Cell]:
        """The cells that results may be of, for all seeds they were made with."""
        return self.cells(self.rows(), sorted({result.seed for result in found}))

    def show(self, folder: Path) -> Shown:
        """Write table and plot from the results in a folder."""
        found, outdated = self.results(folder)
        tables = self.tables(found)
        contents = {"md": markdown(tables).encode(), "tex": latex(tables).encode(), **self.plot(tables, found)}
        (folder / self.name).mkdir(parents=True, exist_ok=True)
        files = []
        for ending in FORMATS:
            if ending in contents:
                files.append(folder / self.name / f"{self.stem}.{ending}")
                write_bytes(files[-1], contents[ending])
        return Shown(tables, files, outdated)


def ordered(names: Sequence[str]) -> tuple[str, ...]:
    """Attentions as the paper lists them: softmax, the others, ours."""
    known = [name for name in ATTENTIONS if name in names] + [name for name in names if name not in ATTENTIONS]
    return (
        *(name for name in known if not name.startswith(OURS)),
        *(name for name in known if name.startswith(OURS)),
    )
