"""Which kernel recovers a trained softmax best: every learnable map distilled under equal conditions.

All maps have as many features, take as many steps on the same text and choose among the same learning rates, on the
first seed; the other seeds run at the rate that was best there.
"""

from __future__ import annotations

from collections.abc import Collection, Sequence
from itertools import pairwise
from statistics import mean
from typing import Any, ClassVar

from .cells import Cell
from .maps import MAPS, MapExperiment
from .results import Result
from .tables import Column, Row, Table, Value

RATES = {"paper": (1e-3, 3e-3, 1e-2), "cpu": (1e-2, 3e-2, 1e-1), "smoke": (1e-2, 3e-2, 1e-1)}
"""scale -> learning rates; the paper's own is its first"""
BASELINE = "hedgehog"
DRAWN = (
    "hedgehog",
    "flexformer-s",
    "flexformer-n",
    "flexformer-c, all real",
    "flexformer-c, half real",
    "flexformer-c, pairs",
    "hedgehog, two maps",
)
"""maps in the picture; those that differ from one of them in one option stand in the table"""


class KernelStudy(MapExperiment):
    """Every map at every learning rate.

    Args:
        preset: paper, cpu or smoke.
        root: Folder GLUE lives in, for texts such as glue:cola.
        base: A pretrained encoder or decoder; default the scale's own.
        text: To distil on; default the scale's own.
        rates: Learning rates to choose from; default the scale's own.
    """

    name: ClassVar[str] = "kernels"

    def __init__(
        self,
        preset: str,
        root: str | None = None,
        base: str | None = None,
        text: str | None = None,
        rates: Sequence[float] | None = None,
    ) -> None:
        super().__init__(preset, root, base, text)
        self.rates = list(RATES[preset] if rates is None else rates)
        if not self.rates:
            raise ValueError("rates is empty; name at least one")

    def rows(self) -> tuple[str, ...]:
        return tuple(each.label for each in MAPS)

    def cells(self, attentions: Sequence[str], seeds: Sequence[int]) -> list[Cell]:
        """Every learning rate with the first seed."""
        return [self._cell(label, rate, seeds[0]) for label in attentions for rate in self.rates] if seeds else []

    def following(self, found: Sequence[Result], attentions: Sequence[str], seeds: Sequence[int]) -> list[Cell]:
        """The best learning rate of every map with the other seeds."""
        cells = []
        for label in attentions:
            tried = [r for r in found if r.labels["map"] == label and r.seed == seeds[0]]
            if {r.labels["lr"] for r in tried} >= set(self.rates):
                rate = min(tried, key=divergence).labels["lr"]
                cells += [self._cell(label, rate, seed) for seed in seeds[1:]]
        return cells

    def planned(self, found: Sequence[Result]) -> list[Cell]:
        known = {(r.labels["map"], r.labels["lr"], r.seed) for r in found}
        return [self._cell(*each) for each in sorted(known) if each[0] in self.rows()]

    def _cell(self, label: str, rate: float, seed: int) -> Cell:
        return self.cell(label, f"-lr{rate:g}", seed, optimizer={"lr": rate})

    def tables(self, found: Sequence[Result]) -> list[Table]:
        columns = (
            Column("lr", "", 3, None),
            Column("KL", "", 4, "lower"),
            Column("times hedgehog's", "", 2, None),
            Column("sharp heads", "", 3, "lower"),
            Column("flat heads", "", 3, "lower"),
            Column("output error", "", 3, "lower"),
            Column("negative, %", "", 2, None),
            Column("den <= 0, %", "", 3, None),
            Column("floored, %", "", 2, None),
            Column("parameters", "", 0, None),
            Column("seeds", "", 0, None),
        )
        best = best_cells(found)
        ranked = sorted(best, key=lambda label: mean(divergence(r) for r in best[label]))
        base = mean(divergence(r) for r in best[BASELINE]) if BASELINE in best else None
        rows = [Row(label, _values(best[label], base)) for label in ranked]
        if self.subject.is_default(self.preset, self.root):
            rows += [Row(label, (None,) * len(columns)) for label in self.rows() if label not in best]
        first = min((result.seed for result in found), default=0)
        tried = [{r.labels["lr"] for r in found if (r.labels["map"], r.seed) == (label, first)} for label in best]
        rates = ", ".join(f"{rate:g}" for rate in sorted(set.intersection(*tried))) if tried else "none"
        notes = (
            f"{self.subject}{_text(found)}. KL is the divergence of attention weights from softmax's, in nats, mean "
            "over layers; negative weights are raised to a millionth of the mean size of their row's. Of sharp and "
            "flat heads it is the mean over the quarter where softmax's entropy is lowest and highest. The other "
            "figures are of the linear form, with negative weights. Each map shows the learning rate of least KL; all "
            f"were tried with {rates} on the first seed." + _own_settings(best),
        )
        title = f"Divergence from softmax after distillation, {self.preset} scale"
        return [Table(self.stem, title, "map", columns, tuple(rows), notes)]

    def plot(self, tables: Sequence[Table], found: Sequence[Result]) -> dict[str, bytes]:
        if not found:
            return {}
        from flexformer.viz.kernels import plot_kernel_study

        best = best_cells(found)
        drawn = [label for label in DRAWN if label in best] or list(best)
        runs = {label: [_run(result) for result in best[label]] for label in drawn}
        caption = f"{self.subject}, best learning rate of each map"
        return plot_kernel_study(runs, caption)


