"""One training step of a whole model: two documents of 4000 bytes through one encoder, do they belong together?

The settings are those of Long Range Arena's Retrieval task with heads of width 64. They drop a tenth of the attention
weights, which kernels have none of and torch's fused softmax cannot do on a CPU: asked to, it forms them all instead.
"softmax-unfused-dropout" is that, "softmax-unfused" the same without dropping, "softmax" the fused one.
"""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass
from typing import Any

import torch
from torch import Tensor
from torch.nn.attention import SDPBackend, sdpa_kernel

from .. import attention
from ..attention import parameter_groups
from .attention import Progress, measurement, silent
from .memory import Memory, Probe
from .operations import SDPA, UNFUSED
from .timing import Failure, alternate, failure_of, fixed_threads

DROPPED = "softmax-unfused-dropout"
BASES = (DROPPED, UNFUSED, SDPA)
ATTENTION_DROPOUT = 0.1
WARM_UP_LENGTH = 128
VOCABULARY = 257


@dataclass(frozen=True)
class ModelOptions:
    """See `flexformer bench model --help`."""

    length: int = 4000
    pairs: int = 1
    rows: tuple[str, ...] = ()
    layers: int = 4
    width: int = 128
    feed_forward: int = 512
    heads: int = 2
    threads: int = 1
    rounds: int = 5
    seconds: float = 60.0
    timeout: float = 300.0
    memory: bool = True
    smoke: bool = False

    def __post_init__(self) -> None:
        for option in ("length", "pairs", "layers", "width", "feed_forward", "heads", "threads", "rounds"):
            if getattr(self, option) < 1:
                raise ValueError(f"{option} {getattr(self, option)} is too small; use at least 1")


def model_rows() -> list[str]:
    return [SDPA, UNFUSED, DROPPED, *(name for name in attention.ATTENTIONS if name != SDPA)]


def measure_model(options: ModelOptions, progress: Progress = silent) -> dict[str, Any]:
    """Time a training step of every row in turn, and its peak memory."""
    known = model_rows()
    for name in options.rows:
        if name not in known:
            raise ValueError(f"rows: {name!r} is unknown; use some of {', '.join(known)}")
    rows = list(options.rows) or known
    memories: dict[str, Memory] = {}
    notes: dict[str, str] = {}
    if options.memory:
        with Probe(options.threads, options.timeout, ["flexformer.models"]) as probe:
            for number, row in enumerate(rows):
                progress(f"memory of a step with {row}", number, len(rows))
                memory = probe.measure("flexformer.bench.model:probe_step", row=row, options=asdict(options))
                if isinstance(memory, Failure):
                    notes[row] = memory.reason
                else:
                    memories[row] = memory
    parameters: dict[str, int] = {}
    steps: dict[str, Callable[[], Any]] = {}
    with fixed_threads(options.threads):
        for row in rows:
            if row in notes:
                continue
            try:
                step, parameters[row] = training_step(row, options, options.length)
            except ValueError as error:
                notes[row] = failure_of(error).reason
            else:
                steps[row] = step
        timings = alternate(
            steps,
            rounds=options.rounds,
            seconds=options.seconds,
            on_sample=lambda done, total: progress("timing a step of each in turn", done, total),
        )
    found = []
    for row in rows:
        timing = timings.get(row)
        note = timing.reason if isinstance(timing, Failure) else notes.get(row)
        this = measurement(row, "softmax", options.length, "training step", timing, memories.get(row), note)
        del this["family"]
        found.append({**this, "parameters": parameters.get(row)})
    return {"measurements": found}


def training_step(row: str, options: ModelOptions, length: int) -> tuple[Callable[[], Tensor], int]:
    """Forward, backward and an optimizer step on `pairs` random pairs, as a call; and the number of parameters."""
    from ..models import DualEncoder, DualEncoderConfig  # transformers takes seconds to import

    torch.manual_seed(0)
    config = DualEncoderConfig(
        vocab_size=VOCABULARY,
        hidden_size=options.width,
        intermediate_size=options.feed_forward,
        num_hidden_layers=options.layers,
        num_attention_heads=options.heads,
        max_position_embeddings=options.length,
        attention=SDPA if row in BASES else row,
        attention_dropout=ATTENTION_DROPOUT if row == DROPPED else 0.0,
    )
    model = DualEncoder(config).train()
    optimizer = torch.optim.AdamW(parameter_groups(model, weight_decay=0.1), lr=1e-3, betas=(0.9, 0.98), eps=1e-9)
    first, second = (torch.randint(1, VOCABULARY, (options.pairs, length)) for _ in range(2))
    labels = torch.zeros(options.pairs, dtype=torch.long)

    def step() -> Tensor:
        optimizer.zero_grad()
        with unfused_softmax() if row in (UNFUSED, DROPPED) else contextlib.nullcontext():
            loss: Tensor = model(first, second, labels=labels).loss
            loss.backward()
        optimizer.step()
        return loss.detach()

    return step, sum(p.numel() for p in model.parameters())


def unfused_softmax() -> contextlib.AbstractContextManager[Any]:
    """Softmax attention as matrix product, softmax, matrix product, with all weights in memory."""
    chosen: contextlib.AbstractContextManager[Any] = sdpa_kernel(SDPBackend.MATH)
    return chosen


def probe_step(row: str, options: dict[str, Any]) -> tuple[Callable[[], Any], Callable[[], Any], Sequence[Tensor]]:
    """What the memory probe runs: a short step to warm up, then the step."""
    given = ModelOptions(**options)
    warm_up, _ = training_step(row, given, min(given.length, WARM_UP_LENGTH))
    step, _ = training_step(row, given, given.length)
    return warm_up, step, ()
