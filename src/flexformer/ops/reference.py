"""The quadratic form every other one must agree with."""

from __future__ import annotations

from torch import Tensor

from ..kernels import Kernel
from ..kernels.weights import attention_weights, full_precision
from .arguments import check_arguments
from .guard import normalise


def reference_attention(
    q: Tensor,
    k: Tensor,
    v: Tensor,
    kernel: Kernel,
    is_causal: bool = False,
    key_mask: Tensor | None = None,
    floor: float | None = None,
) -> Tensor:
    """Kernel attention by its definition: form all weights, mask them, divide each row by its sum.

    O(T S) in time and memory. Arguments as in `linear_attention`.

    Returns:
        (B, H, T, D) in the dtype of `v`.
    """
    check_arguments(q, k, v, kernel, is_causal=is_causal, key_mask=key_mask, floor=floor)
    with full_precision(q):
        weights, den, w = attention_weights(q, k, kernel, is_causal=is_causal, key_mask=key_mask)
        group = q.shape[1] // k.shape[1]
        values = v if key_mask is None else v.masked_fill(~key_mask[:, None, :, None], 0.0)
        values = values.to(weights.dtype).repeat_interleave(group, dim=1)
        out = normalise(weights @ values, den, w, kernel.policy, kernel.floor if floor is None else floor)
    return out.to(v.dtype)
