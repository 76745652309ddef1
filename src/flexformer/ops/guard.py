"""Dividing by the sum of a row's weights, whatever it is."""

from __future__ import annotations

from torch import Tensor

from ..kernels.policy import denominator_limit, guarded


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
    # Divided, not multiplied by the inverse: the gradient of an inverse squares it, beyond the range of float32.
    return num / guarded(den, denominator_limit(w, policy, floor), policy)[..., None]
