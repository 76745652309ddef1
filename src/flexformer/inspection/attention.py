"""What kernels attend to in a text, beside softmax on the same queries and keys."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import Any, NamedTuple

import torch
from torch import Tensor, nn
from transformers import AutoTokenizer, PreTrainedTokenizerBase

from ..attention.kernel import KernelAttention
from ..convert.observation import Call, observing
from ..distill.fidelity import softmax_attention
from ..distill.loss import LossOptions, compare
from ..distill.pretrained import longest_input, with_start
from ..distill.report import Findings
from ..kernels.weights import attention_weights
from ..ops.guard import normalise
from ..training.run import quiet_libraries
from .checkpoint import Checkpoint, CheckpointError


class Seen(NamedTuple):
    """One layer on a text of T tokens."""

    kernel: Tensor
    """(H, T, T) weights of the linear form: they sum to 1, and may be negative"""
    softmax: Tensor
    """(H, T, T)"""
    findings: list[Findings]
    """by head"""
    entropies: list[float]
    """by head, of the kernel's weights taken by their size, in nats"""
    keys: Tensor
    """(1, Hkv, T, D)"""


class Reading(NamedTuple):
    """A text as a model reads it."""

    tokens: list[str]
    layers: dict[int, Seen]


def read(checkpoint: Checkpoint, text: str, most: int) -> Reading:
    """Let the model read a text and look at all its kernel attentions.

    An adapter's base runs with its own softmax, so that every layer sees what it would in the original; a whole model
    runs with its kernels.

    Args:
        checkpoint: Whose model.
        text: To read.
        most: Tokens of it, or fewer where the model has no positions for so many.
    """
    tokenizer = _tokenizer(checkpoint)
    ends = longest_input(checkpoint.model.config)
    most = most if ends is None else min(most, ends)
    ids = tokenizer(text, truncation=True, max_length=most).input_ids
    if checkpoint.is_converted:
        ids = with_start(ids, checkpoint.model.config, tokenizer)[:most]
    if len(ids) < 2:
        raise CheckpointError(f"text has {len(ids)} tokens; give at least 2, so that there is something to attend to")
    calls = _calls(checkpoint, torch.tensor([ids]))
    return Reading([_shown(tokenizer, i) for i in ids], {layer: _look(call) for layer, call in calls.items()})


def _calls(checkpoint: Checkpoint, ids: Tensor) -> dict[int, Call]:
    found: dict[int, Call] = {}
    inputs: dict[str, Any] = {"input_ids": ids, "attention_mask": torch.ones_like(ids)}
    model = checkpoint.model
    if model.can_generate():
        inputs["use_cache"] = False
    with torch.no_grad(), quiet_libraries():
        if checkpoint.is_converted:

            def observe(call: Call) -> Tensor | None:
                found[call.layer] = call
                return softmax_attention(call) if checkpoint.is_adapter else None

            with observing(observe):
                model(**inputs)
        else:
            with _hooked(model, found):
                model(**inputs)
    return found


@contextmanager
def _hooked(model: nn.Module, found: dict[int, Call]) -> Iterator[None]:
    """Note the inputs of every kernel attention of a model of this package."""
    attentions = [module for module in model.modules() if isinstance(module, KernelAttention)]
    with ExitStack() as stack:
        for layer, module in enumerate(attentions):

            def note(module: nn.Module, args: tuple[Any, ...], kwargs: dict[str, Any], layer: int = layer) -> None:
                assert isinstance(module, KernelAttention)
                q, k, v = args
                causal, mask = bool(kwargs.get("is_causal")), kwargs.get("key_mask")
                found[layer] = Call(layer, module.kernel, q, k, v, module.head_dim**-0.5, causal, mask)

            handle = module.register_forward_pre_hook(note, with_kwargs=True)
            stack.callback(handle.remove)
        yield


@torch.no_grad()
def _look(call: Call) -> Seen:
    weights, den, total = attention_weights(
        call.query, call.key, call.kernel, is_causal=call.is_causal, key_mask=call.key_mask
    )
    kernel = normalise(weights, den, total, call.kernel.policy, call.kernel.floor)
    sums = compare(call, LossOptions(), learn=False, measure=True).sums
    assert sums is not None
    sizes = kernel[0].abs()
    shares = sizes / sizes.sum(-1, keepdim=True).clamp_min(1e-30)
    entropies = -(shares * shares.clamp_min(1e-30).log()).sum(-1).mean(-1)
    findings = [Findings.of(head.numpy()) for head in sums[0].cpu()]
    return Seen(kernel[0].float(), _softmax(call)[0], findings, entropies.tolist(), call.key.float())


def _softmax(call: Call) -> Tensor:
    """(1, H, T, T)"""
    group = call.query.shape[1] // call.key.shape[1]
    keys = call.key.repeat_interleave(group, dim=1)
    scores = call.scaling * (call.query.float() @ keys.float().mT)
    length = scores.shape[-1]
    if call.is_causal:
        scores = scores.masked_fill(~torch.ones(length, length, dtype=torch.bool).tril(), -torch.inf)
    if call.key_mask is not None:
        scores = scores.masked_fill(~call.key_mask[:, None, None, :], -torch.inf)
    return scores.softmax(-1)


def _tokenizer(checkpoint: Checkpoint) -> PreTrainedTokenizerBase:
    base = checkpoint.model.name_or_path if checkpoint.is_adapter else checkpoint.weights
    try:
        found: PreTrainedTokenizerBase = AutoTokenizer.from_pretrained(base, trust_remote_code=False)
    except (OSError, ValueError):
        raise CheckpointError(
            f"{checkpoint.path} has no tokenizer to read a text with; leave text out, or name a language model or an "
            "adapter"
        ) from None
    return found


def _shown(tokenizer: PreTrainedTokenizerBase, token: int) -> str:
    word = str(tokenizer.decode([token]))
    return word if word.strip() else repr(word)[1:-1]


def text_of(given: str) -> str:
    """A file's content, or the text itself where there is no such file."""
    try:
        path = Path(given)
        if path.is_file():
            return path.read_text(encoding="utf-8", errors="replace")
    except OSError:  # too long for a name
        pass
    return given
