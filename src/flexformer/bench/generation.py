"""What one more token costs a whole language model after contexts of different lengths, and what it remembers."""

from __future__ import annotations

import statistics
import time
from collections.abc import Sequence
from dataclasses import dataclass

import torch

from ..models import CausalLM, CausalLMConfig, snapshots
from ..models.cache import RecurrentCache
from .attention import Progress, silent

PIECE = 1024  # tokens of context read at once
WARM_UP = 2


@dataclass(frozen=True)
class TokenCost:
    """One more token after a context."""

    attention: str
    context: int
    seconds: float
    """the median"""
    state_bytes: int


def with_attention(model: CausalLM, attention: str) -> CausalLM:
    """The same model with another attention: its weights where both have them, freshly drawn ones elsewhere."""
    values = model.config.to_dict() | {"attention": attention, "attention_options": None}
    other = CausalLM(CausalLMConfig(**{name: value for name, value in values.items() if name != "model_type"}))
    mine = other.state_dict()
    shared = {name: x for name, x in model.state_dict().items() if name in mine and mine[name].shape == x.shape}
    other.load_state_dict(shared, strict=False)
    other.to(device=model.device, dtype=model.dtype)  # type: ignore[call-arg]  # its decorator hides the signature
    return other.eval()


@torch.no_grad()
def token_costs(
    model: CausalLM, contexts: Sequence[int], rounds: int = 15, progress: Progress = silent
) -> list[TokenCost]:
    """Read random tokens up to each context in turn, and time the one after it.

    Args:
        model: In evaluation mode.
        contexts: Numbers of tokens, each at least 1.
        rounds: Tokens timed after each context.
        progress: Called with what is being done, how much is done and of how much.
    """
    if not contexts or min(contexts) < 1:
        raise ValueError(f"contexts {list(contexts)} must be one or more numbers of tokens, each at least 1")
    name = str(model.config.attention)
    longest = max(contexts)
    generator = torch.Generator().manual_seed(0)
    ids = torch.randint(model.config.vocab_size, (1, longest + 1), generator=generator).to(model.device)
    cache, costs = RecurrentCache(), []
    for context in sorted(set(contexts)):
        while (seen := cache.get_seq_length()) < context:
            progress(f"{name}: reading", seen, longest)
            model(ids[:, seen : min(seen + PIECE, context)], past_key_values=cache, logits_to_keep=1)
        before = snapshots.take(cache)
        times = []
        for _ in range(WARM_UP + rounds):
            snapshots.restore(before, cache)
            started = time.perf_counter()
            model(ids[:, context : context + 1], past_key_values=cache, logits_to_keep=1)
            _finish(model.device)
            times.append(time.perf_counter() - started)
        snapshots.restore(before, cache)
        costs.append(TokenCost(name, context, statistics.median(times[WARM_UP:]), before.nbytes))
    return costs


def _finish(device: torch.device) -> None:
    if device.type == "cuda":
        torch.cuda.synchronize()
