"""Features of the complex spectrum block by block, gradients written out.

With u = a.x the size of frequency i, features of unit length are e_i = e^{u_i - L} times a cosine, a sine or nothing,
L = log(sum e^{2u}) / 2. Let h_i be the sum of features times their gradients over those of frequency i. Then the
gradient of u_i is h_i - e_i^2 (sum h - dg), g containing L. Without pairs any constant may stand for L, and the
gradient is h_i.

Exponents are kept in bits, u / log 2: powers of two take half the time of powers of e.
"""

from __future__ import annotations

import math
from typing import TYPE_CHECKING

import torch
from torch import Tensor

from .base import SMALLEST_LOG
from .blocks import KeyPullback, QueryPullback
from .wave_blocks import WaveBlocks
from .workspace import Workspace

if TYPE_CHECKING:
    from .complex_spectrum import ComplexKernel


LOG_2 = math.log(2.0)


class ComplexBlocks(WaveBlocks):
    def __init__(self, kernel: ComplexKernel, batch: int, workspace: Workspace) -> None:
        super().__init__(kernel, batch, workspace)
        self.complex, self.real, self.pairs = kernel, kernel.num_real, kernel.num_pairs
        self.waves_in_bits = self.waves.clone()
        self.waves_in_bits[:, : self.real + self.pairs] /= LOG_2
        self.beta = self.repeated(kernel.beta)[:, None]
        self.dbeta = torch.zeros_like(self.beta[:, 0])

    def query(self, x: Tensor, positions: Tensor | None) -> Tensor:
        return self._features(self.centred(x, self.centre_q), "query")[0].mT

    def key(self, x: Tensor, positions: Tensor | None) -> tuple[Tensor, Tensor | None]:
        linear = self._linear(x)
        x = self.centred(x, self.centre_k)
        phi, size, _ = self._features(x, "key")
        return phi.mT, self._log_weight(_squares(x), size, linear)

    def query_vjp(self, x: Tensor, positions: Tensor | None) -> tuple[Tensor, QueryPullback]:
        x = self.centred(x, self.centre_q)
        phi, _, growth = self._features(x, "query")

        def pull(dphi: Tensor) -> Tensor:
            dx = self.through_products(self._slope(phi, growth, dphi.mT, None), x, "query gradients")
            if self.dcentre_q is not None:
                self.dcentre_q[: len(x)] -= dx.sum(1)
            return dx

        return phi.mT, pull

    def key_vjp(self, x: Tensor, positions: Tensor | None) -> tuple[Tensor, Tensor | None, KeyPullback]:
        linear = self._linear(x)
        x = self.centred(x, self.centre_k)
        phi, size, growth = self._features(x, "key")
        squares = _squares(x)
        g = self._log_weight(squares, size, linear)

        def pull(dphi: Tensor, dg: Tensor | None) -> Tensor:
            assert dg is not None
            dx = self.through_products(self._slope(phi, growth, dphi.mT, dg), x, "key gradients")
            dx.addcmul_(x, (2.0 * self.beta[: len(x)] * dg)[..., None])
            self.dbeta[: len(x)] += squares.mul_(dg).sum(1)
            return self._through_centres(dx, x, dg)

        return phi.mT, g, pull

    def parameter_gradients(self) -> dict[str, Tensor]:
        alpha, omega = self.over_batch(self.dwaves).split((self.real + self.pairs, self.pairs), dim=1)
        return {"alpha": alpha, "omega": omega, "beta": self.over_batch(self.dbeta)} | self.centre_gradients()

    def _linear(self, x: Tensor) -> Tensor | None:
        """What the queries' centre adds to the log-weight of keys: (N, T)."""
        if self.centre_q is None:
            return None
        return torch.bmm(x, self.centre_q[: len(x), :, None]).squeeze(-1).mul_(self.complex.sharpness)

    def _log_weight(self, squares: Tensor, size: Tensor, linear: Tensor | None) -> Tensor:
        g = torch.addcmul(size, squares, self.beta[: len(squares)])
        return g if linear is None else g.add_(linear)

    def _features(self, x: Tensor, side: str) -> tuple[Tensor, Tensor, Tensor | None]:
        """(N, F, T) features, the logarithm of their size (N, T), and where there are pairs all e, (N, R + P, T)."""
        count, length, growing = len(x), x.shape[1], self.real + self.pairs
        waves = self.products(self.waves_in_bits, x, f"{side} waves")
        growth, phase = waves[:, :growing], waves[:, growing:]
        size = growth.amax(1, keepdim=True)
        if not self.pairs:
            phi = growth.sub_(size).clamp_min_(SMALLEST_LOG / LOG_2).exp2_()
            return phi, size.mul_(LOG_2).squeeze(1), None
        growth.sub_(size).exp2_()
        # Not vector_norm, which is slow along any dimension but the last.
        squares = torch.mul(growth, growth, out=self.workspace("squares", *growth.shape)).sum(1, keepdim=True)
        growth.mul_(squares.rsqrt())
        phi = self.workspace(f"{side} features", count, self.real + 2 * self.pairs, length)
        if self.real:
            phi[:, : self.real] = growth[:, : self.real]
        envelope = growth[:, self.real :]
        cosine, sine = phi[:, self.real : growing], phi[:, growing:]
        torch.cos(phase, out=cosine).mul_(envelope)
        torch.sin(phase, out=sine).mul_(envelope)
        return phi, size.mul_(LOG_2).add_(squares.log_(), alpha=0.5).squeeze(1), growth

    def _slope(self, phi: Tensor, growth: Tensor | None, dphi: Tensor, dg: Tensor | None) -> Tensor:
        """From the gradients of features and of the log-weight to that of waves; overwrites all three."""
        if growth is None:
            return phi.mul_(dphi)
        real, growing = self.real, self.real + self.pairs
        cosine, sine = phi[:, real:growing], phi[:, growing:]
        d1, d2 = dphi[:, real:growing], dphi[:, growing:]
        dwaves = self.workspace("wave gradients", *phi.shape)
        if real:
            torch.mul(phi[:, :real], dphi[:, :real], out=dwaves[:, :real])
        torch.mul(cosine, d1, out=dwaves[:, real:growing]).addcmul_(sine, d2)
        torch.mul(cosine, d2, out=dwaves[:, growing:]).addcmul_(sine, d1, value=-1.0)
        excess = dwaves[:, :growing].sum(1)
        if dg is not None:
            excess -= dg
        dwaves[:, :growing].addcmul_(growth.square_(), excess[:, None], value=-1.0)
        return dwaves

    def _through_centres(self, dx: Tensor, x: Tensor, dg: Tensor) -> Tensor:
        if self.centre_q is None or self.centre_k is None or self.dcentre_q is None or self.dcentre_k is None:
            return dx
        here, sharpness = slice(len(x)), self.complex.sharpness
        self.dcentre_k[here] -= dx.sum(1)
        weighted = torch.bmm(dg[:, None], x).squeeze(1)
        weighted.addcmul_(dg.sum(1, keepdim=True), self.centre_k[here])
        self.dcentre_q[here].add_(weighted, alpha=sharpness)
        return dx.addcmul_(dg[..., None], self.centre_q[here, None], value=sharpness)


def _squares(x: Tensor) -> Tensor:
    """(N, T): squared length of inputs (N, T, D)."""
    return torch.linalg.vector_norm(x, dim=-1).square_()
