"""What there is to say about every layer and head, as plain values."""

from __future__ import annotations

from dataclasses import asdict, dataclass
from typing import Any

import torch
from torch import Tensor

from ..kernels import Kernel
from . import spectrum
from .attention import Reading
from .checkpoint import Checkpoint


@dataclass(frozen=True)
class Attended:
    """A head on a text."""

    entropy: float
    """of the kernel's weights by their size, in nats"""
    softmax_entropy: float
    kl: float
    """divergence from softmax, in nats"""
    output_error: float
    negative_weights: float


@dataclass(frozen=True)
class Head:
    """One head. What is not known, or not there, is None."""

    layer: int
    head: int
    start_length: float | None
    """mean length of the frequencies at the start; 1 would estimate softmax"""
    length: float | None
    moved: float | None
    """distance of the frequencies from their start, relative to the start's size"""
    start_norm_weight: float | None
    norm_weight: float | None
    half_width: float | None
    """distance along the first principal direction at which the curve has fallen to one half, in units of softmax's"""
    attended: Attended | None = None


@dataclass(frozen=True)
class Lines:
    """One layer as lines to draw, (H, ...) each."""

    layer: int
    points: Tensor
    """(P,) lengths of frequencies"""
    density: Tensor | None
    """(H, P)"""
    start_density: Tensor | None
    radii: Tensor
    """(R,)"""
    curves: Tensor | None
    """(H, directions, R)"""
    start_curves: Tensor | None
    softmax: Tensor
    """(R,)"""


def heads(checkpoint: Checkpoint, reading: Reading | None = None) -> list[Head]:
    """Every head of every layer."""
    found = []
    for layer, kernel in checkpoint.kernels.items():
        start = (checkpoint.starts or {}).get(layer)
        keys = None if reading is None else reading.layers[layer].keys
        lines = lines_of(checkpoint, layer, keys)
        now, then = _lengths(kernel), None if start is None else _lengths(start)
        moved = None if start is None else _moved(kernel, start)
        weights, before = spectrum.norm_weight(kernel), None if start is None else spectrum.norm_weight(start)
        for head in range(kernel.num_heads):
            found.append(
                Head(
                    layer=layer,
                    head=head,
                    start_length=_at(then, head),
                    length=_at(now, head),
                    moved=_at(moved, head),
                    start_norm_weight=_at(before, head),
                    norm_weight=_at(weights, head),
                    half_width=None if lines.curves is None else _half_width(lines, head),
                    attended=None if reading is None else _attended(reading, layer, head, kernel.num_heads),
                )
            )
    return found


def lines_of(checkpoint: Checkpoint, layer: int, keys: Tensor | None = None) -> Lines:
    """What is drawn of a layer."""
    kernel, start = checkpoint.kernels[layer], (checkpoint.starts or {}).get(layer)
    scaling = checkpoint.scaling[layer]
    radii = spectrum.radii(scaling)
    directions = spectrum.principal_directions(kernel, keys)
    origin = None if keys is None else keys.transpose(0, 1).flatten(1, 2).mean(1)
    known = [k for k in (kernel, start) if k is not None and spectrum.lengths(k)]
    longest = max((float(v.max()) for k in known for v in spectrum.lengths(k).values()), default=1.0)
    points = torch.linspace(0.0, 1.1 * longest, 96)
    return Lines(
        layer=layer,
        points=points,
        density=_densities(kernel, points),
        start_density=None if start is None else _densities(start, points),
        radii=radii,
        curves=None if directions is None else spectrum.curves(kernel, directions, radii, origin),
        start_curves=(
            None if directions is None or start is None else spectrum.curves(start, directions, radii, origin)
        ),
        softmax=spectrum.softmax_curve(radii, scaling),
    )


def as_dict(head: Head) -> dict[str, Any]:
    """Plain values for JSON."""
    return asdict(head)


def _densities(kernel: Kernel, points: Tensor) -> Tensor | None:
    found = spectrum.lengths(kernel)
    if not found:
        return None
    together = torch.cat(list(found.values()), dim=1)
    return torch.stack([spectrum.density(head, points) for head in together])


def _lengths(kernel: Kernel) -> Tensor | None:
    """(H,) mean lengths of the frequencies."""
    found = spectrum.lengths(kernel)
    return torch.cat(list(found.values()), dim=1).mean(1) if found else None


def _moved(kernel: Kernel, start: Kernel) -> Tensor | None:
    now, then = spectrum.frequencies(kernel), spectrum.frequencies(start)
    if not now or now.keys() != then.keys():
        return None
    distance = sum((now[name] - then[name]).square().sum((1, 2)) for name in now)
    size = sum(values.square().sum((1, 2)) for values in then.values())
    assert isinstance(distance, Tensor)
    assert isinstance(size, Tensor)
    return (distance / size.clamp_min(1e-30)).sqrt()


def _half_width(lines: Lines, head: int) -> float | None:
    """Where the curve first falls below one half, in units of where softmax's does; None if it does not."""
    assert lines.curves is not None
    below = (lines.curves[head, 0] < 0.5).nonzero()
    softmax = (lines.softmax < 0.5).nonzero()
    if not len(below) or not len(softmax):
        return None
    return float(lines.radii[below[0, 0]] / lines.radii[softmax[0, 0]])


def _attended(reading: Reading, layer: int, head: int, kernels: int) -> Attended:
    """Of the query heads that share a kernel, the mean."""
    seen = reading.layers[layer]
    group = len(seen.findings) // kernels
    own = range(head * group, (head + 1) * group)
    found = [seen.findings[i] for i in own]
    return Attended(
        entropy=sum(seen.entropies[i] for i in own) / group,
        softmax_entropy=sum(f.entropy for f in found) / group,
        kl=sum(f.kl for f in found) / group,
        output_error=sum(f.output_error for f in found) / group,
        negative_weights=sum(f.negative_weights for f in found) / group,
    )


def _at(values: Tensor | None, head: int) -> float | None:
    return None if values is None else float(values[head])
