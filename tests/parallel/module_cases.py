"""Modules and language models on parts of a sequence beside the same on the whole; every rank computes both."""

from __future__ import annotations

from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor, nn
from torch.distributed.device_mesh import init_device_mesh

import flexformer
from flexformer.models import CausalLM, CausalLMConfig
from flexformer.parallel import Split, sequence_parallel, sum_gradients

LENGTH = 37
SIZES = {
    "vocab_size": 61,
    "hidden_size": 16,
    "intermediate_size": 24,
    "num_hidden_layers": 2,
    "num_attention_heads": 2,
    "max_position_embeddings": 64,
    "pad_token_id": 1,
    "hidden_dropout": 0.0,
    "activation_dropout": 0.0,
    "softmax_dropout": 0.0,
}
MODULES: dict[str, dict[str, Any]] = {
    "flexformer-n": {},
    "flexformer-n causal, grouped heads": {"is_causal": True, "num_kv_heads": 2},
    "flexformer-c causal": {"is_causal": True},
    "cosformer causal": {"is_causal": True},
    "cosformer": {},
    "polaformer causal": {"is_causal": True},
}
MODELS: dict[str, dict[str, Any]] = {
    "sinusoids": {},
    "learned positions": {"positions": "learned"},
    "adaptive vocabulary": {"vocabulary": "adaptive", "cutoffs": [12, 30]},
    "cosformer": {"attention": "cosformer"},
}


def errors() -> dict[str, float]:
    found = {f"module {name}": module(name) for name in MODULES}
    found |= {f"cross {name}": cross(name) for name in ("flexformer-n", "cosformer")}
    found |= {f"random {name}": random_features(name) for name in ("performer", "rfa")}
    found |= {f"model {name}": language_model(name) for name in MODELS}
    found["model checkpointed"] = language_model("sinusoids", checkpointed=True)
    found["prefill"] = prefill()
    return found


def module(name: str) -> float:
    attention, x, mask, upstream = _module(name, **MODULES[name])
    expected = _run(attention, lambda: attention(x, key_mask=mask), x, upstream)
    mesh = init_device_mesh("cpu", (dist.get_world_size(),))
    with sequence_parallel(mesh) as split:
        own, hidden = split.part(x).detach().requires_grad_(), split.part(mask)
        actual = _run(attention, lambda: attention(own, key_mask=hidden), own, split.part(upstream))
    return _worst(attention, split, actual, expected)


def cross(name: str) -> float:
    attention, x, _, upstream = _module(name)
    context = torch.randn(2, 23, 16).double()
    expected = _run(attention, lambda: attention(x, context=context), x, upstream)
    with sequence_parallel() as split:
        own, other = split.part(x).detach().requires_grad_(), split.part(context)
        actual = _run(attention, lambda: attention(own, context=other), own, split.part(upstream))
    return _worst(attention, split, actual, expected)


def random_features(name: str) -> float:
    """Ranks draw differently; the first one's draw counts."""
    attention, x, mask, upstream = _module(name, is_causal=True, redraw_interval=1)
    attention.train()
    torch.manual_seed(dist.get_rank())
    with sequence_parallel() as split:
        own, hidden = split.part(x).detach().requires_grad_(), split.part(mask)
        actual = _run(attention, lambda: attention(own, key_mask=hidden), own, split.part(upstream))
        actual = [x.clone() for x in actual]
    attention.eval()
    expected = _run(attention, lambda: attention(x, key_mask=mask), x, upstream)
    return _worst(attention, split, actual, expected)


def language_model(name: str, checkpointed: bool = False) -> float:
    """The loss, and the weights after a step of training."""
    model, ids, mask = _model(**MODELS[name])
    targets = torch.cat((ids[:, 1:], torch.full_like(ids[:, :1], -100)), dim=1).masked_fill(mask == 0, -100)
    whole = model(ids, attention_mask=mask, shift_labels=targets).loss
    whole.backward()
    expected = [p.grad.clone() for p in model.parameters()]
    model.zero_grad()
    if checkpointed:
        model.train()
        model.gradient_checkpointing_enable()
    with sequence_parallel() as split:
        own = {"input_ids": ids, "attention_mask": mask, "shift_labels": targets}
        share = model(**{key: split.part(value) for key, value in own.items()}).loss
        share.backward()
    sum_gradients(model, split)
    loss = split.all_reduce(share.detach().clone())
    actual = [p.grad for p in model.parameters()]
    pairs = zip([loss, *actual], [whole.detach(), *expected], strict=True)
    return max(_relative(a, e, e) for a, e in pairs)


