"""`flexformer reproduce kernels`: the comparison of learnable kernels."""

from __future__ import annotations

import json as json_format
import sys
from dataclasses import asdict
from pathlib import Path
from statistics import mean, stdev

from rich.table import Table

from flexformer.cli.main import UserError, console
from flexformer.experiments.grid import GridError
from flexformer.experiments.kernels import RATES, Cell, best_cells, chosen, study
from flexformer.training.atomic import write_bytes


class _UnfinishedError(UserError):
    def __init__(self, error: GridError) -> None:
        super().__init__(str(error))
        self.status = error.status if error.status > 0 else 1


def kernels(
    base: str,
    text: str,
    maps: list[str] | None = None,
    preset: str = "study",
    rates: list[float] = list(RATES),  # noqa: B006
    seeds: list[int] = [0, 1, 2],  # noqa: B006
    output: Path = Path("results/kernels"),
    json: bool = False,
) -> int:
    """Distil every learnable kernel from the same model: how near do they come to its softmax?

    Maps have as many features, take as many steps and choose among the same learning rates, on the first seed. Every
    run is one of flexformer distill; finished ones are not repeated, one that was cut off goes on. Writes kernels.json
    and kernels.png.

    Args:
        base: Folder or hub name of a pretrained encoder or decoder.
        text: A text file, a folder of .txt files, glue:TASK, or a datasets id with a column "text".
        maps: Labels of the kernels to compare; default all.
        preset: The settings all runs share: study, cpu, paper or smoke.
        rates: Learning rates to choose from.
        seeds: The first chooses the rate, the others repeat the best.
        output: Where runs, figures and the plot go.
        json: Print the figures as JSON, after what the runs print on the error stream.

    Example:
        flexformer reproduce kernels sentence-transformers/all-MiniLM-L6-v2 wiki.txt --seeds [0]
    """
    shown = sys.stderr if json else sys.stdout
    try:
        cells = study(base, text, output, shown, preset=preset, maps=chosen(maps), rates=rates, seeds=seeds)
    except GridError as error:
        raise _UnfinishedError(error) from error
    from flexformer.viz.kernels import plot_kernel_study

    best = best_cells(cells)
    plot = output / "kernels.png"
    runs = {label: [asdict(cell) for cell in own] for label, own in best.items()}
    write_bytes(plot, plot_kernel_study(runs, f"{Path(base).name} on {Path(text).name}, best learning rate of each"))
    if json:
        print(json_format.dumps([asdict(cell) for cell in cells]))
        return 0
    screen = console()
    screen.print(_table(best))
    screen.print(f"{plot} shows it.", soft_wrap=True)
    return 0


def _table(best: dict[str, list[Cell]]) -> Table:
    table = Table(title="Divergence from softmax after distillation, mean over layers", title_justify="left")
    headings = ("map", "lr", "KL", "±", "output error", "negative", "den <= 0", "floored", "parameters", "seeds")
    for heading in headings:
        table.add_column(heading, justify="left" if heading == "map" else "right")
    for label, cells in sorted(best.items(), key=lambda item: mean(cell.kl for cell in item[1])):
        values = [cell.kl for cell in cells]
        table.add_row(
            label,
            f"{cells[0].lr:g}",
            f"{mean(values):.4f}",
            f"{stdev(values):.4f}" if len(values) > 1 else "",
            f"{mean(cell.output_error for cell in cells):.3f}",
            f"{100 * mean(cell.negative_weights for cell in cells):.2f} %",
            f"{100 * mean(cell.nonpositive_denominators for cell in cells):.3f} %",
            f"{100 * mean(cell.floored_rows for cell in cells):.2f} %",
            f"{cells[0].parameters:,}",
            str(len(cells)),
        )
    return table
