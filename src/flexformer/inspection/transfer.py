"""Two checkpoints side by side: how far are their kernels apart?"""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor
from torch.nn import functional as F

from ..kernels import Kernel
from . import spectrum
from .checkpoint import Checkpoint, CheckpointError


@dataclass(frozen=True)
class Difference:
    """One head of two checkpoints."""

    layer: int
    head: int
    cosine: float | None
    """of the frequencies, one by one: 1 where one descends from the other unchanged, about 0 for other draws"""
    spectrum_distance: float | None
    """between the lengths of the frequencies in order of size, relative to the first's mean: blind to their order"""
    curve_distance: float | None
    """root mean square, along the first's principal directions"""
    norm_weight_change: float | None


def differences(first: Checkpoint, second: Checkpoint) -> list[Difference]:
    """Head by head.

    Raises:
        CheckpointError: They do not have the same attention, layers, heads and frequencies.
    """
    _check(first, second)
    found = []
    for layer, kernel in first.kernels.items():
        other = second.kernels[layer]
        cosine, distance = _cosine(kernel, other), _spectra(kernel, other)
        curves = _curves(kernel, other, first.scaling[layer])
        weights, others = spectrum.norm_weight(kernel), spectrum.norm_weight(other)
        change = None if weights is None or others is None else others - weights
        for head in range(kernel.num_heads):
            found.append(Difference(layer, head, *(_at(values, head) for values in (cosine, distance, curves, change))))
    return found


def _check(first: Checkpoint, second: Checkpoint) -> None:
    if first.attention != second.attention:
        raise CheckpointError(
            f"against {second.path} has {second.attention} kernels and {first.path} {first.attention}; they cannot be "
            "compared"
        )
    for layer in sorted(first.kernels.keys() ^ second.kernels.keys()):
        raise CheckpointError(f"layer {layer} has a kernel in only one of {first.path} and against {second.path}")
    for layer, kernel in first.kernels.items():
        other = second.kernels[layer]
        shapes = [{n: tuple(v.shape) for n, v in spectrum.frequencies(k).items()} for k in (kernel, other)]
        if kernel.num_heads != other.num_heads or kernel.head_dim != other.head_dim or shapes[0] != shapes[1]:
            raise CheckpointError(
                f"the kernels of layer {layer} of {first.path} and against {second.path} differ in shape"
            )


def _cosine(kernel: Kernel, other: Kernel) -> Tensor | None:
    pairs = zip(spectrum.frequencies(kernel).values(), spectrum.frequencies(other).values(), strict=True)
    flat = [(a.flatten(1), b.flatten(1)) for a, b in pairs]
    if not flat:
        return None
    return F.cosine_similarity(torch.cat([a for a, _ in flat], 1), torch.cat([b for _, b in flat], 1))


def _spectra(kernel: Kernel, other: Kernel) -> Tensor | None:
    first, second = (list(spectrum.lengths(k).values()) for k in (kernel, other))
    if not first:
        return None
    a, b = (torch.cat(values, 1).sort(dim=1).values for values in (first, second))
    return (a - b).abs().mean(1) / a.mean(1).clamp_min(1e-30)


def _curves(kernel: Kernel, other: Kernel, scaling: float) -> Tensor | None:
    directions = spectrum.principal_directions(kernel)
    if directions is None:
        return None
    radii = spectrum.radii(scaling)
    apart = spectrum.curves(kernel, directions, radii) - spectrum.curves(other, directions, radii)
    return apart.square().mean((1, 2)).sqrt()


def _at(values: Tensor | None, head: int) -> float | None:
    return None if values is None else float(values[head])
