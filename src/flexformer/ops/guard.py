"""Dividing by the sum of a row's weights, whatever it is."""

from __future__ import annotations

import torch
from torch import Tensor


def normalise(num: Tensor, den: Tensor, w: Tensor, policy: str, floor: float) -> Tensor:
    """num / den with the denominator guarded; see `flexformer.kernels.Kernel` for the policies.

    Args:
        num: (..., D) weighted sum of values.
        den: (...) sum of weights, which may have any sign.
        w: (...) sum of e^g over the visible keys, in the same units; zero where no key is visible.
        policy: "floor", "absolute" or "raw".
        floor: the policy's number.

    Returns:
        (..., D), zero and without gradient where no key is visible.
    """
    if policy == "floor":
        den = torch.maximum(den, floor * w)
    elif policy == "absolute":
        den = den.clamp_min(floor)
    else:
        den = torch.where(den < 0, den.clamp_max(-floor), den.clamp_min(floor))
    seen = w > 0
    inverse = torch.where(seen, torch.where(seen, den, 1.0).reciprocal(), 0.0)
    return num * inverse[..., None]
