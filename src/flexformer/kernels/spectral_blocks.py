"""Features of the spectral kernels block by block, gradients written out.

The backward pass needs no cosine or sine that the features have not computed, except sin b of the nonstationary kernel.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING

import torch
from torch import Tensor

from .blocks import KeyPullback, QueryPullback
from .wave_blocks import WaveBlocks
from .workspace import Workspace

if TYPE_CHECKING:
    from .spectral import SpectralKernel

Slope = Callable[[Tensor], Tensor]


class SpectralBlocks(WaveBlocks):
    def __init__(self, kernel: SpectralKernel, batch: int, workspace: Workspace) -> None:
        super().__init__(kernel, batch, workspace)
        self.spectral = kernel
        phases = kernel.phases()
        self.phases = None if phases is None else self.repeated(phases)[..., None]
        self.dphases = None if self.phases is None else torch.zeros_like(self.phases[..., 0])
        self.rate = self.repeated(kernel.tau).neg().exp()[:, None]
        self.dtau = torch.zeros_like(self.rate[:, 0])
        self.scale = kernel.num_frequencies**-0.5

    def query(self, x: Tensor, positions: Tensor | None) -> Tensor:
        return self._features(self._angles(self.centred(x, self.centre_q), "either"), "query").mT

    def key(self, x: Tensor, positions: Tensor | None) -> tuple[Tensor, Tensor | None]:
        x = self.centred(x, self.centre_k)
        return self._features(self._angles(x, "either"), "key").mT, self._log_weight(self._weighed(x))

    def query_vjp(self, x: Tensor, positions: Tensor | None) -> tuple[Tensor, QueryPullback]:
        x = self.centred(x, self.centre_q)
        phi, slope = self._features_and_slope(self._angles(x, "query"), "query")

        def pull(dphi: Tensor) -> Tensor:
            dx = self._through_angles(dphi, x, slope, "query")
            if self.dcentre_q is not None:
                self.dcentre_q[: len(x)] -= dx.sum(1)
            return dx

        return phi.mT, pull

    def key_vjp(self, x: Tensor, positions: Tensor | None) -> tuple[Tensor, Tensor | None, KeyPullback]:
        x = self.centred(x, self.centre_k)
        phi, slope = self._features_and_slope(self._angles(x, "key"), "key")
        weighed = self._weighed(x)
        g = self._log_weight(weighed)

        def pull(dphi: Tensor, dg: Tensor | None) -> Tensor:
            dx = self._through_angles(dphi, x, slope, "key")
            assert dg is not None
            slopes = 2.0 * self.rate[: len(x)] * dg
            dx.addcmul_(weighed, slopes[..., None])
            self.dtau[: len(x)] -= (g * dg).sum(1)
            if self.dcentre_q is not None and self.dcentre_k is not None:
                self.dcentre_k[: len(x)] -= dx.sum(1)
                self.dcentre_q[: len(x)] += torch.bmm(slopes[:, None], weighed).squeeze(1)
            return dx

        return phi.mT, g, pull

    def parameter_gradients(self) -> dict[str, Tensor]:
        kernel = self.spectral
        found = {"tau": self.over_batch(self.dtau)}
        found |= kernel.unmix(kernel.frequency_names, self.over_batch(self.dwaves))
        if self.dphases is not None:
            found |= kernel.unmix(kernel.phase_names, self.over_batch(self.dphases))
        return found | self.centre_gradients()

    def _weighed(self, x: Tensor) -> Tensor:
        """Keys as their log-weight takes them."""
        if self.centre_q is None:
            return x
        return torch.add(x, self.centre_q[: len(x), None], out=self.workspace("weighed", *x.shape))

    def _angles(self, x: Tensor, side: str) -> Tensor:
        angles = self.products(self.waves, x, f"{side} angles")
        return angles if self.phases is None else angles.add_(self.phases[: len(x)])

    def _log_weight(self, x: Tensor) -> Tensor:
        return torch.linalg.vector_norm(x, dim=-1).square_().mul_(self.rate[: len(x)])

    def _through_angles(self, dphi: Tensor, x: Tensor, slope: Slope, side: str) -> Tensor:
        dangles = slope(dphi.mT)
        if self.dphases is not None:
            self.dphases[: len(x)] += dangles.sum(2)
        return self.through_products(dangles, x, f"{side} gradients")

    def _features(self, angles: Tensor, side: str) -> Tensor:
        """(B * H, A, T) angles, which may be overwritten, to (B * H, F, T) features."""
        raise NotImplementedError

    def _features_and_slope(self, angles: Tensor, side: str) -> tuple[Tensor, Slope]:
        """Features and a function from their gradient, to be overwritten, to that of the angles."""
        raise NotImplementedError


class StationaryBlocks(SpectralBlocks):
    def _features(self, angles: Tensor, side: str) -> Tensor:
        count, n, length = angles.shape
        phi = self.workspace(f"{side} features", count, 2 * n, length)
        torch.cos(angles, out=phi[:, :n])
        torch.sin(angles, out=phi[:, n:])
        return phi

    def _features_and_slope(self, angles: Tensor, side: str) -> tuple[Tensor, Slope]:
        n = angles.shape[1]
        phi = self._features(angles, side)

        def slope(dphi: Tensor) -> Tensor:
            dangles = torch.mul(phi[:, :n], dphi[:, n:], out=angles)
            return dangles.addcmul_(phi[:, n:], dphi[:, :n], value=-1.0)

        return phi, slope


class NonstationaryBlocks(SpectralBlocks):
    def __init__(self, kernel: SpectralKernel, batch: int, workspace: Workspace) -> None:
        super().__init__(kernel, batch, workspace)
        self.nothing = self.waves.new_zeros(())

    def _features(self, angles: Tensor, side: str) -> Tensor:
        n = angles.shape[1] // 2
        a, b = angles[:, :n], angles[:, n:]
        phi = self.workspace(f"{side} features", *angles.shape)
        torch.cos(a, out=phi[:, :n])
        torch.sin(a, out=phi[:, n:])
        envelope = b.cos_()
        phi[:, :n].mul_(envelope)
        phi[:, n:].mul_(envelope)
        return phi

    def _features_and_slope(self, angles: Tensor, side: str) -> tuple[Tensor, Slope]:
        count, n, length = angles.shape[0], angles.shape[1] // 2, angles.shape[2]
        a, b = angles[:, :n], angles[:, n:]
        phi = self.workspace(f"{side} features", *angles.shape)
        cosine, envelope = self.workspace(f"{side} waves", 2, count, n, length)
        torch.cos(a, out=cosine)
        sine = a.sin_()
        torch.cos(b, out=envelope)
        torch.mul(cosine, envelope, out=phi[:, :n])
        torch.mul(sine, envelope, out=phi[:, n:])

        def slope(dphi: Tensor) -> Tensor:
            d1, d2 = dphi[:, :n], dphi[:, n:]
            phi[:, :n].mul_(d2).addcmul_(phi[:, n:], d1, value=-1.0)
            along = cosine.mul_(d1).addcmul_(sine, d2)
            torch.addcmul(self.nothing, b.sin_(), along, value=-1.0, out=phi[:, n:])
            return phi

        return phi, slope
