"""A kernel's features block by block, with the gradients of what they were computed from."""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING

import torch
from torch import Tensor

from .held import named_tensors
from .workspace import Workspace

if TYPE_CHECKING:
    from .base import Kernel

QueryPullback = Callable[[Tensor], Tensor]
KeyPullback = Callable[[Tensor, Tensor | None], Tensor]


# What hand-written blocks compute in their own way.
FEATURE_METHODS = ("query_features", "key_features", "_features", "_angles", "waves", "phases")


def computes_as(kernel: Kernel, kind: type[Kernel]) -> bool:
    """Whether a kernel's features are those of this class, so that its blocks serve; a subclass may differ."""
    return all(getattr(type(kernel), name, None) is getattr(kind, name, None) for name in FEATURE_METHODS)


class BlockFeatures:
    """What ops use that never hold the features of a whole sequence; this one lets autograd find the gradients.

    The forward pass asks for `query` and `key`. The backward pass asks for `query_vjp` and `key_vjp`, which also give
    a function from the gradients of the features to that of the input; gradients of parameters are summed on the way.
    Batch and heads are one dimension here: inputs are (B * H, T, D) in the workspace's dtype and within
    `LARGEST_INPUT`, features (B * H, T, F); positions broadcast to (B, H, T). Inputs may be overwritten. What is
    returned may live in the workspace and lasts until the same is asked for again; a gradient given to such a function
    may be overwritten, and with it the features it belongs to. A kernel with a faster way overrides `Kernel.blocks`.

    Args:
        kernel: whose features they are.
        batch: the largest B.
        workspace: to compute in.
    """

    feature_major = False
    """Whether features lie in memory as (F, T) rather than (T, F), as their shape says."""

    scale = 1.0
    """What features are to be multiplied by. It cancels for queries, and keys have narrower tensors to put it into."""

    def __init__(self, kernel: Kernel, batch: int, workspace: Workspace) -> None:
        self.kernel, self.workspace = kernel, workspace
        self.parameters = {name: x for name, x in named_tensors(kernel).items() if x.requires_grad}
        self.sums = {
            name: torch.zeros_like(p, dtype=torch.promote_types(p.dtype, workspace.dtype))
            for name, p in self.parameters.items()
        }

    def query(self, x: Tensor, positions: Tensor | None) -> Tensor:
        return self.kernel.query_features(self._by_head(x), positions).flatten(0, 1)

    def key(self, x: Tensor, positions: Tensor | None) -> tuple[Tensor, Tensor | None]:
        phi, g = self.kernel.key_features(self._by_head(x), positions)
        return phi.flatten(0, 1), None if g is None else g.flatten(0, 1)

    def query_vjp(self, x: Tensor, positions: Tensor | None) -> tuple[Tensor, QueryPullback]:
        with torch.enable_grad():
            leaf = x.detach().requires_grad_()
            phi = self.query(leaf, positions)
        return phi.detach(), lambda dphi: self._pull(leaf, [(phi, dphi)])

    def key_vjp(self, x: Tensor, positions: Tensor | None) -> tuple[Tensor, Tensor | None, KeyPullback]:
        with torch.enable_grad():
            leaf = x.detach().requires_grad_()
            phi, g = self.key(leaf, positions)
        if g is None:
            return phi.detach(), None, lambda dphi, dg: self._pull(leaf, [(phi, dphi)])
        return phi.detach(), g.detach(), lambda dphi, dg: self._pull(leaf, [(phi, dphi), (g, dg)])

    def parameter_gradients(self) -> dict[str, Tensor]:
        """Those summed so far, by name; of all that features are computed from and need one, and maybe of others."""
        return self.sums

    def _by_head(self, x: Tensor) -> Tensor:
        return x.unflatten(0, (-1, self.kernel.num_heads))

    def _pull(self, leaf: Tensor, outputs: list[tuple[Tensor, Tensor | None]]) -> Tensor:
        outputs = [(x, d) for x, d in outputs if x.requires_grad]
        dx, *gradients = torch.autograd.grad(
            [x for x, _ in outputs], [leaf, *self.parameters.values()], [d for _, d in outputs], allow_unused=True
        )
        for total, gradient in zip(self.sums.values(), gradients, strict=True):
            if gradient is not None:
                total += gradient
        return torch.zeros_like(leaf) if dx is None else dx
