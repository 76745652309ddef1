"""What counts as too small a sum of weights."""

from __future__ import annotations

import torch
from torch import Tensor

POLICIES = ("floor", "absolute", "raw")


def denominator_limit(w: Tensor, policy: str, floor: float) -> Tensor:
    """The smallest denominator (for "raw": its smallest size) of rows whose visible e^g sum to `w`.

    It is infinite where no key is visible, which makes the output zero and leaves no gradient.
    """
    limit = torch.full_like(w, floor) if policy == "absolute" else floor * w
    return limit.masked_fill(w <= 0, torch.inf)


def guarded(den: Tensor, limit: Tensor, policy: str) -> Tensor:
    """The denominator that the policies of `Kernel` make of a sum of weights `den`."""
    if policy == "raw":
        return torch.where(den < 0, torch.minimum(den, -limit), torch.maximum(den, limit))
    return torch.maximum(den, limit)
