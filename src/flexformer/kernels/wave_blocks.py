"""What the hand-written block features of all Flexformer kernels share: inner products with learned waves.

Everything is laid out as (B * H, F, T): one frequency for all tokens of a block lies together, which is where
vectorised cosines and exponentials are fast, and matrix products take either layout.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import torch
from torch import Tensor

from .blocks import BlockFeatures
from .workspace import Workspace

if TYPE_CHECKING:
    from .complex_spectrum import ComplexKernel
    from .spectral import SpectralKernel


class WaveBlocks(BlockFeatures):
    """Parameters are repeated for every sequence of the batch, as batched products want them; a smaller batch takes
    the first ones. Their gradients are summed per sequence, and over the batch at the end.
    """

    feature_major = True

    def __init__(self, kernel: SpectralKernel | ComplexKernel, batch: int, workspace: Workspace) -> None:
        self.workspace, self.batch = workspace, batch
        self.waves = self.repeated(kernel.waves())
        self.dwaves = torch.zeros_like(self.waves)
        self.centre_q = self.centre_k = self.dcentre_q = self.dcentre_k = None
        if kernel.centre_q is not None and kernel.centre_k is not None:
            self.centre_q, self.centre_k = self.repeated(kernel.centre_q), self.repeated(kernel.centre_k)
            self.dcentre_q, self.dcentre_k = torch.zeros_like(self.centre_q), torch.zeros_like(self.centre_k)

    def repeated(self, parameter: Tensor) -> Tensor:
        """(H, ...) as (B * H, ...)."""
        return parameter.detach().to(self.workspace.dtype).repeat(self.batch, *[1] * (parameter.dim() - 1))

    def over_batch(self, gradient: Tensor) -> Tensor:
        """The reverse of `repeated`."""
        return gradient.unflatten(0, (self.batch, -1)).sum(0)

    def centre_gradients(self) -> dict[str, Tensor]:
        if self.dcentre_q is None or self.dcentre_k is None:
            return {}
        return {"centre_q": self.over_batch(self.dcentre_q), "centre_k": self.over_batch(self.dcentre_k)}

    def centred(self, x: Tensor, centre: Tensor | None) -> Tensor:
        """Inputs less their centre, in place."""
        return x if centre is None else x.sub_(centre[: len(x), None])

    def products(self, waves: Tensor, x: Tensor, name: str) -> Tensor:
        """(N, A, T): waves times inputs (N, T, D)."""
        out = self.workspace(name, len(x), waves.shape[1], x.shape[1])
        return torch.bmm(waves[: len(x)], x.mT, out=out)

    def through_products(self, gradient: Tensor, x: Tensor, name: str) -> Tensor:
        """From the gradient of products with `waves` to that of inputs; that of waves is summed."""
        self.dwaves[: len(x)].baddbmm_(gradient, x)
        return torch.bmm(gradient.mT, self.waves[: len(x)], out=self.workspace(name, *x.shape))
