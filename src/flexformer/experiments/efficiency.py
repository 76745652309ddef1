"""The paper's figure 2: time and memory of the Retrieval model, over lengths and of every attention.

(a) one forward pass of softmax, linear and flexformer-n at growing lengths; (b) one training step of every attention at
4000 tokens, with the accuracy that table 1 found. What is compared is measured in turn, in one cell.
"""

from __future__ import annotations

import contextlib
import time
from collections.abc import Callable, Sequence
from typing import Any

import torch
from torch import Tensor

from flexformer.bench.attention import measurement
from flexformer.bench.memory import Memory, Probe
from flexformer.bench.model import VOCABULARY, WARM_UP_LENGTH, ModelOptions, measure_model, unfused_softmax
from flexformer.bench.operations import SDPA, UNFUSED
from flexformer.bench.record import describe_machine, load
from flexformer.bench.timing import Failure, alternate, fixed_threads
from flexformer.models import DualEncoder, DualEncoderConfig

FORWARD = "forward"


def measure_steps(**options: Any) -> dict[str, Any]:
    """A training step of every row, measured in turn; options as of `flexformer bench model`."""
    started, load_before = time.perf_counter(), load()
    found = measure_model(ModelOptions(**{**options, "rows": tuple(options["rows"])}))
    return described(found, started, load_before)


def measure_forward(
    length: int,
    rows: Sequence[str],
    pairs: int = 1,
    layers: int = 4,
    width: int = 128,
    feed_forward: int = 512,
    heads: int = 2,
    threads: int = 1,
    rounds: int = 5,
    seconds: float = 30.0,
    timeout: float = 300.0,
) -> dict[str, Any]:
    """A forward pass of every row at one length, measured in turn: time, and peak memory in processes of their own."""
    started, load_before = time.perf_counter(), load()
    sizes = {"layers": layers, "width": width, "feed_forward": feed_forward, "heads": heads, "pairs": pairs}
    memories: dict[str, Memory] = {}
    notes: dict[str, str] = {}
    with Probe(threads, timeout, ["flexformer.models"]) as probe:
        for row in rows:
            found = probe.measure(f"{__name__}:probe_forward", row=row, length=length, sizes=sizes)
            if isinstance(found, Failure):
                notes[row] = found.reason
            else:
                memories[row] = found
    with fixed_threads(threads):
        calls = {row: forward_pass(row, length, sizes) for row in rows if row not in notes}
        timings = alternate(calls, rounds=rounds, seconds=seconds)
    measured = []
    for row in rows:
        timing = timings.get(row)
        note = timing.reason if isinstance(timing, Failure) else notes.get(row)
        this = measurement(row, "softmax", length, FORWARD, timing, memories.get(row), note)
        del this["family"]
        measured.append(this)
    return described({"measurements": measured}, started, load_before)


def described(found: dict[str, Any], started: float, load_before: float | None) -> dict[str, Any]:
    """What was measured, with what times depend on."""
    seconds = time.perf_counter() - started
    return {**found, "hardware": describe_machine(), "load_before": load_before, "seconds": seconds}


def forward_pass(row: str, length: int, sizes: dict[str, int]) -> Callable[[], Tensor]:
    """Both documents of some pairs through the encoder and the head, in evaluation, as a call."""
    torch.manual_seed(0)
    config = DualEncoderConfig(
        vocab_size=VOCABULARY,
        hidden_size=sizes["width"],
        intermediate_size=sizes["feed_forward"],
        num_hidden_layers=sizes["layers"],
        num_attention_heads=sizes["heads"],
        max_position_embeddings=length,
        attention=SDPA if row == UNFUSED else row,
    )
    model = DualEncoder(config).eval()
    first, second = (torch.randint(1, VOCABULARY, (sizes["pairs"], length)) for _ in range(2))

    def call() -> Tensor:
        with torch.no_grad(), unfused_softmax() if row == UNFUSED else contextlib.nullcontext():
            logits: Tensor = model(first, second).logits
        return logits

    return call


def probe_forward(
    row: str, length: int, sizes: dict[str, int]
) -> tuple[Callable[[], Tensor], Callable[[], Tensor], Sequence[Tensor]]:
    """What the memory probe runs: a short pass to warm up, then the pass."""
    return forward_pass(row, min(length, WARM_UP_LENGTH), sizes), forward_pass(row, length, sizes), ()
