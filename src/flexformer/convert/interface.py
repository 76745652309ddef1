"""How a converted model's attention runs: the functions that transformers calls, registered under one name.

transformers looks up an attention function and a mask function by the name in the model's config, for all layers
alike. So every attention module of a converted model comes here: those with a kernel are computed in linear
time, the others by torch's softmax attention as before.
"""

from __future__ import annotations

import threading
from dataclasses import dataclass, field
from typing import Any

import torch
from torch import Tensor, nn
from torch.utils.hooks import RemovableHandle
from transformers.cache_utils import Cache
from transformers.masking_utils import (
    ALL_MASK_ATTENTION_FUNCTIONS,
    AttentionMaskInterface,
    bidirectional_mask_function,
    causal_mask_function,
)
from transformers.modeling_utils import ALL_ATTENTION_FUNCTIONS, AttentionInterface

from ..kernels import Kernel, attention_weights
from ..kernels.weights import full_precision
from ..models.cache import RecurrentLayer, recurrent_layer
from ..ops import linear_attention
from ..ops.guard import normalise
from . import observation
from .refusals import unsupported_terms, unsupported_visibility

NAME = "flexformer"
SOFTMAX = ("eager", "sdpa", "flash", "flex_attention", "paged")
"""How the names of transformers' own implementations begin; the hub's have a slash. Others know what they do."""


@dataclass
class Seat:
    """What a converted model notes on each of its attention modules."""

    index: int
    """Which attention module of the model, in the order they run."""
    has_kernel: bool
    handles: list[RemovableHandle] = field(default_factory=list)
    """Of the hooks below, to remove them again."""
    running: dict[int, RecurrentLayer | int | Tensor | None] = field(default_factory=dict)
    """By thread: the cache layer that the present call continues, or where no kernel is, the tokens before it. None
    once attention was computed."""


def attend(
    module: nn.Module,
    query: Tensor,
    key: Tensor,
    value: Tensor,
    attention_mask: Tensor | None,
    scaling: float | None = None,
    dropout: float = 0.0,
    is_causal: bool | None = None,
    **kwargs: Any,
) -> tuple[Tensor, Tensor | None]:
    """The attention function of a converted model.

    Args:
        module: the model's attention module.
        query: (B, H, T, D).
        key: (B, Hkv, S, D).
        value: (B, Hkv, S, Dv).
        attention_mask: (B, tokens so far or more) bool from `visible_keys`, or None.
        scaling: of the softmax; kernels took it into account when they were made.
        dropout: of attention weights; without meaning for kernels.
        is_causal: overrides the module's own.
        **kwargs: whatever else the model passes.

    Returns:
        (B, T, H, Dv), and (B, H, T, S) weights where the model asks for them with `output_attentions`.
    """
    seat = getattr(module, "_flexformer", None)
    if seat is None:
        raise RuntimeError(
            f"{type(module).__name__} runs as {NAME!r} but has no kernel: convert the model with flexformer.convert, "
            "with example_inputs that reach every attention module"
        )
    causal = looks_back(module, is_causal)
    if not seat.has_kernel:
        past = seat.running.get(_thread())
        offset = 0 if past is None or isinstance(past, RecurrentLayer) else past
        return softmax(
            module, query, key, value, attention_mask, causal, offset, scaling=scaling, dropout=dropout, **kwargs
        )
    if reason := unsupported_terms(kwargs) or unsupported_visibility(attention_mask, kwargs):
        raise ValueError(f"attention layer {seat.index} ({type(module).__name__}) {reason}")
    kernel = active_kernel(module)
    layer = _take_layer(module, seat)
    state = None if layer is None else layer.state
    key_mask = None
    if attention_mask is not None:
        # The mask covers all positions so far, and may have room for more; a state has done with those before these.
        end = key.shape[2] if layer is None else min(attention_mask.shape[1], layer.length)
        key_mask = attention_mask[:, end - key.shape[2] : end].expand(key.shape[0], -1)
    if module.training and state is None:
        kernel.redraw_for_training()
    scale = query.shape[3] ** -0.5 if scaling is None else float(scaling)
    answer = observation.report(observation.Call(seat.index, kernel, query, key, value, scale, causal, key_mask))
    if answer is not None:
        return answer.transpose(1, 2).contiguous(), None
    weights = None
    if _wants_weights(module, kwargs):
        if state is not None:
            raise ValueError("output_attentions needs all keys, and a state holds only sums of them; use_cache=False")
        weights = normalised_weights(query, key, kernel, causal, key_mask)
    if layer is None:
        out = linear_attention(query, key, value, kernel, causal, key_mask)
    else:
        out, layer.state = linear_attention(query, key, value, kernel, causal, key_mask, state, return_state=True)
    return out.transpose(1, 2).contiguous(), weights


