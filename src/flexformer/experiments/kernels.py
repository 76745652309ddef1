"""Which kernel recovers a trained softmax best: every learnable map distilled under equal conditions.

All maps have as many features, take as many steps on the same text and choose among the same learning rates, on the
first seed; the other seeds run at the rate that was best there.
"""

from __future__ import annotations

import json
import re
from collections.abc import Sequence
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any, TextIO

from flexformer.distill import DistillOptions
from flexformer.distill.job import REPORT
from flexformer.training import RunFolder
from flexformer.training.atomic import write_json

from .grid import finish
from .presets.pretrained import load_distill

RATES = (3e-3, 1e-2, 3e-2)


@dataclass(frozen=True)
class Map:
    """A kernel and its options, over those it has when a model is converted."""

    label: str
    attention: str
    options: dict[str, Any] = field(default_factory=dict)

    @property
    def slug(self) -> str:
        return re.sub(r"[^a-z0-9]+", "-", self.label.lower()).strip("-")


MAPS = (
    Map("hedgehog", "hedgehog"),
    Map("hedgehog, two maps", "hedgehog", {"tied": False}),
    Map("flexformer-s", "flexformer-s"),
    Map("flexformer-s, no centres", "flexformer-s", {"centres": False}),
    Map("flexformer-n", "flexformer-n"),
    Map("flexformer-n, no centres", "flexformer-n", {"centres": False}),
    Map("flexformer-c, pairs", "flexformer-c", {"num_real": 0, "wave_scale": 0.1}),
    Map("flexformer-c, half real", "flexformer-c", {"num_real": "half", "wave_scale": 0.1}),
    Map("flexformer-c, all real", "flexformer-c"),
    Map("flexformer-c, all real, beta frozen", "flexformer-c", {"learn_beta": False}),
    Map("flexformer-c, all real, no centres", "flexformer-c", {"centres": False}),
)


@dataclass(frozen=True)
class Cell:
    """One distillation."""

    map: str
    attention: str
    options: dict[str, Any]
    lr: float
    seed: int
    parameters: int
    kl: float
    """mean over layers, on text that was held out"""
    kl_by_layer: list[float]
    output_error: float
    """of the linear form, relative"""
    negative_weights: float
    nonpositive_denominators: float
    floored_rows: float
    curve: list[tuple[int, float]]
    """steps and mean divergence"""
    seconds: float
    run: str


def chosen(labels: Sequence[str] | None) -> list[Map]:
    """The maps with these labels; all by default."""
    known = {each.label: each for each in MAPS}
    for label in labels or ():
        if label not in known:
            raise ValueError(f"maps has {label!r}; use some of: {'; '.join(known)}")
    return [known[label] for label in labels] if labels else list(MAPS)


def study(
    base: str,
    text: str,
    output: Path,
    shown: TextIO,
    *,
    preset: str = "study",
    maps: Sequence[Map] = MAPS,
    rates: Sequence[float] = RATES,
    seeds: Sequence[int] = (0, 1, 2),
    changes: dict[str, Any] | None = None,
) -> list[Cell]:
    """Run what is missing and return all cells, also written to `kernels.json`.

    Args:
        base: A pretrained encoder or decoder.
        text: To distil on.
        output: Gets a folder for each run.
        shown: Takes what the runs print.
        preset: Of `flexformer distill`.
        maps: See `MAPS`.
        rates: Learning rates to choose from.
        seeds: The first chooses the rate.
        changes: Of the preset, as `load_distill` takes them.
    """
    cells: list[Cell] = []
    for each in maps:
        tried = [_cell(each, base, text, output, shown, preset, lr, seeds[0], changes or {}) for lr in rates]
        best = min(tried, key=lambda cell: cell.kl)
        later = [_cell(each, base, text, output, shown, preset, best.lr, seed, changes or {}) for seed in seeds[1:]]
        cells += [*tried, *later]
        write_json(output / "kernels.json", [asdict(cell) for cell in cells])
    return cells


def _cell(
    each: Map,
    base: str,
    text: str,
    output: Path,
    shown: TextIO,
    preset: str,
    lr: float,
    seed: int,
    changes: dict[str, Any],
) -> Cell:
    settings: dict[str, Any] = {"attention": each.attention, "seed": seed, "kernel": {"options": each.options}}
    settings |= {key: value for key, value in changes.items() if key != "optimizer"}
    settings["optimizer"] = dict(changes.get("optimizer", {})) | {"lr": lr}
    options: DistillOptions = load_distill(preset, base, text, **settings)
    folder = output / f"{each.slug}-lr{lr:g}-seed{seed}"
    record = finish(["distill", base, text], options, folder, shown)
    after = json.loads((folder / REPORT).read_text(encoding="utf-8"))["after"]
    mean = after["mean"]
    return Cell(
        map=each.label,
        attention=each.attention,
        options=each.options,
        lr=lr,
        seed=seed,
        parameters=record.parameters,
        kl=mean["kl"],
        kl_by_layer=[layer["kl"] for layer in after["layers"]],
        output_error=mean["output_error"],
        negative_weights=mean["negative_weights"],
        nonpositive_denominators=mean["nonpositive_denominators"],
        floored_rows=mean["floored_rows"],
        curve=_curve(RunFolder(folder).log_file),
        seconds=record.seconds,
        run=folder.name,
    )


def _curve(log: Path) -> list[tuple[int, float]]:
    entries = [json.loads(line) for line in log.read_text(encoding="utf-8").splitlines()]
    return [(entry["step"], entry["eval_kl"]) for entry in entries if "eval_kl" in entry]


def best_cells(cells: Sequence[Cell]) -> dict[str, list[Cell]]:
    """By map, the cells of its best learning rate, all seeds."""
    found: dict[str, list[Cell]] = {}
    for label in dict.fromkeys(cell.map for cell in cells):
        own = [cell for cell in cells if cell.map == label]
        rate = min((cell for cell in own if cell.seed == own[0].seed), key=lambda cell: cell.kl).lr
        found[label] = [cell for cell in own if cell.lr == rate]
    return found
