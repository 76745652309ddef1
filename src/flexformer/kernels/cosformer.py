"""cosFormer's kernel."""

from __future__ import annotations

import math

import torch
from torch import Tensor

from .base import Kernel, bounded, require_positive_int
from .registry import register


@register("cosformer")
class CosformerKernel(Kernel):
    r"""ReLU features reweighted by the cosine of the distance (Qin et al., 2022).

        phi(x_i) = [relu(x_i) sin(pi i / 2T), relu(x_i) cos(pi i / 2T)],  i = 1, 2, ...
        k(q_i, k_j) = relu(q_i).relu(k_j) cos(pi (i - j) / 2T) >= 0

    No parameters, no scaling of queries and keys. T is fixed by `max_length`: if it followed the length of the
    input, decoding would differ from training. A query without a positive coordinate gives zero.

    Args:
        num_heads: heads of the keys.
        head_dim: width d of one head.
        max_length: T; longer inputs raise.
    """

    uses_positions = True

    def __init__(self, num_heads: int, head_dim: int, max_length: int = 4096) -> None:
        require_positive_int("head_dim", head_dim)
        require_positive_int("max_length", max_length)
        super().__init__(num_heads, head_dim, 2 * head_dim, policy="absolute", floor=1e-6)
        self.max_length: int = max_length

    def query_features(self, q: Tensor, positions: Tensor | None = None) -> Tensor:
        if positions is None:
            raise ValueError("positions None is not enough for cosformer; pass the positions of the input")
        x = bounded(q).relu()
        angle = ((positions + 1).to(x.dtype) * (math.pi / (2 * self.max_length)))[..., None]
        return torch.cat((x * angle.sin(), x * angle.cos()), dim=-1)

    def key_features(self, k: Tensor, positions: Tensor | None = None) -> tuple[Tensor, Tensor | None]:
        return self.query_features(k, positions), None

    def extra_repr(self) -> str:
        return f"{super().extra_repr()}, max_length={self.max_length}"