def looks_back(module: nn.Module, is_causal: bool | None) -> bool:
    """Whether an attention module is causal, by what its call says or else by what it is."""
    return bool(getattr(module, "is_causal", True) if is_causal is None else is_causal)


def reads_shared_keys(module: nn.Module) -> bool:
    """Whether an attention module has no keys of its own but those of an earlier layer, as in Gemma 3n."""
    return bool(getattr(module, "is_kv_shared_layer", False))


def softmax(
    module: nn.Module,
    query: Tensor,
    key: Tensor,
    value: Tensor,
    mask: Tensor | None,
    causal: bool,
    offset: int | Tensor,
    **kwargs: Any,
) -> tuple[Tensor, Tensor | None]:
    """The module's own attention, through torch's scaled_dot_product_attention or where weights are asked for without.

    Args:
        module: the model's attention module.
        query: (B, H, T, D).
        key: (B, Hkv, S, D), those from a cache before the new ones.
        value: (B, Hkv, S, Dv).
        mask: (B, tokens so far) bool, or (B, 1, T, S) where the model has a pattern of its own.
        causal: query i sees keys up to `offset` + i.
        offset: tokens before the first query.
        **kwargs: for transformers' function.

    Returns:
        (B, T, H, Dv), and (B, H, T, S) weights where the model asks for them with `output_attentions`.
    """
    # A cache of fixed size has keys that are not there yet, which only a mask can hide.
    fits = isinstance(offset, int) and offset + query.shape[2] == key.shape[2]
    wants_weights = _wants_weights(module, kwargs)
    if mask is None or mask.dim() == 2:
        mask = ALL_MASK_ATTENTION_FUNCTIONS["sdpa"](
            batch_size=query.shape[0],
            q_length=query.shape[2],
            kv_length=key.shape[2],
            q_offset=offset,
            kv_offset=0,
            mask_function=causal_mask_function if causal else bidirectional_mask_function,
            attention_mask=mask,
            allow_is_causal_skip=causal and fits and not wants_weights,
            allow_is_bidirectional_skip=not causal,
            device=query.device,
        )
    if wants_weights:
        return _softmax_weights(query, key, value, mask, **kwargs)
    kwargs.pop("output_attentions", None)  # this attention forms no weights, as it would say on every call
    out, _ = ALL_ATTENTION_FUNCTIONS["sdpa"](module, query, key, value, mask, is_causal=causal, **kwargs)
    return out, None


