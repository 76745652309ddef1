"""How many parameters the paper's language models have with every attention, counted without allocating any."""

from __future__ import annotations

from dataclasses import dataclass
from typing import get_args

import torch

from flexformer import attention, kernels
from flexformer.models import CausalLM
from flexformer.tasks.paper_language import ADDED_PARAMETERS, WIKITEXT_103_WORDS, Size
from flexformer.training import build_language_model

from . import presets


@dataclass(frozen=True)
class Count:
    """One model's parameters, beside what the paper prints."""

    size: Size
    attention: str
    total: int
    added: int
    """beyond softmax"""
    added_percent: float
    layer_percent: float
    """what is added to one layer, in per cent of the layer"""
    paper_total: str | None
    paper_percent: float | None


def causal_attentions() -> list[str]:
    """Attentions that language models can have, in the paper's order."""
    kernel_names = kernels.names()
    known = [name for name in attention.ATTENTIONS if name == "softmax" or name in kernel_names]
    return known + [name for name in kernel_names if name not in known]


def counts() -> list[Count]:
    """Every causal attention in both sizes of the paper."""
    found = []
    for size in get_args(Size):
        plain, plain_layer = _count(size, "softmax")
        for name in causal_attentions():
            total, layer = _count(size, name)
            printed = ADDED_PARAMETERS.get(name, {}).get(size)
            found.append(
                Count(
                    size,
                    name,
                    total,
                    total - plain,
                    100 * (total - plain) / plain,
                    100 * (layer - plain_layer) / plain_layer,
                    None if printed is None else printed[0],
                    None if printed is None else printed[1],
                )
            )
    return found


def _count(size: Size, name: str) -> tuple[int, int]:
    """Parameters of the model, and of one of its layers."""
    options = presets.load_language(f"paper-{size}", attention=name)
    with torch.device("meta"):
        model: CausalLM = build_language_model(options, WIKITEXT_103_WORDS)
    whole, layer = (sum(p.numel() for p in module.parameters()) for module in (model, model.blocks[0]))
    return whole, layer