def divergence(result: Result) -> float:
    """Mean over layers, after distillation."""
    return result.metrics["after_kl"]


def best_cells(found: Sequence[Result]) -> dict[str, list[Result]]:
    """By map, the results of its best learning rate, all seeds."""
    best: dict[str, list[Result]] = {}
    for label in dict.fromkeys(result.labels["map"] for result in found):
        own = [result for result in found if result.labels["map"] == label]
        first = min(result.seed for result in own)
        rate = min((result for result in own if result.seed == first), key=divergence).labels["lr"]
        best[label] = [result for result in own if result.labels["lr"] == rate]
    return best


def _text(found: Sequence[Result]) -> str:
    """How much of a text was read, and what was held out of it."""
    options = found[0].options if found else {}
    longest, held_out = (options.get(f"data.{name}") for name in ("max_length", "validation_limit"))
    if longest is None or held_out is None:
        return ""
    return (
        f", sequences of at most {longest} tokens. Figures are of {held_out} sequences that were held out, the same "
        "for every seed and learning rate: deviations are those of starts and of the order of the others"
    )


def _own_settings(shown: Collection[str]) -> str:
    """A sentence on maps that do not have what all others have."""
    own = []
    for each in MAPS:
        if each.loss and each.label in shown:
            given = {f"loss.{name}": value for name, value in each.loss.items()}
            given |= {name: value for name, value in each.options.items() if name == "floor"}
            own.append(f"{each.label}: {', '.join(f'{name} {value:g}' for name, value in given.items())}")
    return f" Settings of their own: {'; '.join(own)}." if own else ""


def _values(own: Sequence[Result], base: float | None) -> tuple[Value | None, ...]:
    def of(name: str, factor: float = 1.0) -> Value | None:
        return Value.of([factor * result.metrics[f"after_{name}"] for result in own])

    return (
        Value(own[0].labels["lr"]),
        of("kl"),
        None if base is None else of("kl", 1 / base),
        *(Value.of([by_sharpness(r, 4)[which][1] for r in own if "heads" in r.details]) for which in (0, -1)),
        of("output_error"),
        of("negative_weights", 100.0),
        of("nonpositive_denominators", 100.0),
        of("floored_rows", 100.0),
        Value(float(own[0].parameters)),
        Value(float(len(own))),
    )


def by_sharpness(result: Result, parts: int) -> list[tuple[float, float]]:
    """Mean entropy and divergence of heads in so many parts of equal size, those of the lowest entropy first."""
    ranked = sorted(result.details["heads"])
    parts = min(parts, len(ranked))
    edges = [round(len(ranked) * part / parts) for part in range(parts + 1)]
    members = [ranked[start:end] for start, end in pairwise(edges)]
    return [(mean(entropy for entropy, _ in part), mean(kl for _, kl in part)) for part in members]


def _run(result: Result) -> dict[str, Any]:
    run = {"kl": divergence(result), "curve": result.curve, "kl_by_layer": result.details["kl_by_layer"]}
    return run | ({"by_entropy": by_sharpness(result, 6)} if "heads" in result.details else {})
