"""`flexformer reproduce params`: the paper's table of added parameters."""

from __future__ import annotations

from dataclasses import asdict
from pathlib import Path

from flexformer.cli.main import console, print_json
from flexformer.cli.reproduce_frame import screen_table
from flexformer.experiments.parameters import counts, table, write_table


def parameters(json: bool = False, results: Path = Path("results")) -> int:
    """Count the parameters of the paper's language models with every attention, beside the paper's figures.

    Nothing is allocated and no data is needed: the vocabulary is that of WikiText-103, 267,744 entries.

    Args:
        json: Print JSON instead of a table.
        results: Where the table goes, as Markdown and LaTeX.

    Example:
        flexformer reproduce params --json
    """
    found = counts()
    shown = table(found)
    files = write_table(shown, results)
    if json:
        print_json([asdict(count) for count in found])
        return 0
    screen = console()
    screen.print(screen_table(shown))
    screen.print(f"Written: {', '.join(map(str, files))}", soft_wrap=True)
    return 0
