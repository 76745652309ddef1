"""The section about kernels: their spectra and curves beside how they started."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

import torch
from torch import Tensor

from .chart import Panel, Series, figure
from .html import Markup, join, table, tag
from .runs import grouped
from .sources import Run

if TYPE_CHECKING:
    from flexformer.inspection import Checkpoint

POINTS = 72
MOST_LAYERS = 6
"""drawn of one model, spread over its depth"""


@dataclass(frozen=True)
class Layer:
    """Lines of one layer's charts, and the means of its heads before and after."""

    index: int
    spectrum: list[Series]
    curves: list[Series]
    length: tuple[float | None, float]
    norm_weight: tuple[float | None, float | None]


@dataclass(frozen=True)
class Learned:
    """The kernels of one run."""

    title: str
    note: str
    layers: list[Layer]


def read(runs: Sequence[Run]) -> list[Learned]:
    """The kernels that have a spectrum, one run for each attention of a group."""
    from flexformer.inspection import CheckpointError, load

    found = []
    for title, group in grouped(runs):
        seen = set()
        for run in group:
            if run.attention in seen or run.record.get("status") != "finished":
                continue
            try:
                checkpoint = load(run.path)
            except (CheckpointError, OSError):
                continue  # softmax, or weights that were moved away: the table of runs says what there was
            layers = _layers(checkpoint)
            if layers:
                seen.add(run.attention)
                note = checkpoint.start_note[0].upper() + checkpoint.start_note[1:]
                found.append(Learned(f"{run.attention}: {title[0].lower()}{title[1:]}", note, layers))
    return found


def section(learned: Sequence[Learned]) -> Markup:
    said = (
        "A spectrum shows how long the frequencies are, all heads of a layer together; at length 1 they would estimate "
        "softmax. A curve shows, for each head, how alike the features of two keys are at a distance along the first "
        "principal direction of the frequencies."
    )
    return join([tag("p", said), *(_one(each) for each in learned)])


def _one(learned: Learned) -> Markup:
    panels = []
    for layer in learned.layers:
        name = f"Layer {layer.index}"
        panels.append(Panel(f"{name}, spectrum", "length of a frequency", "density", layer.spectrum, from_zero=True))
        panels.append(Panel(f"{name}, curves", "distance r", "k(r)", layer.curves))
    rows = [[f"layer {layer.index}", *_pair(layer.length, 3), *_pair(layer.norm_weight, 4)] for layer in learned.layers]
    head = ["mean over heads", "frequencies, start", "learned", "norm weight, start", "learned"]
    return tag(
        "section",
        tag("h3", learned.title),
        figure(panels, learned.note + "."),
        table(head, rows),
    )


def _pair(values: tuple[float | None, float | None], digits: int) -> list[str]:
    return ["–" if value is None else f"{value:.{digits}f}" for value in values]


def _layers(checkpoint: Checkpoint) -> list[Layer]:
    layers = list(checkpoint.kernels)
    step = -(-len(layers) // MOST_LAYERS)
    return [layer for i in layers[::step] if (layer := _layer(checkpoint, i)) is not None]


def _layer(checkpoint: Checkpoint, index: int) -> Layer | None:
    from flexformer.inspection import spectrum as spectra

    kernel, start = checkpoint.kernels[index], (checkpoint.starts or {}).get(index)
    now = spectra.lengths(kernel)
    if not now:
        return None
    then = {} if start is None else spectra.lengths(start)
    furthest = 1.1 * max(float(values.max()) for values in (*now.values(), *then.values()))
    points = torch.linspace(0.0, furthest, POINTS)
    spectrum = [_density("start", then, points)] if then else []
    spectrum.append(_density("learned", now, points))
    scaling = checkpoint.scaling[index]
    at = spectra.radii(scaling)
    directions = spectra.principal_directions(kernel, count=1)
    assert directions is not None
    drawn = spectra.curves(kernel, directions, at)[:, 0]
    curves = [Series("softmax", _points(at, spectra.softmax_curve(at, scaling)))]
    curves += [Series(f"head {i}", _points(at, head)) for i, head in enumerate(drawn)]
    means = [None if not found else float(torch.cat(list(found.values()), 1).mean()) for found in (then, now)]
    weights = [None if k is None else spectra.norm_weight(k) for k in (start, kernel)]
    early, late = (None if w is None else float(w.mean()) for w in weights)
    assert means[1] is not None
    return Layer(index, spectrum, curves, (means[0], means[1]), (early, late))


def _density(name: str, lengths: dict[str, Tensor], points: Tensor) -> Series:
    from flexformer.inspection import spectrum as spectra

    together = torch.cat([values.flatten() for values in lengths.values()])
    return Series(name, _points(points, spectra.density(together, points)))


def _points(x: Tensor, y: Tensor) -> list[tuple[float, float]]:
    return list(zip(x.tolist(), y.tolist(), strict=True))
