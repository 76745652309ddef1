"""What scoring a block of text against a large vocabulary costs: by bands that occur, or over all words.

Words are drawn as they occur in natural text, the word of rank r with a probability proportional to 1 / (r + 2.7).
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass
from typing import Any

import torch
from torch import Tensor
from torch.nn import functional as F

from .attention import Progress, silent
from .memory import Memory, Probe
from .timing import Failure, Timing, alternate, fixed_threads

ROWS = ("adaptive", "adaptive-in-full", "tied")
ZIPF_SHIFT = 2.7


@dataclass(frozen=True)
class VocabularyOptions:
    """See `flexformer bench vocabulary --help`."""

    words: int = 267_744
    width: int = 512
    cutoffs: tuple[int, ...] = (20_000, 60_000)
    tokens: int = 512
    threads: int = 1
    rounds: int = 5
    seconds: float = 60.0
    timeout: float = 300.0
    smoke: bool = False

    def __post_init__(self) -> None:
        for option in ("words", "width", "tokens", "threads", "rounds"):
            if getattr(self, option) < 1:
                raise ValueError(f"{option} {getattr(self, option)} is too small; use at least 1")


def measure_vocabulary(options: VocabularyOptions, progress: Progress = silent) -> dict[str, Any]:
    """Time forward and backward of every row in turn, and their peak memory."""
    memories: dict[str, Memory | Failure] = {}
    with Probe(options.threads, options.timeout, ["flexformer.models"]) as probe:
        for number, row in enumerate(ROWS):
            progress(f"memory of {row}", number, len(ROWS))
            target = "flexformer.bench.vocabulary:probe_call"
            memories[row] = probe.measure(target, row=row, options=asdict(options))
    with fixed_threads(options.threads):
        timings = alternate(
            {row: scoring(row, options)[0] for row in ROWS},
            rounds=options.rounds,
            seconds=options.seconds,
            on_sample=lambda done, total: progress("timing each in turn", done, total),
        )
    found = []
    for row in ROWS:
        memory, timing = memories[row], timings[row]
        note = next((part.reason for part in (memory, timing) if isinstance(part, Failure)), None)
        found.append(
            {
                "row": row,
                "parameters": scoring(row, options)[1],
                "seconds": timing._asdict() if isinstance(timing, Timing) else None,
                "peak_bytes": memory.peak_bytes if isinstance(memory, Memory) else None,
                "note": note,
            }
        )
    return {"measurements": found}


def scoring(row: str, options: VocabularyOptions) -> tuple[Callable[[], Tensor], int]:
    """Forward and backward of one block's loss, as a call; and the number of parameters."""
    from ..models import AdaptiveVocabulary, TiedVocabulary, Vocabulary  # transformers takes seconds to import

    torch.manual_seed(0)
    vocabulary: Vocabulary = (
        TiedVocabulary(options.words, options.width)
        if row == "tied"
        else AdaptiveVocabulary(options.words, options.width, options.cutoffs)
    )
    chances = 1.0 / (torch.arange(options.words) + 1 + ZIPF_SHIFT)
    targets = torch.multinomial(chances, options.tokens, replacement=True)
    x = torch.randn(options.tokens, options.width, requires_grad=True)

    def score() -> Tensor:
        vocabulary.zero_grad()
        in_full = row == "adaptive-in-full"
        loss = F.nll_loss(vocabulary.scores(x), targets) if in_full else vocabulary.surprise(x, targets).mean()
        loss.backward()
        return loss.detach()

    return score, sum(p.numel() for p in vocabulary.parameters())


def probe_call(row: str, options: dict[str, Any]) -> tuple[Callable[[], Any], Callable[[], Any], Sequence[Tensor]]:
    """What the memory probe runs: a small case to warm up, then the block."""
    given = VocabularyOptions(**{**options, "cutoffs": tuple(options["cutoffs"])})
    small = VocabularyOptions(words=64, width=options["width"], cutoffs=(16, 32)[: len(given.cutoffs)], tokens=4)
    return scoring(row, small)[0], scoring(row, given)[0], ()
