"""Cells of the kernel study as they would lie in results/."""

from __future__ import annotations

from typing import Any

from flexformer.experiments.results import Result


def made(table: str, cell: str, labels: dict[str, Any], preset: str, seed: int, **measured: Any) -> Result:
    """A finished cell of nowhere."""
    nowhere: dict[str, Any] = {
        "digest": "",
        "command": [],
        "commit": None,
        "dirty": None,
        "versions": {},
        "machine": {},
    }
    return Result(table, cell, labels, preset, seed, seconds=1.0, **(nowhere | measured))


def kernel_cell(label: str, lr: float, seed: int, preset: str, **measured: Any) -> Result:
    """A finished cell with these figures."""
    labels = {"map": label, "attention": label, "lr": lr}
    return made("kernels", f"{label}-{lr}-{seed}", labels, preset, seed, **measured)
