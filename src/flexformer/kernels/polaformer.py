"""PolaFormer's kernel."""

from __future__ import annotations

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from .base import SMALLEST_DENOMINATOR, Kernel, bounded, in_dtype_of, require_positive, require_positive_int
from .registry import register

# Powers are taken in log space; below this a coordinate counts as zero.
SMALLEST_COORDINATE = 1e-20


@register("polaformer")
class PolaformerKernel(Kernel):
    r"""Polarity-aware features with a learned power (Meng et al., 2025).

        x' = x / softplus(scale),  p = 1 + alpha sigmoid(power)
        phi(x) = [relu(x')^p, relu(-x')^p]

    k(q, k) compares coordinates of the same sign; k(-q, k) compares those of opposite signs. The attention
    module of the same name uses both, on one half of the values each, and gates the result; see
    `flexformer.attention.polaformer`. The original's depthwise convolution and table of key positions belong
    to images and are left out.

    Parameters are `power` and `scale` (H, d), started at zero: p = 1 + alpha/2, softplus(scale) = ln 2. A key's
    largest feature goes into its log-weight, so that high powers neither overflow nor vanish; the original adds
    1e-6 to the mean of the weights instead.

    Args:
        num_heads: heads of the keys.
        head_dim: width d of one head.
        alpha: the largest power is 1 + alpha.
    """

    def __init__(self, num_heads: int, head_dim: int, alpha: float = 4.0) -> None:
        require_positive_int("head_dim", head_dim)
        require_positive("alpha", alpha)
        super().__init__(num_heads, head_dim, 2 * head_dim, policy="absolute", floor=SMALLEST_DENOMINATOR)
        self.alpha = alpha
        self.power = nn.Parameter(torch.empty(num_heads, head_dim))
        self.scale = nn.Parameter(torch.empty(num_heads, head_dim))
        self.reset_parameters()

    def reset_parameters(self) -> None:
        nn.init.zeros_(self.power)
        nn.init.zeros_(self.scale)

    def _features(self, x: Tensor) -> tuple[Tensor, Tensor]:
        x = bounded(x)
        x = x / F.softplus(in_dtype_of(self.scale, x))[:, None, :]
        power = 1.0 + self.alpha * in_dtype_of(self.power, x).sigmoid()[:, None, :]
        logs = x.abs().clamp_min(SMALLEST_COORDINATE).log() * power
        # It cancels between features and log-weight, so no gradient needs to pass it.
        largest = logs.detach().amax(-1, keepdim=True)
        powers = (logs - largest).exp()
        return torch.cat((powers * (x >= 0), powers * (x <= 0)), dim=-1), largest.squeeze(-1)

    def query_features(self, q: Tensor, positions: Tensor | None = None) -> Tensor:
        return self._features(q)[0]

    def key_features(self, k: Tensor, positions: Tensor | None = None) -> tuple[Tensor, Tensor | None]:
        return self._features(k)

    def extra_repr(self) -> str:
        return f"{super().extra_repr()}, alpha={self.alpha:g}"
