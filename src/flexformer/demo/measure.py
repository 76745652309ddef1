"""What the demo measures after training: time and memory against the length, and what writing costs."""

from __future__ import annotations

import time
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import torch

from ..bench import AttentionOptions, ScalingOptions, load, measure_attention, new_record
from ..bench.attention import Progress, silent
from ..bench.generation import TokenCost, token_costs
from ..models import CausalLM, snapshots
from ..tasks.tokenizer import byte_tokenizer

PROMPT = "class Queue:\n    def __init__(self"
WRITTEN = 400

SHORT, LONG = (256, 1024, 4096, 16384), (65536,)
"""lengths for all attentions, and for those whose cost is linear alone"""
CONTEXTS = (256, 1024, 4096, 16384)
ROUNDS = 3

# Shares of the time there is: one call may take so much, and so much of it is there before contexts are cut short.
CALL = 1 / 40
SECONDS_OF_CONTEXTS = 30.0


@dataclass(frozen=True)
class Written:
    """A text that a model wrote."""

    attention: str
    prompt: str
    text: str
    tokens_per_second: float
    context: int
    """bytes it has read and written"""
    state_bytes: int
    """that it remembers them by"""


def load_model(run: Path) -> CausalLM:
    """The model of a finished run."""
    model: CausalLM = CausalLM.from_pretrained(run / "model")
    return model.eval()


@torch.no_grad()
def write(model: CausalLM, seed: int, tokens: int = WRITTEN) -> Written:
    """Continue a prompt, byte by byte."""
    tokenizer = byte_tokenizer()
    ids = torch.tensor([tokenizer(PROMPT).input_ids])
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(seed)
        started = time.perf_counter()
        generating: Any = model  # whose generate() has too many possible results to name
        found = generating.generate(
            input_ids=ids,
            attention_mask=torch.ones_like(ids),
            max_new_tokens=tokens,
            do_sample=True,
            temperature=0.7,
            use_cache=True,
            return_dict_in_generate=True,
        )
        seconds = time.perf_counter() - started
    new = found.sequences[0, ids.shape[1] :]
    cache = found.past_key_values
    return Written(
        attention=str(model.config.attention),
        prompt=PROMPT,
        text=str(tokenizer.decode(new)),
        tokens_per_second=len(new) / seconds,
        context=int(cache.get_seq_length()),
        state_bytes=snapshots.take(cache).nbytes,
    )


def costs(models: list[CausalLM], seconds: float, progress: Progress = silent) -> list[TokenCost]:
    """One more token after contexts of growing length; fewer of them where there is little time."""
    contexts = [context for context in CONTEXTS if seconds >= SECONDS_OF_CONTEXTS or context <= CONTEXTS[0]]
    return [cost for model in models for cost in token_costs(model, contexts, rounds=5, progress=progress)]


def scaling(attentions: list[str], seconds: float, progress: Progress = silent) -> dict[str, Any]:
    """A record of `flexformer bench scaling`: a causal forward pass, softmax up to 16k tokens, the others up to 64k.

    Args:
        attentions: To compare.
        seconds: There are; what would take too long is left out, and the record says so.
        progress: Told what is being done.
    """
    started, before = time.perf_counter(), load()
    found: list[dict[str, Any]] = []
    for lengths, rows in ((SHORT, attentions), (LONG, [name for name in attentions if name != "softmax"])):
        options = _options(lengths, rows, max(CALL * seconds, 0.02))
        found += measure_attention(options, progress)["measurements"]
    shown = ScalingOptions(**asdict(_options((*SHORT, *LONG), attentions, max(CALL * seconds, 0.02))))
    measured = [m for m in found if m["row"] != "limit"]
    return new_record("scaling", asdict(shown), {"measurements": measured}, time.perf_counter() - started, before)


def _options(lengths: tuple[int, ...], rows: list[str], budget: float) -> AttentionOptions:
    return AttentionOptions(
        lengths=lengths,
        rows=tuple(rows),
        heads=4,
        head_dim=32,
        frequencies=32,
        is_causal=True,
        passes=("forward",),
        threads=torch.get_num_threads(),
        rounds=ROUNDS,
        seconds=2 * budget,
        budget=budget,
    )
