"""Attention over a sequence divided over ranks: measured on a few of them, foretold for many.

Small runs measure what the formulas of `flexformer.parallel.cost` need and check what they say: bytes must be right to
the byte, times about right.
"""

from __future__ import annotations

import json
import tempfile
import time
from collections.abc import Callable
from dataclasses import asdict, dataclass, replace
from datetime import timedelta
from functools import partial
from pathlib import Path
from typing import Any

import torch
import torch.distributed as dist
import torch.multiprocessing as mp
from torch import Tensor

from .. import kernels
from ..ops import linear_attention
from ..parallel import Split, cost, sequence_parallel
from .attention import Progress, silent
from .ring import ring_attention
from .timing import Timing

MILLION = 2**20
MANY = (1, 8, 64, 512)
PATIENCE = timedelta(minutes=10)
SMALL, LARGE = 2**10, 2**24  # bytes of messages that show the latency and the bandwidth


@dataclass(frozen=True)
class RanksOptions:
    """See `flexformer bench ranks --help`."""

    lengths: tuple[int, ...] = (4096, 16384)
    ranks: tuple[int, ...] = (1, 2)
    heads: int = 8
    dim: int = 64
    attention: str = "flexformer-n"
    bandwidth: float = 12.5e9
    latency: float = 2e-5
    faster: float = 1000.0
    threads: int = 1
    rounds: int = 5
    smoke: bool = False

    def __post_init__(self) -> None:
        for option in ("heads", "dim", "bandwidth", "latency", "faster", "threads", "rounds"):
            if not getattr(self, option) > 0:
                raise ValueError(f"{option} {getattr(self, option)} is too small; use more than 0")
        if not self.lengths or min(self.lengths) < 1:
            raise ValueError(f"lengths {list(self.lengths)}: use one or more, each at least 1")
        if not {1, 2} <= set(self.ranks) or min(self.ranks) < 1:
            raise ValueError(f"ranks {list(self.ranks)}: 1 and 2 are needed, for the formula's figures")


def measure_ranks(options: RanksOptions, progress: Progress = silent) -> dict[str, Any]:
    """Times and bytes by number of ranks, how far the formula is off, and what it says about many ranks."""
    measured: list[dict[str, Any]] = []
    link: dict[str, float] = {}
    for number, ranks in enumerate(sorted(options.ranks)):
        progress(f"{ranks} ranks", number, len(options.ranks))
        by_rank = _on_ranks(ranks, options)
        for rows in zip(*(found["rows"] for found in by_rank), strict=True):
            slowest = max(rows, key=lambda row: row["seconds"]["median"])
            measured.append(slowest | {"bytes_sent": max(row["bytes_sent"] for row in rows)})
        if ranks == 2:
            link = by_rank[0]["link"]
    shape = shape_of(options)
    here = {form: _speeds(measured, options, form, link) for form in ("whole", "causal")}
    _compare(measured, shape, here)
    return {
        "measurements": measured,
        "link": link,
        "speeds": {form: asdict(speeds) for form, speeds in here.items()},
        "foretold": _foretell(shape, here, options),
    }


def shape_of(options: RanksOptions) -> cost.Shape:
    kernel = kernels.build(options.attention, num_heads=options.heads, head_dim=options.dim)
    return cost.Shape(options.heads, options.dim, kernel.num_features)


def _speeds(measured: list[dict[str, Any]], options: RanksOptions, form: str, link: dict[str, float]) -> cost.Speeds:
    """From one rank at the longest length, where what happens once weighs least."""
    length = max(options.lengths)
    alone = {row["row"]: row["seconds"]["median"] for row in measured if (row["ranks"], row["length"]) == (1, length)}
    # A training step of softmax takes about three and a half forwards: five products of matrices instead of two, and
    # the weights once more.
    return cost.Speeds(
        per_token=alone[form] / length,
        per_pair=3.5 * alone["ring"] / length**2,
        bandwidth=link["bandwidth"],
        latency=link["latency"],
    )


def _compare(measured: list[dict[str, Any]], shape: cost.Shape, speeds: dict[str, cost.Speeds]) -> None:
    """Put beside every measurement what the formula says."""
    for row in measured:
        ranks, length, name = row["ranks"], row["length"], row["row"]
        if name == "ring":
            forward = replace(speeds["whole"], per_pair=speeds["whole"].per_pair / 3.5)
            sent = cost.ring_bytes_sent(shape, ranks, length, cost.RING_FORWARD)
            computing = forward.per_pair * length**2 / ranks
            row["foretold_seconds"] = computing + sent / forward.bandwidth + (ranks - 1) * forward.latency
            row["foretold_bytes"] = sent
        else:
            row["foretold_seconds"] = cost.seconds(shape, speeds[name], ranks, length, name == "causal")
            row["foretold_bytes"] = cost.bytes_sent(shape, ranks, name == "causal")


