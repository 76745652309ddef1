"""`flexformer inspect`: what kernels have learned, layer by layer and head by head."""

from __future__ import annotations

import json as json_format
from collections.abc import Sequence
from dataclasses import asdict
from pathlib import Path
from typing import Any

from rich.table import Table
from torch import Tensor

from flexformer.cli.main import UserError, console
from flexformer.files import write_bytes, write_text
from flexformer.inspection import Checkpoint, load
from flexformer.inspection.attention import Reading, read, text_of
from flexformer.inspection.summary import Head, Lines, heads, lines_of
from flexformer.inspection.transfer import Difference, differences
from flexformer.viz.inspection import MOST_HEADS, Cell, Drawing, Line, plot_attention, plot_grid

SUMMARY = "inspection.json"


def inspect(
    checkpoint: Path,
    against: Path | None = None,
    text: str | None = None,
    tokens: int = 64,
    base: str | None = None,
    output: Path = Path("inspection"),
    json: bool = False,
) -> int:
    """Look at the kernels of a trained model or an adapter: spectra, curves, what they attend to.

    For each layer and head: the learned spectrum against its start, the kernel's curve along principal directions (of
    the text's keys, or else of the frequencies) and the weight of a key's length. With --text also the attention maps
    of softmax and of the kernel on the same queries and keys, their entropies, the share of negative weights and the
    divergence from softmax; of an adapter softmax is that of its base model. With --against the kernels of a second
    checkpoint beside the first's. Pictures are written as PNG and SVG, all figures as inspection.json.

    Args:
        checkpoint: The folder of a run, of a saved model or of an adapter.
        against: Another one to compare with.
        text: A text file, or the text itself.
        tokens: Read at most so many tokens of the text.
        base: The model that an adapter was made for, where it is not found under the name it had.
        output: The folder pictures and figures go to.
        json: Print the figures as JSON.

    Example:
        flexformer inspect runs/lm-flexformer-n-cpu-0 --text "def main(arguments):" --output inspection
    """
    if tokens < 2:
        raise UserError(f"tokens {tokens} is too small; use 2 or more")
    screen = console()
    first = load(checkpoint, base)
    second = None if against is None else load(against)
    apart = [] if second is None else differences(first, second)
    reading = None if text is None else read(first, text_of(text), tokens)
    found = heads(first, reading)
    with screen.status("drawing"):
        drawings = _draw(first, second, reading)
    content = json_format.dumps(_content(first, second, found, apart), indent=1) + "\n"
    for name, drawing in drawings.items():
        write_bytes(output / f"{name}.png", drawing.png)
        write_bytes(output / f"{name}.svg", drawing.svg)
    write_text(output / SUMMARY, content)
    if json:
        print(content, end="")
        return 0
    screen.print(_table(first, found))
    screen.print(first.start_note[0].upper() + first.start_note[1:] + ".", soft_wrap=True)
    if apart:
        screen.print(_transfer_table(apart))
    screen.print(f"{output} holds {', '.join(f'{name}.png' for name in drawings)}, the same as .svg, and {SUMMARY}.")
    return 0


def _content(
    first: Checkpoint, second: Checkpoint | None, found: list[Head], apart: list[Difference]
) -> dict[str, Any]:
    content: dict[str, Any] = {
        "checkpoint": str(first.path),
        "attention": first.attention,
        "start": first.start_note,
        "heads": [asdict(head) for head in found],
    }
    if second is not None:
        content |= {"against": str(second.path), "differences": [asdict(each) for each in apart]}
    return content


