"""How many parameters the paper's language models have with every attention, counted without allocating any."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import get_args

import torch

from flexformer import attention, kernels
from flexformer.files import write_text
from flexformer.models import CausalLM
from flexformer.tasks.paper_language import ADDED_PARAMETERS, WIKITEXT_103_WORDS, Size
from flexformer.training import build_language_model

from . import presets
from .experiment import ordered
from .tables import Column, Row, Table, Value, latex, markdown

NOTE = "Added is what an attention has beyond softmax, in per cent of the model; of a layer, in per cent of one layer."


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


def table(found: Sequence[Count]) -> Table:
    """Both sizes of every attention beside what the paper prints."""
    columns, rows = [], []
    for size in get_args(Size):
        columns += [Column("parameters", size, 0, None), Column("added, %", size, 3, None)]
        columns += [Column("of a layer, %", size, 3, None), Column("paper: %", size, 2, None, measured=False)]
    for name in ordered(list(dict.fromkeys(count.attention for count in found))):
        own = [count for count in found if count.attention == name]
        values: list[Value | None] = []
        for count in own:
            values += [Value(count.total), Value(count.added_percent), Value(count.layer_percent)]
            values.append(Value.printed(count.paper_percent))
        rows.append(Row(name, tuple(values)))
    title = "Parameters of the paper's language models"
    return Table("params", title, "attention", tuple(columns), tuple(rows), (NOTE,))


def write_table(shown: Table, results: Path) -> list[Path]:
    """As Markdown and LaTeX; returns the files."""
    folder = results / shown.name
    folder.mkdir(parents=True, exist_ok=True)
    files = [folder / f"{shown.name}.md", folder / f"{shown.name}.tex"]
    for path, text in zip(files, (markdown([shown]), latex([shown])), strict=True):
        write_text(path, text)
    return files


def _count(size: Size, name: str) -> tuple[int, int]:
    """Parameters of the model, and of one of its layers."""
    options = presets.load_language(f"paper-{size}", attention=name)
    with torch.device("meta"):
        model: CausalLM = build_language_model(options, WIKITEXT_103_WORDS)
    whole, layer = (sum(p.numel() for p in module.parameters()) for module in (model, model.blocks[0]))
    return whole, layer
