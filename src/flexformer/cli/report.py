"""`flexformer report`: everything about some runs in one HTML file."""

from __future__ import annotations

from pathlib import Path

from flexformer.cli.main import console
from flexformer.files import write_text
from flexformer.report import collect, page, read_kernels
from flexformer.report.page import TITLE


def report(
    runs: list[Path],
    output: Path = Path("report.html"),
    title: str = TITLE,
    kernels: bool = True,
) -> int:
    """Write one HTML file about runs, results and benchmarks: tables, curves, speed, kernels, environment.

    The file needs nothing besides itself: it opens from disk, without a network, in light and dark and on a phone.

    Args:
        runs: Folders of runs, of results or of many of either, and JSON files of flexformer bench.
        output: The file to write.
        title: Its heading.
        kernels: Draw what kernels have learned, for which the models of the runs are loaded.

    Example:
        flexformer report runs results/bench --output report.html
    """
    screen = console()
    sources = collect(runs)
    with screen.status("looking at kernels"):
        learned = read_kernels(sources.runs) if kernels else []
    write_text(output, page(sources, title, learned))
    screen.print(f"{output} holds the report: open it in a browser.", soft_wrap=True)
    return 0
