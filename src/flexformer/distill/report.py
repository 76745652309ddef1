"""What distillation found about each layer and head."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import asdict, dataclass
from typing import Any

import numpy as np

from .loss import SUMS

MUCH_LONGER = 2


@dataclass(frozen=True)
class Findings:
    """Kernels beside the softmax attention they stand for, on the same queries and keys.

    The cross-entropy is between softmax's weights and what is left of the kernel's without negative ones; softmax's own
    entropy is the least it can be. The other figures are those of the linear form, which is what runs.
    """

    cross_entropy: float
    entropy: float
    """of softmax's weights"""
    output_error: float
    """root mean square error of the attention's output, relative to its root mean square"""
    negative_weights: float
    """share of pairs with a weight below zero"""
    nonpositive_denominators: float
    """share of rows whose weights sum to zero or less"""
    floored_rows: float
    """share of rows whose denominator the kernel's policy replaced"""

    @property
    def kl(self) -> float:
        """Cross-entropy above the entropy: the Kullback-Leibler divergence."""
        return self.cross_entropy - self.entropy

    @classmethod
    def of(cls, sums: np.ndarray) -> Findings:
        """Of sums (len(SUMS),), see `loss.SUMS`."""
        found = dict(zip(SUMS, np.asarray(sums, np.float64), strict=True))
        rows, pairs = max(found["rows"], 1.0), max(found["pairs"], 1.0)
        return cls(
            cross_entropy=float(found["cross_entropy"] / rows),
            entropy=float(found["entropy"] / rows),
            output_error=float(np.sqrt(found["output_error"] / max(found["output_power"], 1e-30))),
            negative_weights=float(found["negative_pairs"] / pairs),
            nonpositive_denominators=float(found["nonpositive_rows"] / rows),
            floored_rows=float(found["floored_rows"] / rows),
        )

    def as_dict(self) -> dict[str, float]:
        """Plain values, the divergence among them."""
        return {"kl": self.kl, **asdict(self)}


@dataclass(frozen=True)
class Report:
    """All layers, and all heads of each."""

    layers: dict[int, Findings]
    heads: dict[int, list[Findings]]

    @classmethod
    def of(cls, sums: np.ndarray, layers: list[int]) -> Report:
        """Of a `Distiller`'s sums on many sequences, (N, layers, heads, len(SUMS))."""
        total = np.asarray(sums, np.float64).sum(0)
        heads = {
            layer: [Findings.of(head) for head in rows if head[SUMS.index("rows")] > 0]
            for layer, rows in zip(layers, total, strict=True)
        }
        return cls({layer: Findings.of(rows.sum(0)) for layer, rows in zip(layers, total, strict=True)}, heads)

    def mean(self) -> Findings:
        """Over layers."""
        rows = [asdict(found) for found in self.layers.values()]
        return Findings(**{name: float(np.mean([row[name] for row in rows])) for name in rows[0]})

    def as_dict(self) -> dict[str, Any]:
        """Plain values for JSON, layers as a list."""
        return {
            "mean": self.mean().as_dict(),
            "layers": [
                {"layer": layer, **found.as_dict(), "heads": [head.as_dict() for head in self.heads[layer]]}
                for layer, found in self.layers.items()
            ],
        }


def lengths_line(report: Mapping[str, Any]) -> str:
    """For how long sequences the figures of a distillation's report stand."""
    if "lengths" not in report:
        return "The lengths of sequences were not noted."
    learned, judged = (report["lengths"][split] for split in ("train", "validation"))
    return (
        f"Kernels learned from sequences of {learned['median']:,} tokens (median; at most {learned['longest']:,}) and "
        f"were judged on held-out ones of {judged['median']:,} (at most {judged['longest']:,})."
    )


def length_warning(report: Mapping[str, Any], length: int) -> str | None:
    """What to know before a model is used at a length far beyond those its kernels learned from."""
    longest = report["lengths"]["train"]["longest"] if "lengths" in report else length
    if length <= MUCH_LONGER * longest:
        return None
    return (
        f"Warning: kernels learned from at most {longest:,} tokens, and nothing about {length:,}; for long inputs "
        "distil with a longer --data.max_length and --data.join true."
    )


def metrics(sums: np.ndarray, layers: list[int]) -> dict[str, float]:
    """What is logged after each evaluation: the loss, means over layers, and every layer's divergence."""
    report = Report.of(sums, layers)
    totals = np.asarray(sums, np.float64).sum((0, 2))
    losses = totals[:, SUMS.index("loss")] / np.maximum(totals[:, SUMS.index("rows")], 1.0)
    by_layer = {f"kl_of_layer_{layer}": found.kl for layer, found in report.layers.items()}
    return {"loss": float(np.mean(losses)), **report.mean().as_dict(), **by_layer}