def _foretell(shape: cost.Shape, here: dict[str, cost.Speeds], options: RanksOptions) -> list[dict[str, Any]]:
    """A million tokens on many ranks, on cores as this one and on devices `faster` times as fast."""
    found = []
    for form, measured in here.items():
        for faster in (1.0, options.faster):
            speeds = cost.Speeds(
                measured.per_token / faster, measured.per_pair / faster, options.bandwidth, options.latency
            )
            for ranks in MANY:
                causal = form == "causal"
                ours = cost.seconds(shape, speeds, ranks, MILLION, causal)
                ring = cost.ring_seconds(shape, speeds, ranks, MILLION, causal)
                row = {
                    "form": form,
                    "faster": faster,
                    "ranks": ranks,
                    "bytes_sent": cost.bytes_sent(shape, ranks, causal),
                    "ring_bytes_sent": cost.ring_bytes_sent(shape, ranks, MILLION),
                    "tokens_per_second": MILLION / ours,
                    "ring_tokens_per_second": MILLION / ring,
                    "exchanging": 1 - speeds.per_token * MILLION / ranks / ours,
                }
                found.append(row)
    return found


def _on_ranks(size: int, options: RanksOptions) -> list[dict[str, Any]]:
    """What `_measure` finds on each rank."""
    context = mp.get_context("spawn")
    with tempfile.TemporaryDirectory(prefix="flexformer-ranks-") as folder:
        started = [context.Process(target=_rank, args=(rank, size, folder, options)) for rank in range(size)]
        for process in started:
            process.start()
        for process in started:
            process.join()
        if any(process.exitcode for process in started):
            codes = ", ".join(str(process.exitcode) for process in started)
            raise RuntimeError(f"ranks ended with {codes}; what they said is above")
        return [json.loads(Path(folder, f"{rank}.json").read_text()) for rank in range(size)]


def _rank(rank: int, size: int, folder: str, options: RanksOptions) -> None:
    torch.set_num_threads(options.threads)
    meeting = f"file://{folder}/meeting"
    dist.init_process_group("gloo", init_method=meeting, rank=rank, world_size=size, timeout=PATIENCE)
    try:
        found = _measure(options)
        Path(folder, f"{rank}.json").write_text(json.dumps(found))
    finally:
        dist.destroy_process_group()


def _measure(options: RanksOptions) -> dict[str, Any]:
    """All forms and lengths on this rank."""
    torch.manual_seed(0)
    kernel = kernels.build(options.attention, num_heads=options.heads, head_dim=options.dim)
    rows = []
    for length in options.lengths:
        split = Split()
        own = split.bounds(length)
        inputs = [
            torch.randn(1, options.heads, own.stop - own.start, options.dim, requires_grad=True) for _ in range(3)
        ]
        for name, is_causal in (("whole", False), ("causal", True)):
            rows.append(_timed(name, length, partial(_both_ways, inputs, kernel, is_causal), options.rounds))
        rows.append(_timed("ring", length, partial(_ring, inputs), options.rounds))
    return {"rows": rows, "link": _link(Split()) if dist.get_world_size() == 2 else {}}


def _both_ways(inputs: list[Tensor], kernel: kernels.Kernel, is_causal: bool) -> int:
    """Forward and backward; the bytes this rank sent."""
    with sequence_parallel() as split:
        out = linear_attention(inputs[0], inputs[1], inputs[2], kernel, is_causal)
        torch.autograd.grad(out, [*inputs, *kernel.trained_parameters()], torch.ones_like(out))
        return split.bytes_sent


@torch.no_grad()
def _ring(inputs: list[Tensor]) -> int:
    split = Split()
    ring_attention(inputs[0], inputs[1], inputs[2], split)
    return split.bytes_sent


def _timed(name: str, length: int, call: Callable[[], int], rounds: int) -> dict[str, Any]:
    call()
    samples, sent = [], 0
    for _ in range(rounds):
        dist.barrier()
        began = time.perf_counter()
        sent = call()
        samples.append(time.perf_counter() - began)
    return {
        "row": name,
        "length": length,
        "ranks": dist.get_world_size(),
        "seconds": Timing.of(samples)._asdict(),
        "bytes_sent": sent,
    }


def _link(split: Split) -> dict[str, float]:
    """Latency and bandwidth between two ranks, from messages there and back."""

    def one_way(size: int, times: int) -> float:
        message = torch.zeros(size, dtype=torch.uint8)
        samples = []
        for _ in range(times):
            dist.barrier()
            began = time.perf_counter()
            for step in (1, -1):
                split.shift(message, step)
            samples.append((time.perf_counter() - began) / 2)
        return sorted(samples)[len(samples) // 2]

    latency = one_way(SMALL, 50)
    return {"latency": latency, "bandwidth": LARGE / max(one_way(LARGE, 7) - latency, 1e-9)}
