"""How time and memory grow with the length."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, replace
from typing import Any

from .attention import AttentionOptions, Progress, measure_attention, silent
from .memory import Probe
from .operations import OURS, SDPA, UNFUSED
from .timing import Failure

UPPER_RANGE = 2**14  # slopes are fitted from here on, where fixed costs no longer show
MILLION = 2**20
STEADY = 1.3  # a machine whose speed changes by no more is steady enough to compare lengths


@dataclass(frozen=True)
class ScalingOptions(AttentionOptions):
    """See `flexformer bench scaling --help`."""

    lengths: tuple[int, ...] = tuple(2**power for power in range(10, 19))
    rows: tuple[str, ...] = (SDPA, UNFUSED, "linear", OURS)
    rounds: int = 5
    fit_from: int = UPPER_RANGE
    million: bool = False


def measure_scaling(options: ScalingOptions, progress: Progress = silent) -> dict[str, Any]:
    """Measure the rows at all lengths and fit how they grow.

    Returns:
        What `measure_attention` gives, and `slopes`: for every row and pass the power of the length that time and
        memory grow with; with `million`, what a forward over 2^20 tokens with one head takes.
    """
    found = measure_attention(options, progress)
    found["slopes"] = slopes(found["measurements"], options.fit_from)
    if options.million:
        progress(f"N = {MILLION}: memory of {OURS}, forward", 0, 1)
        found["million"] = measure_million(options)
    return found


def measure_million(options: ScalingOptions) -> dict[str, Any]:
    """Peak memory of a forward of flexformer-n over 2^20 tokens, one head, beside the size of q, k, v and out."""
    case = replace(options.case(MILLION), batch=1, heads=1, is_causal=False)
    with Probe(options.threads, timeout=max(300.0, options.budget)) as probe:
        memory = probe.measure(
            "flexformer.bench.attention:probe_call", row=OURS, case=asdict(case), direction="forward"
        )
    if isinstance(memory, Failure):
        return {"length": MILLION, "note": memory.reason}
    return {"length": MILLION, **memory._asdict(), "tensors_bytes": memory.input_bytes + memory.output_bytes}


def slopes(measurements: Sequence[dict[str, Any]], fit_from: int) -> list[dict[str, Any]]:
    """Log-log slopes of time and of peak memory by least squares over lengths of at least `fit_from`."""
    found = []
    for row, direction in dict.fromkeys((m["row"], m["pass"]) for m in measurements):
        points = [m for m in measurements if (m["row"], m["pass"]) == (row, direction) and m["length"] >= fit_from]
        times = [(m["length"], m["seconds"]["median"]) for m in points if m["seconds"]]
        peaks = [(m["length"], m["memory"]["peak_bytes"]) for m in points if m["memory"]]
        found.append({"row": row, "pass": direction, "time": slope(times), "memory": slope(peaks)})
    return found


def drift(found: Mapping[str, Any]) -> float:
    """How many times as long the same call took beside one length as beside another; 1 where it was not timed."""
    seconds = [each["seconds"] for each in found.get("pace", [])]
    return max(seconds) / min(seconds) if seconds else 1.0


def slope(points: Sequence[tuple[int, float | None]]) -> float | None:
    """The power b of the fit y = a x^b; None with fewer than three points."""
    known = [(math.log(x), math.log(y)) for x, y in points if y]
    if len(known) < 3:
        return None
    mean_x, mean_y = (sum(values) / len(known) for values in zip(*known, strict=True))
    covariance = sum((x - mean_x) * (y - mean_y) for x, y in known)
    return covariance / sum((x - mean_x) ** 2 for x, _ in known)