def prefill() -> float:
    """A text read by all ranks together, gone on with on each of them alone."""
    model, ids, _ = _model()
    with torch.no_grad():
        expected = model(ids).logits[:, 30:]
        with sequence_parallel() as split:
            cache = model(split.part(ids[:, :30]), use_cache=True).past_key_values
        assert cache.get_seq_length() == 30
        return _relative(model(ids[:, 30:], past_key_values=cache).logits, expected, expected)


def refusals() -> list[str]:
    """What is said where a divided sequence has no meaning."""
    model, ids, _ = _model()
    attention, x, _, _ = _module("softmax")
    q = torch.randn(1, 2, 6, 8).double()
    kernel = flexformer.kernels.build("linear", num_heads=2, head_dim=8)
    _, state = flexformer.linear_attention(q, q, q, kernel, return_state=True)
    calls = (
        lambda: attention(x),
        lambda: model(ids, labels=ids),
        lambda: flexformer.linear_attention(q, q, q, kernel, initial_state=state),
        lambda: Split(init_device_mesh("cpu", (1, dist.get_world_size()))),
    )
    found = []
    with sequence_parallel():
        for call in calls:
            try:
                call()
            except ValueError as error:
                found.append(str(error))
    return found


def checkpointed_outside() -> str:
    """The backward pass of a checkpointed model where sequences are whole again."""
    model, ids, _ = _model()
    model.train()
    model.gradient_checkpointing_enable()
    with sequence_parallel() as split:
        part = split.part(ids)
        loss = model(part, shift_labels=part).loss
    try:
        loss.backward()
    except Exception as error:
        return type(error).__name__
    return ""


def _module(name: str, **options: Any) -> tuple[flexformer.MultiheadAttention, Tensor, Tensor, Tensor]:
    torch.manual_seed(2)
    attention = flexformer.MultiheadAttention(16, 4, name.split()[0], **options).double()
    mask = torch.ones(2, LENGTH, dtype=torch.bool)
    mask[1, :5] = False
    x, upstream = torch.randn(2, LENGTH, 16).double(), torch.randn(2, LENGTH, 16).double()
    return attention.eval(), x.requires_grad_(), mask, upstream


def _model(**changes: Any) -> tuple[CausalLM, Tensor, Tensor]:
    torch.manual_seed(2)
    model = CausalLM(CausalLMConfig(**(SIZES | {"attention": "flexformer-n"} | changes))).double().eval()
    ids = torch.randint(2, 61, (2, LENGTH))
    mask = torch.ones_like(ids)
    mask[1, :20] = 0
    return model, ids, mask


def _run(module: nn.Module, call: Any, x: Tensor, upstream: Tensor) -> list[Tensor]:
    """The output, and the gradients of the input and of all parameters."""
    out = call()
    found = torch.autograd.grad(out, [x, *module.parameters()], upstream)
    return [out.detach(), *(gradient.contiguous() for gradient in found)]


def _worst(module: nn.Module, split: Split, actual: list[Tensor], expected: list[Tensor]) -> float:
    for parameter, gradient in zip(module.parameters(), actual[2:], strict=True):
        parameter.grad = gradient
    sum_gradients(module, split)
    pairs = [(a, split.part(e), e) for a, e in zip(actual[:2], expected[:2], strict=True)]
    pairs += [(p.grad, e, e) for p, e in zip(module.parameters(), expected[2:], strict=True)]
    return max(_relative(*pair) for pair in pairs)


def _relative(actual: Tensor, expected: Tensor, whole: Tensor) -> float:
    assert actual.shape == expected.shape
    return float((actual - expected).abs().max() / whole.abs().max().clamp_min(1e-3)) if actual.numel() else 0.0
