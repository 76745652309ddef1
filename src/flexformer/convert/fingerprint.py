"""Knowing a model by a few of its weights.

Names cannot do it: the same model has another name in every folder it is copied to, and a fine-tuned one keeps its
parent's shape. Fine-tuning and rounding leave weights nearly parallel to what they were; models that were trained
apart, or not at all, have weights at right angles.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence

import torch
from torch import Tensor, nn

from .discovery import Site

VALUES = 16
KINDRED = 0.8
"""The least cosine between the weights of a model and its descendants."""


def sample(sites: Sequence[Site]) -> list[dict[str, list[float]]]:
    """A few evenly spaced weights of every matrix of each attention module."""
    return [{name: _values(weight) for name, weight in _matrices(site.module)} for site in sites]


def similarity(sites: Sequence[Site], known: Sequence[dict[str, list[float]]]) -> float | None:
    """The cosine between these weights and a sample of others; None where they have nothing in common to compare."""
    ours: list[float] = []
    theirs: list[float] = []
    for site, expected in zip(sites, known, strict=False):
        for name, weight in _matrices(site.module):
            values = _values(weight)
            if len(expected.get(name, ())) == len(values):
                ours += values
                theirs += expected[name]
    a, b = torch.tensor(ours, dtype=torch.float64), torch.tensor(theirs, dtype=torch.float64)
    norm = float(a.norm() * b.norm())
    return float(a @ b) / norm if norm > 0 else None


def _matrices(module: nn.Module) -> Iterator[tuple[str, Tensor]]:
    """The module's own weights, by their names without what LoRA puts around them; not the kernel's."""
    for name, weight in module.named_parameters():
        added = name.startswith("kernel.") or ".lora_" in name
        if not added and weight.dim() > 1 and weight.numel() and weight.is_floating_point() and not weight.is_meta:
            yield name.replace(".base_layer", ""), weight


def _values(weight: Tensor) -> list[float]:
    flat = weight.detach().reshape(-1)
    places = torch.linspace(0, flat.numel() - 1, VALUES, dtype=torch.float64).long()
    return [float(f"{x:.6g}") for x in flat[places.to(flat.device)].double().tolist()]
