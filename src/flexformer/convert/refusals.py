"""What attention in linear time cannot do, and why, in words."""

from __future__ import annotations

from typing import Any

from torch import Tensor

# What models add to the logits, by the name they pass it under. No kernel of queries and keys has such terms.
_LOGIT_TERMS = {
    "softcap": "soft-caps its logits, which are never formed in linear time",
    "s_aux": "adds attention sinks to its logits, which are never formed in linear time",
    "sinks": "adds attention sinks to its logits, which are never formed in linear time",
}
_CHOICE = "computes attention with keys that it chooses for every query, while a sum is over all keys"
_POSITION_BIAS = "adds a position bias to its logits, which are never formed in linear time"


def unsupported_softmax(kwargs: dict[str, Any]) -> str | None:
    """Why a layer cannot even stay softmax in a converted model: torch's attention lacks these terms too."""
    return next((why for name, why in _LOGIT_TERMS.items() if kwargs.get(name) is not None), None)


def unsupported_terms(kwargs: dict[str, Any]) -> str | None:
    """Why these extra arguments of an attention call have no kernel form, or None."""
    if kwargs.get("position_bias") is not None:
        return _POSITION_BIAS
    return unsupported_softmax(kwargs)


def unsupported_visibility(mask: Tensor | None, kwargs: dict[str, Any]) -> str | None:
    """Why keys visible in this way have no kernel form, or None."""
    if (window := kwargs.get("sliding_window")) is not None:
        return f"sees a sliding window of {window} tokens, while a sum over all keys cannot forget the oldest"
    if any(kwargs.get(name) is not None for name in ("indices", "block_indices")):
        return _CHOICE
    if any(kwargs.get(name) is not None for name in ("cu_seq_lens_q", "cu_seq_lens_k", "cache")):
        return "gets several sequences packed into one; pass them as a batch with attention_mask"
    if mask is not None and mask.dim() != 2:
        return (
            f"gets a mask of shape {tuple(mask.shape)}, a choice of keys for every query; only padding of shape "
            "(batch, tokens) has a kernel form. Sliding windows, packed sequences (position_ids that start anew) and "
            "masks made by hand come like this, and so does any input under torch.compile without attention_mask: "
            "pass one"
        )
    return None
