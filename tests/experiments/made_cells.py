"""Cells of the kernel study as they would lie in results/."""

from __future__ import annotations

from typing import Any

from flexformer.experiments.results import Result


def kernel_cell(label: str, lr: float, seed: int, preset: str, **measured: Any) -> Result:
    """A finished cell with these figures."""
    return Result(
        table="kernels",
        cell=f"{label}-{lr}-{seed}",
        labels={"map": label, "attention": label, "lr": lr},
        preset=preset,
        seed=seed,
        digest="",
        command=[],
        commit=None,
        dirty=None,
        versions={},
        machine={},
        seconds=1.0,
        **measured,
    )
