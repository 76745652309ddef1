"""A kernel's features block by block, with the gradients of what they were computed from."""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING

import torch
from torch import Tensor

if TYPE_CHECKING:
    from .base import Kernel

QueryPullback = Callable[[Tensor], Tensor]
KeyPullback = Callable[[Tensor, Tensor | None], Tensor]


class BlockFeatures:
    """What ops use that never hold the features of a whole sequence; this one lets autograd find the gradients.

    The forward pass asks for `query` and `key`. The backward pass asks for `query_vjp` and `key_vjp`, which also give
    a function from the gradients of the features to that of the input; gradients of parameters are summed on the way.
    Inputs are (B, H, T, D) in `dtype`, positions broadcast to (B, H, T). A kernel with a faster way overrides
    `Kernel.blocks`.

    Args:
        kernel: whose features they are.
        dtype: to compute in.
    """

    feature_major = False
    """Whether features lie in memory as (F, T) rather than (T, F), as their shape says."""

    def __init__(self, kernel: Kernel, dtype: torch.dtype) -> None:
        self.kernel = kernel
        self.parameters = kernel.trained_parameters()
        self.sums = [torch.zeros_like(p, dtype=torch.promote_types(p.dtype, dtype)) for p in self.parameters]

    def query(self, x: Tensor, positions: Tensor | None) -> Tensor:
        return self.kernel.query_features(x, positions)

    def key(self, x: Tensor, positions: Tensor | None) -> tuple[Tensor, Tensor | None]:
        return self.kernel.key_features(x, positions)

    def query_vjp(self, x: Tensor, positions: Tensor | None) -> tuple[Tensor, QueryPullback]:
        with torch.enable_grad():
            leaf = x.detach().requires_grad_()
            phi = self.kernel.query_features(leaf, positions)
        return phi.detach(), lambda dphi: self._pull(leaf, [(phi, dphi)])

    def key_vjp(self, x: Tensor, positions: Tensor | None) -> tuple[Tensor, Tensor | None, KeyPullback]:
        with torch.enable_grad():
            leaf = x.detach().requires_grad_()
            phi, g = self.kernel.key_features(leaf, positions)
        if g is None:
            return phi.detach(), None, lambda dphi, dg: self._pull(leaf, [(phi, dphi)])
        return phi.detach(), g.detach(), lambda dphi, dg: self._pull(leaf, [(phi, dphi), (g, dg)])

    def _pull(self, leaf: Tensor, outputs: list[tuple[Tensor, Tensor | None]]) -> Tensor:
        outputs = [(x, d) for x, d in outputs if x.requires_grad]
        dx, *gradients = torch.autograd.grad(
            [x for x, _ in outputs], [leaf, *self.parameters], [d for _, d in outputs], allow_unused=True
        )
        for total, gradient in zip(self.sums, gradients, strict=True):
            if gradient is not None:
                total += gradient
        return torch.zeros_like(leaf) if dx is None else dx

    def parameter_gradients(self) -> list[Tensor]:
        """Those summed so far, in the order of `Kernel.trained_parameters`."""
        return [total.to(p.dtype) for total, p in zip(self.sums, self.parameters, strict=True)]
