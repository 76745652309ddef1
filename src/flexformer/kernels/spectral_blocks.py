"""Features of the spectral kernels block by block, gradients written out.

Everything is laid out as (B, H, F, T): cosines of all frequencies for all tokens of a block lie together, which is
where vectorised cosines are fast, and matrix products take either layout. The backward pass needs no cosine or sine
that the features have not computed, except sin b of the nonstationary kernel. Inputs beyond the bound get the gradient
they would have at the bound.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING

import torch
from torch import Tensor

from .base import bounded
from .blocks import BlockFeatures, KeyPullback, QueryPullback

if TYPE_CHECKING:
    from .spectral import SpectralKernel

Slope = Callable[[Tensor], Tensor]


class SpectralBlocks(BlockFeatures):
    feature_major = True

    def __init__(self, kernel: SpectralKernel, dtype: torch.dtype) -> None:
        self.spectral = kernel
        self.waves = kernel.waves().detach().to(dtype)
        phases = kernel.phases()
        self.phases = None if phases is None else phases.detach().to(dtype)[..., None]
        self.rate = kernel.tau.detach().to(dtype).neg().exp()[:, None]
        self.scale = kernel.num_frequencies**-0.5
        self.dwaves = torch.zeros_like(self.waves)
        self.dphases = None if self.phases is None else torch.zeros_like(self.phases)
        self.dtau = torch.zeros_like(self.rate[:, 0])

    def query(self, x: Tensor, positions: Tensor | None) -> Tensor:
        return self._features(self._angles(bounded(x))).mT

    def key(self, x: Tensor, positions: Tensor | None) -> tuple[Tensor, Tensor | None]:
        x = bounded(x)
        return self._features(self._angles(x)).mT, self._log_weight(x)

    def query_vjp(self, x: Tensor, positions: Tensor | None) -> tuple[Tensor, QueryPullback]:
        bound = bounded(x)
        phi, slope = self._features_and_slope(self._angles(bound))
        return phi.mT, lambda dphi: self._through_angles(dphi, bound, slope)

    def key_vjp(self, x: Tensor, positions: Tensor | None) -> tuple[Tensor, Tensor | None, KeyPullback]:
        bound = bounded(x)
        phi, slope = self._features_and_slope(self._angles(bound))
        g = self._log_weight(bound)

        def pull(dphi: Tensor, dg: Tensor | None) -> Tensor:
            dx = self._through_angles(dphi, bound, slope)
            if dg is not None:
                dx.addcmul_(bound, (2.0 * self.rate * dg)[..., None])
                self.dtau -= (g * dg).sum((0, 2))
            return dx

        return phi.mT, g, pull

    def parameter_gradients(self) -> list[Tensor]:
        kernel = self.spectral
        found = {"tau": self.dtau} | kernel.unmix(kernel.frequency_names, self.dwaves)
        if self.dphases is not None:
            found |= kernel.unmix(kernel.phase_names, self.dphases[..., 0])
        return [found[name].to(p.dtype) for name, p in kernel.named_parameters() if p.requires_grad]

    def _angles(self, x: Tensor) -> Tensor:
        angles = self.waves @ x.mT
        return angles if self.phases is None else angles.add_(self.phases)

    def _log_weight(self, x: Tensor) -> Tensor:
        return x.square().sum(-1).mul_(self.rate)

    def _through_angles(self, dphi: Tensor, x: Tensor, slope: Slope) -> Tensor:
        dangles = slope(dphi.mT)
        self.dwaves += (dangles @ x).sum(0)
        if self.dphases is not None:
            self.dphases += dangles.sum((0, 3))[..., None]
        return dangles.mT @ self.waves

    def _features(self, angles: Tensor) -> Tensor:
        """(B, H, A, T) angles, which may be overwritten, to (B, H, F, T) features."""
        raise NotImplementedError

    def _features_and_slope(self, angles: Tensor) -> tuple[Tensor, Slope]:
        """Features and a function from their gradient to that of the angles; it can be called once."""
        raise NotImplementedError


class StationaryBlocks(SpectralBlocks):
    def _features(self, angles: Tensor) -> Tensor:
        batch, heads, n, length = angles.shape
        phi = angles.new_empty(batch, heads, 2 * n, length)
        torch.cos(angles, out=phi[:, :, :n])
        torch.sin(angles, out=phi[:, :, n:])
        return phi.mul_(self.scale)

    def _features_and_slope(self, angles: Tensor) -> tuple[Tensor, Slope]:
        n = angles.shape[2]
        phi = self._features(angles)

        def slope(dphi: Tensor) -> Tensor:
            dangles = torch.mul(phi[:, :, :n], dphi[:, :, n:], out=angles)
            return dangles.addcmul_(phi[:, :, n:], dphi[:, :, :n], value=-1.0)

        return phi, slope


class NonstationaryBlocks(SpectralBlocks):
    def _features(self, angles: Tensor) -> Tensor:
        n = angles.shape[2] // 2
        a, b = angles[:, :, :n], angles[:, :, n:]
        phi = torch.empty_like(angles)
        torch.cos(a, out=phi[:, :, :n])
        torch.sin(a, out=phi[:, :, n:])
        envelope = b.cos_().mul_(self.scale)
        phi[:, :, :n].mul_(envelope)
        phi[:, :, n:].mul_(envelope)
        return phi

    def _features_and_slope(self, angles: Tensor) -> tuple[Tensor, Slope]:
        n = angles.shape[2] // 2
        a, b = angles[:, :, :n], angles[:, :, n:]
        cosine, sine, envelope = a.cos(), a.sin(), b.cos().mul_(self.scale)
        phi = torch.empty_like(angles)
        torch.mul(cosine, envelope, out=phi[:, :, :n])
        torch.mul(sine, envelope, out=phi[:, :, n:])

        def slope(dphi: Tensor) -> Tensor:
            d1, d2 = dphi[:, :, :n], dphi[:, :, n:]
            torch.mul(phi[:, :, :n], d2, out=a).addcmul_(phi[:, :, n:], d1, value=-1.0)
            along = cosine.mul_(d1).addcmul_(sine, d2)
            b.sin_().mul_(along).mul_(-self.scale)
            return angles

        return phi, slope
