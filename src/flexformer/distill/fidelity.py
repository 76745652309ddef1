"""How much of a model's outputs is left when kernels take the place of its softmax attention."""

from __future__ import annotations

import inspect
import math
from collections.abc import Iterable, Mapping
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from ..convert.discovery import evaluation
from ..convert.observation import Call, observing
from ..convert.swap import base_of
from .sequences import pad
from .texts import Texts

ROWS = 512  # of queries or of logits at a time, where each is compared with many
MOST_SEQUENCES, LEAST_SEQUENCES, TOKENS = 8, 2, 4096  # that a length is judged by


def softmax_attention(call: Call) -> Tensor:
    """(B, H, T, Dv): an observer that lets a converted model attend as it did before."""
    if call.key_mask is None or not call.is_causal:
        mask = None if call.key_mask is None else call.key_mask[:, None, None, :]
        return _softmax(call, call.query, mask, call.is_causal)
    # The mask of all pairs would be quadratic, so rows are taken in portions.
    position = torch.arange(call.query.shape[2], device=call.query.device)
    found = []
    for rows in position.split(ROWS):
        # Padding that sees nothing would be NaN; it may see itself, since nobody looks at it.
        earlier, own = rows[:, None] >= position, rows[:, None] == position
        mask = (call.key_mask[:, None, None, :] & earlier) | own
        found.append(_softmax(call, call.query[:, :, rows[0] : rows[-1] + 1], mask, False))
    return torch.cat(found, dim=2)


def _softmax(call: Call, query: Tensor, mask: Tensor | None, is_causal: bool) -> Tensor:
    return F.scaled_dot_product_attention(
        query,
        call.key,
        call.value,
        mask,
        is_causal=is_causal,
        scale=call.scaling,
        enable_gqa=query.shape[1] != call.key.shape[1],
    )


@torch.no_grad()
def fidelity(model: nn.Module, batches: Iterable[Mapping[str, Tensor]]) -> dict[str, float]:
    """Compare a converted model with itself under softmax attention.

    Args:
        model: Converted. Language models, which have a head for tokens, are compared by what they predict too.
        batches: Inputs, with "attention_mask" where there is padding.

    Returns:
        "embedding_cosine": mean cosine of the sequences' mean last hidden states. "hidden_error": root mean square
        error of last hidden states, relative. For language models also "softmax_perplexity", "perplexity", "token_kl"
        and "same_token", the share of positions whose likeliest token is the same.
    """
    base: Any = base_of(model)
    writes = base.get_output_embeddings() is not None and base.can_generate()
    takes_cache = "use_cache" in inspect.signature(base.base_model.forward).parameters
    sums: dict[str, float] = {}
    with evaluation(base):
        for batch in batches:
            inputs: dict[str, Any] = {name: value.to(base.device) for name, value in batch.items() if name != "labels"}
            if takes_cache:
                inputs["use_cache"] = False
            with observing(softmax_attention):
                before, first = _read(base, inputs, writes)
            after, second = _read(base, inputs, writes)
            mask = inputs.get("attention_mask")
            mask = torch.ones(before.shape[:2], device=before.device) if mask is None else mask
            found = _compare_states(before, after, mask)
            if first is not None and second is not None:
                found |= _compare_tokens(first, second, inputs["input_ids"], mask)
            for name, value in found.items():
                sums[name] = sums.get(name, 0.0) + value
    return _means(sums)


def fidelity_at(model: nn.Module, texts: Texts, length: int) -> dict[str, float] | None:
    """The same on a few sequences of exactly `length` tokens of held-out text; None where it has not that many."""
    rows = texts.stretches(length, min(MOST_SEQUENCES, max(LEAST_SEQUENCES, TOKENS // length)))
    return fidelity(model, (pad([row], 0) for row in rows)) if rows else None


def _read(base: Any, inputs: dict[str, Any], writes: bool) -> tuple[Tensor, Tensor | None]:
    """Last hidden states in float32, of language models what they are asked for tokens with, and the logits."""
    if not writes:
        return base.base_model(**inputs)[0].float(), None
    seen: list[Tensor] = []
    # Not at the body: some models call what is inside it.
    watching = base.get_output_embeddings().register_forward_pre_hook(lambda module, given: seen.append(given[0]))
    try:
        logits = base(**inputs).logits
    finally:
        watching.remove()
    return seen[-1].float(), logits


def _compare_states(before: Tensor, after: Tensor, mask: Tensor) -> dict[str, float]:
    weight = mask[..., None].to(before.dtype)
    first, second = ((x * weight).sum(1) / weight.sum(1).clamp_min(1) for x in (before, after))
    return {
        "sequences": float(before.shape[0]),
        "cosine": float(F.cosine_similarity(first, second).double().sum()),
        "error": float(((before - after) * weight).double().square().sum()),
        "power": float((before * weight).double().square().sum()),
    }


def _compare_tokens(before: Tensor, after: Tensor, ids: Tensor, mask: Tensor) -> dict[str, float]:
    """A portion of positions at a time: each takes as much memory as the vocabulary is large."""
    counted = (mask[:, 1:] * mask[:, :-1]).double()
    sums: dict[str, float] = {}
    for start in range(0, counted.shape[1], ROWS):
        here = slice(start, min(start + ROWS, counted.shape[1]))
        found = _compare_portion(before[:, here], after[:, here], ids[:, 1:][:, here], counted[:, here])
        sums = {name: sums.get(name, 0.0) + value for name, value in found.items()}
    return sums


def _compare_portion(before: Tensor, after: Tensor, following: Tensor, counted: Tensor) -> dict[str, float]:
    first, second = (logits.float().log_softmax(-1) for logits in (before, after))
    following = following[..., None]
    divergence = (first.exp() * (first - second)).sum(-1)
    same = (first.argmax(-1) == second.argmax(-1)).double()
    return {
        "tokens": float(counted.sum()),
        "nats_before": -float((first.gather(-1, following)[..., 0] * counted).sum()),
        "nats_after": -float((second.gather(-1, following)[..., 0] * counted).sum()),
        "divergence": float((divergence * counted).sum()),
        "same": float((same * counted).sum()),
    }


def _means(sums: Mapping[str, float]) -> dict[str, float]:
    if not sums:
        raise ValueError("batches is empty; pass at least one")
    found = {
        "embedding_cosine": sums["cosine"] / sums["sequences"],
        "hidden_error": math.sqrt(sums["error"] / max(sums["power"], 1e-30)),
    }
    if tokens := sums.get("tokens"):
        found |= {
            "softmax_perplexity": math.exp(min(sums["nats_before"] / tokens, 700.0)),
            "perplexity": math.exp(min(sums["nats_after"] / tokens, 700.0)),
            "token_kl": sums["divergence"] / tokens,
            "same_token": sums["same"] / tokens,
        }
    return found
