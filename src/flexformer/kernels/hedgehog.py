"""Hedgehog's kernel."""

from __future__ import annotations

import torch
from torch import Tensor, nn

from .base import SMALLEST_DENOMINATOR, Kernel, bounded, in_dtype_of, require_bool, require_even, require_positive_int
from .registry import register

SMALLEST_FEATURE = 1e-12


@register("hedgehog")
class HedgehogKernel(Kernel):
    r"""A learned map with softmax features (Zhang et al., 2024), in the softmax-normalised form.

        phi(x) = [softmax(W x + b), softmax(-W x - b)]

    Parameters are `map` (H, F/2, d), started at the identity (rows beyond d: random), and with `use_bias`
    also `map_bias` (H, F/2), started at zero; with `tied=False` keys have `key_map` (and `key_map_bias`) of their own.
    Queries and keys are not scaled. Features are at least 1e-12, so that no row sums to nothing.

    Args:
        num_heads: heads of the keys.
        head_dim: width d of one head.
        num_features: 2d by default.
        use_bias: add b, which gives the parameter count of the Flexformer paper.
        tied: one map for queries and keys; the original has two.
    """

    def __init__(
        self,
        num_heads: int,
        head_dim: int,
        num_features: int | None = None,
        use_bias: bool = False,
        tied: bool = True,
    ) -> None:
        require_positive_int("head_dim", head_dim)
        count = 2 * head_dim if num_features is None else num_features
        require_even("num_features", count)
        require_bool("use_bias", use_bias)
        require_bool("tied", tied)
        super().__init__(num_heads, head_dim, count, policy="absolute", floor=SMALLEST_DENOMINATOR)
        shape = (num_heads, count // 2, head_dim)
        self.map = nn.Parameter(torch.empty(shape))
        self.map_bias = nn.Parameter(torch.empty(shape[:2])) if use_bias else None
        self.key_map = None if tied else nn.Parameter(torch.empty(shape))
        self.key_map_bias = nn.Parameter(torch.empty(shape[:2])) if use_bias and not tied else None
        self.tied = tied
        self.reset_parameters()

    @torch.no_grad()
    def reset_parameters(self) -> None:
        """Back to the identity."""
        for weight in (self.map, self.key_map):
            if weight is not None:
                weight.normal_(std=self.head_dim**-0.5)  # what the identity does not fill
                weight[:, : self.head_dim] = torch.eye(*weight.shape[1:])[: self.head_dim]
        for bias in (self.map_bias, self.key_map_bias):
            if bias is not None:
                bias.zero_()

    def query_features(self, q: Tensor, positions: Tensor | None = None) -> Tensor:
        return _softmax_pair(bounded(q), self.map, self.map_bias)

    def key_features(self, k: Tensor, positions: Tensor | None = None) -> tuple[Tensor, Tensor | None]:
        if self.key_map is None:
            return self.query_features(k), None
        return _softmax_pair(bounded(k), self.key_map, self.key_map_bias), None

    def extra_repr(self) -> str:
        return f"{super().extra_repr()}, use_bias={self.map_bias is not None}, tied={self.tied}"


def _softmax_pair(x: Tensor, weight: Tensor, bias: Tensor | None) -> Tensor:
    y = x @ in_dtype_of(weight, x).transpose(-1, -2)
    if bias is not None:
        y = y + in_dtype_of(bias, x)[:, None, :]
    return torch.cat((y.softmax(-1), (-y).softmax(-1)), dim=-1).clamp_min(SMALLEST_FEATURE)
