"""How the kernels of a converted model do on an input."""

from __future__ import annotations

from typing import Any

import torch
from torch import nn

from ..kernels import KernelStatistics
from .observation import Call, observing
from .swap import base_of, conversion_of


def kernel_statistics(model: nn.Module, inputs: dict[str, Any]) -> dict[int, KernelStatistics]:
    """See `flexformer.convert.statistics`."""
    conversion_of(base_of(model))
    found: dict[int, KernelStatistics] = {}

    def observe(call: Call) -> None:
        found[call.layer] = call.kernel.statistics(
            call.query, call.key, is_causal=call.is_causal, key_mask=call.key_mask
        )

    with torch.no_grad(), observing(observe):
        model(**inputs)
    return found