def _draw(first: Checkpoint, second: Checkpoint | None, reading: Reading | None) -> dict[str, Drawing]:
    rows = {
        layer: lines_of(first, layer, None if reading is None else reading.layers[layer].keys)
        for layer in first.kernels
    }
    others = {} if second is None else {layer: lines_of(second, layer) for layer in second.kernels}
    drawings = {}
    name = first.path.resolve().name
    title = name if name == first.attention else f"{first.attention}, {name}"
    if all(lines.density is not None for lines in rows.values()):
        cells = [_spectra(lines, others.get(layer)) for layer, lines in rows.items()]
        drawings["spectra"] = plot_grid(cells, "length", f"Spectra: {title}")
    if all(lines.curves is not None for lines in rows.values()):
        of = "frequencies" if reading is None else "keys"
        cells = [_curves(lines, others.get(layer)) for layer, lines in rows.items()]
        drawings["curves"] = plot_grid(cells, "distance", f"k(r) along principal directions of {of}: {title}")
    for layer, seen in (reading.layers if reading else {}).items():
        shown = range(min(MOST_HEADS, len(seen.findings)))
        maps = [(f"head {i}", seen.softmax[i].tolist(), seen.kernel[i].tolist()) for i in shown]
        assert reading is not None
        drawings[f"attention-{layer}"] = plot_attention(maps, reading.tokens, f"Layer {layer}: {title}")
    return drawings


def _spectra(lines: Lines, other: Lines | None) -> list[Cell]:
    assert lines.density is not None
    cells = []
    for head in range(min(MOST_HEADS, len(lines.density))):
        drawn = [_line(lines.points, lines.density[head], "learned", "learned")]
        if lines.start_density is not None:
            drawn.insert(0, _line(lines.points, lines.start_density[head], "start", "start"))
        if other is not None and other.density is not None:
            drawn.append(_line(other.points, other.density[head], "other", "against"))
        cells.append(Cell(f"layer {lines.layer}, head {head}", drawn))
    return cells


def _curves(lines: Lines, other: Lines | None) -> list[Cell]:
    assert lines.curves is not None
    cells = []
    for head in range(min(MOST_HEADS, len(lines.curves))):
        drawn = [_line(lines.radii, lines.softmax, "softmax", "softmax")]
        if lines.start_curves is not None:
            drawn.append(_line(lines.radii, lines.start_curves[head, 0], "start", "start"))
        roles = ("learned", "second")
        for place, (curve, role) in enumerate(zip(lines.curves[head], roles, strict=False)):
            drawn.append(_line(lines.radii, curve, role, f"learned, direction {place + 1}"))
        if other is not None and other.curves is not None:
            drawn.append(_line(other.radii, other.curves[head, 0], "other", "against"))
        cells.append(Cell(f"layer {lines.layer}, head {head}", drawn))
    return cells


def _line(x: Tensor, y: Tensor, role: str, name: str) -> Line:
    return Line(x.tolist(), y.tolist(), role, name)


def _table(checkpoint: Checkpoint, found: Sequence[Head]) -> Table:
    table = Table(title=f"{checkpoint.attention}, {checkpoint.path}", title_justify="left")
    read_text = found[0].attended is not None
    headings = ["layer", "head", "freq.\nstart", "\nlearned", "\nmoved", "norm w.\nstart", "\nlearned"]
    headings += ["half\nwidth"]
    if read_text:
        headings += ["entropy\nkernel", "\nsoftmax", "KL to\nsoftmax", "weights\n< 0", "output\nerror"]
    for heading in headings:
        table.add_column(heading, justify="right")
    for head in found:
        cells = [head.start_length, head.length, head.moved, head.start_norm_weight, head.norm_weight, head.half_width]
        row = [str(head.layer), str(head.head), *(_number(value) for value in cells)]
        if head.attended is not None:
            seen = head.attended
            row += [_number(value) for value in (seen.entropy, seen.softmax_entropy, seen.kl)]
            row += [f"{100 * seen.negative_weights:.1f} %", _number(seen.output_error)]
        table.add_row(*row)
    return table


def _transfer_table(apart: Sequence[Difference]) -> Table:
    table = Table(title="Beside the other checkpoint", title_justify="left")
    headings = (
        "layer",
        "head",
        "cosine of\nfrequencies",
        "distance of\nspectra",
        "distance of\ncurves",
        "norm weight\nchange",
    )
    for heading in headings:
        table.add_column(heading, justify="right")
    for each in apart:
        values = (each.cosine, each.spectrum_distance, each.curve_distance, each.norm_weight_change)
        table.add_row(str(each.layer), str(each.head), *(_number(value) for value in values))
    return table


def _number(value: float | None) -> str:
    return "–" if value is None else f"{value:.3f}"