def _softmax_weights(
    query: Tensor, key: Tensor, value: Tensor, mask: Tensor | None, scaling: float | None, dropout: float, **_: Any
) -> tuple[Tensor, Tensor]:
    scale = query.shape[3] ** -0.5 if scaling is None else scaling
    key, value = (x.repeat_interleave(query.shape[1] // x.shape[1], dim=1) for x in (key, value))
    logits = query @ key.mT * scale
    if mask is not None and mask.dtype == torch.bool:
        logits = logits.masked_fill(~mask, torch.finfo(logits.dtype).min)
    elif mask is not None:
        logits = logits + mask
    precise = torch.promote_types(query.dtype, torch.float32)
    weights = nn.functional.dropout(logits.softmax(-1, dtype=precise).to(query.dtype), dropout)
    return (weights @ value).transpose(1, 2).contiguous(), weights


def _wants_weights(module: nn.Module, kwargs: dict[str, Any]) -> bool:
    asked = kwargs.get("output_attentions")
    return bool(getattr(getattr(module, "config", None), "output_attentions", False) if asked is None else asked)


def _take_layer(module: nn.Module, seat: Seat) -> RecurrentLayer | None:
    """The cache layer that this call continues; it serves one attention in each call of the module."""
    thread = _thread()
    if thread not in seat.running:
        return None
    layer, seat.running[thread] = seat.running[thread], None
    if layer is None:
        raise ValueError(
            f"attention layer {seat.index} ({type(module).__name__}) computes attention more than once in a call, "
            "while a cache has one state for it; use_cache=False"
        )
    assert isinstance(layer, RecurrentLayer)
    return layer


def visible_keys(
    batch_size: int,
    mask_function: Any = causal_mask_function,
    attention_mask: Tensor | None = None,
    **kwargs: Any,
) -> Tensor | None:
    """The mask function of a converted model: which keys are padding.

    Args:
        batch_size: B.
        mask_function: the pattern the model asks for.
        attention_mask: (B, tokens so far) bool, True = attend.
        **kwargs: whatever else transformers passes.

    Returns:
        `attention_mask`, or None where it hides nothing. For patterns other than plain causal and bidirectional,
        such as sliding windows and packed sequences, the four-dimensional mask of softmax attention, which
        modules with a kernel refuse.
    """
    if mask_function is causal_mask_function or mask_function is bidirectional_mask_function:
        if attention_mask is None or torch.compiler.is_compiling() or attention_mask.is_meta:
            return attention_mask
        return None if bool(attention_mask.all()) else attention_mask
    kwargs |= {"allow_is_causal_skip": False, "allow_is_bidirectional_skip": False}
    make = ALL_MASK_ATTENTION_FUNCTIONS["sdpa"]
    mask: Tensor = make(batch_size=batch_size, mask_function=mask_function, attention_mask=attention_mask, **kwargs)
    return mask


def normalised_weights(q: Tensor, k: Tensor, kernel: Kernel, causal: bool, key_mask: Tensor | None) -> Tensor:
    """(B, H, T, S) what multiplies the values, for looking at: quadratic in time and memory."""
    with full_precision(q):
        weights, den, w = attention_weights(q, k, kernel, is_causal=causal, key_mask=key_mask)
        return normalise(weights, den, w, kernel.policy, kernel.floor).to(q.dtype)


def active_kernel(module: nn.Module) -> Kernel:
    """The kernel of an attention module, also where PEFT's `modules_to_save` has put a wrapper around it."""
    kernel: Any = module.kernel
    if isinstance(kernel, Kernel):
        return kernel
    if hasattr(kernel, "modules_to_save"):
        name = kernel.active_adapters[0] if kernel.active_adapters else None
        trained = not kernel.disable_adapters and name in kernel.modules_to_save
        chosen = kernel.modules_to_save[name] if trained else kernel.original_module
        if isinstance(chosen, Kernel):
            return chosen
    raise TypeError(
        f"{type(module).__name__}.kernel is a {type(kernel).__name__}, not a Kernel; convert the model anew"
    )


def enter(module: nn.Module, args: tuple[Any, ...], kwargs: dict[str, Any]) -> None:
    """Before an attention module runs: find its place in the cache, which the attention function is not given."""
    chosen = str(getattr(getattr(module, "config", None), "_attn_implementation", NAME))
    if chosen.startswith(SOFTMAX) or "/" in chosen:
        raise RuntimeError(
            f"the converted model was switched to attention implementation {chosen!r}, which would pass its kernels "
            f"over; call model.set_attn_implementation({NAME!r}), or flexformer.restore(model) to have softmax back"
        )
    cache = next((x for x in (*kwargs.values(), *args) if isinstance(x, Cache)), None)
    if cache is None:
        return
    seat: Seat = module._flexformer  # type: ignore[assignment]
    index = getattr(module, "layer_idx", None)
    if index is None:
        raise ValueError(
            f"{type(module).__name__} does not know its layer_idx, so it cannot use a cache; use_cache=False"
        )
    if seat.has_kernel:
        seat.running[_thread()] = recurrent_layer(cache, index)
        return
    layers = getattr(cache, "layers", ())
    if index < len(layers) and isinstance(layers[index], RecurrentLayer) and layers[index].length:
        raise ValueError(
            f"cache holds a state at layer {index}, which attends with softmax here and needs all keys; it was filled "
            "by a model converted otherwise, begin with a new one"
        )
    if reads_shared_keys(module):
        # It has no place in the cache, whose first layer has counted the tokens of this call already.
        hidden: Tensor = kwargs["hidden_states"] if "hidden_states" in kwargs else args[0]
        length = cache.get_seq_length() - hidden.shape[1]
    else:
        length = cache.get_seq_length(index)
    # A static cache counts in a tensor of its own, which goes on counting before attention is computed.
    seat.running[_thread()] = length.clone() if isinstance(length, Tensor) else length


def leave(module: nn.Module, args: Any, output: Any) -> None:
    """After an attention module ran or failed: let go of the cache, which the model must not keep alive."""
    seat = getattr(module, "_flexformer", None)
    if seat is not None and seat.running:
        seat.running.pop(_thread(), None)


def sit(module: nn.Module, seat: Seat) -> None:
    """Note `seat` on a module and hook into its calls."""
    module._flexformer = seat  # type: ignore[assignment]
    seat.handles = [
        module.register_forward_pre_hook(enter, with_kwargs=True),
        module.register_forward_hook(leave, always_call=True),
    ]


def stand_up(module: nn.Module) -> None:
    """Undo `sit`."""
    for handle in module._flexformer.handles:  # type: ignore[union-attr]
        handle.remove()
    del module._flexformer


def _thread() -> int:
    """Which of several generations at once this is; the compiler follows one."""
    return 0 if torch.compiler.is_compiling() else threading.get_ident()


AttentionInterface.register(NAME, attend)
AttentionMaskInterface.register(NAME, visible_keys)
