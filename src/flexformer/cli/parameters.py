"""`flexformer reproduce params`: the paper's table of added parameters."""

from __future__ import annotations

from dataclasses import asdict

from rich.table import Table

from flexformer.cli.main import console, print_json
from flexformer.experiments.parameters import Count, counts


def parameters(json: bool = False) -> int:
    """Count the parameters of the paper's language models with every attention, beside the paper's figures.

    Nothing is allocated and no data is needed: the vocabulary is that of WikiText-103, 267,744 entries.

    Args:
        json: Print JSON instead of a table.

    Example:
        flexformer reproduce params --json
    """
    found = counts()
    if json:
        print_json([asdict(count) for count in found])
    else:
        console().print(_table(found))
    return 0


def _table(found: list[Count]) -> Table:
    table = Table(title="Parameters of the paper's language models", title_justify="left")
    table.add_column("size")
    table.add_column("attention")
    for heading in ("total", "added", "added %", "paper", "paper %", "of a layer %"):
        table.add_column(heading, justify="right")
    for count in found:
        table.add_row(
            count.size,
            count.attention,
            f"{count.total:,}",
            f"{count.added:,}",
            f"{count.added_percent:.3f}",
            count.paper_total or "–",
            "–" if count.paper_percent is None else f"{count.paper_percent:.2f}",
            f"{count.layer_percent:.3f}",
            end_section=count.attention == found[-1].attention,
        )
    return table
