"""The Linear Transformer's kernel."""

from __future__ import annotations

from torch import Tensor
from torch.nn import functional as F

from .base import Kernel, bounded, require_positive_int
from .registry import register


@register("linear")
class EluKernel(Kernel):
    r"""phi(x) = elu(x) + 1, d features, no parameters (Katharopoulos et al., 2020).

    Queries and keys are not scaled. The original adds 1e-6 to the denominator; here it is at least 1e-6.

    Args:
        num_heads: heads of the keys.
        head_dim: width d of one head.
    """

    def __init__(self, num_heads: int, head_dim: int) -> None:
        require_positive_int("head_dim", head_dim)
        super().__init__(num_heads, head_dim, head_dim, policy="absolute", floor=1e-6)

    def query_features(self, q: Tensor, positions: Tensor | None = None) -> Tensor:
        return F.elu(bounded(q)) + 1.0

    def key_features(self, k: Tensor, positions: Tensor | None = None) -> tuple[Tensor, Tensor | None]:
        return self.query_features(k), None
