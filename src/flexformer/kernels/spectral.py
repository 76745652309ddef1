"""The two Flexformer kernels: learned spectral frequencies of a positive-definite kernel."""

from __future__ import annotations

import math

import torch
from torch import Tensor, nn

from .base import Kernel, bounded, per_head, require_positive_int
from .registry import register

DEFAULT_FLOORS = {"floor": 0.01, "absolute": 1.0, "raw": 1e-4}

# The frequency pairs of a softmax start differ by this much of their spread: equal ones would get equal
# gradients and never part.
PAIR_NOISE = 0.01


class SpectralKernel(Kernel):
    r"""What both variants share: k(q, k) = e^{\|k\|^2 / e^tau} kappa(q, k) with \|kappa\| <= 1.

    The factor e^{\|q\|^2 / e^tau} of the query cancels in the normalised output and is never computed.

    Args:
        num_heads: heads of the keys.
        head_dim: width d of one head.
        num_frequencies: n; `head_dim` by default. Features are twice as many.
        frequency_scale: c; frequencies start as N(0, c^2 s I), s the softmax scale.
        softmax_start: start at the random-feature estimate of softmax attention: c = 1 and, for pairs of
            frequencies, (nearly) equal ones. Needs many frequencies or small inputs, see docs/numerics.md.
        match_tau: start at softmax of temperature 1/c^2, e^tau = 2/(s c^2), rather than e^tau = 2/s.
        scaling: the softmax scale s to start from; d^-1/2 by default.
        phase_bias: add a learned phase to every frequency, as the paper's parameter counts imply.
        learn_tau: let tau train.
        policy: what happens to rows whose weights cancel, see `Kernel`.
        floor: the policy's number: 0.01 for "floor", 1 for "absolute", 1e-4 for "raw" by default.
    """

    def __init__(
        self,
        num_heads: int,
        head_dim: int,
        num_frequencies: int | None = None,
        frequency_scale: float = 0.25,
        softmax_start: bool = False,
        match_tau: bool = False,
        scaling: float | None = None,
        phase_bias: bool = False,
        learn_tau: bool = True,
        policy: str = "floor",
        floor: float | None = None,
    ) -> None:
        require_positive_int("head_dim", head_dim)
        n = head_dim if num_frequencies is None else num_frequencies
        require_positive_int("num_frequencies", n)
        scaling = head_dim**-0.5 if scaling is None else scaling
        for argument, value in (("frequency_scale", frequency_scale), ("scaling", scaling)):
            if not (math.isfinite(value) and value > 0):
                raise ValueError(f"{argument} {value} is not a positive number")
        floor = DEFAULT_FLOORS.get(policy, 1.0) if floor is None else floor
        super().__init__(num_heads, head_dim, 2 * n, policy, floor)
        self.num_frequencies = n
        self.frequency_scale = 1.0 if softmax_start else frequency_scale
        self.softmax_start = softmax_start
        self.match_tau = match_tau
        self.scaling = scaling
        self.tau = nn.Parameter(torch.empty(num_heads), requires_grad=learn_tau)
        self._add_parameters(phase_bias)
        self.reset_parameters()

    def _add_parameters(self, phase_bias: bool) -> None:
        raise NotImplementedError

    def _frequencies(self) -> nn.Parameter:
        return nn.Parameter(torch.empty(self.num_heads, self.num_frequencies, self.head_dim))

    def _phases(self, wanted: bool) -> nn.Parameter | None:
        return nn.Parameter(torch.empty(self.num_heads, self.num_frequencies)) if wanted else None

    @torch.no_grad()
    def reset_parameters(self) -> None:
        """Draw the start anew."""
        temperature = self.frequency_scale**-2 if self.match_tau else 1.0
        self.tau.fill_(math.log(2.0 * temperature / self.scaling))

    def key_features(self, k: Tensor, positions: Tensor | None = None) -> tuple[Tensor, Tensor | None]:
        k = bounded(k)
        log_weight = k.square().sum(-1) * per_head(self.tau, k).neg().exp()[:, None]
        return self.query_features(k, positions), log_weight

    def extra_repr(self) -> str:
        return (
            f"num_heads={self.num_heads}, head_dim={self.head_dim}, num_frequencies={self.num_frequencies}, "
            f"frequency_scale={self.frequency_scale:g}, policy={self.policy!r}, floor={self.floor:g}"
        )


@register("flexformer-s")
class StationaryKernel(SpectralKernel):
    r"""Flexformer with a learned stationary kernel (Bochner).

        phi(x) = n^-1/2 [cos w_1.x, ..., cos w_n.x, sin w_1.x, ..., sin w_n.x]
        kappa(q, k) = phi(q) . phi(k) = 1/n sum_i cos w_i.(q - k)

    Parameters are `omega` (H, n, d) and `tau` (H). With `phase_bias` each w_i.x gets a phase, on which kappa
    does not depend.
    """

    omega: nn.Parameter

    def _add_parameters(self, phase_bias: bool) -> None:
        self.omega = self._frequencies()
        self.phase = self._phases(phase_bias)

    @torch.no_grad()
    def reset_parameters(self) -> None:
        super().reset_parameters()
        self.omega.normal_(std=self.frequency_scale * self.scaling**0.5)
        if self.phase is not None:
            self.phase.zero_()

    def query_features(self, q: Tensor, positions: Tensor | None = None) -> Tensor:
        x = bounded(q)
        angle = x @ per_head(self.omega, x).transpose(-1, -2)
        if self.phase is not None:
            angle = angle + per_head(self.phase, x)[:, None, :]
        return torch.cat((angle.cos(), angle.sin()), dim=-1) * self.num_frequencies**-0.5


@register("flexformer-n")
class NonstationaryKernel(SpectralKernel):
    r"""Flexformer with a learned nonstationary kernel (Yaglom).

        a_i = (w1_i + w2_i) / 2,  b_i = (w1_i - w2_i) / 2
        phi(x) = n^-1/2 [cos a_i.x cos b_i.x, sin a_i.x cos b_i.x]_i
        kappa(q, k) = 1/(4n) sum_i (cos w1_i.q + cos w2_i.q)(cos w1_i.k + cos w2_i.k) + the same with sines

    Parameters are `omega1` and `omega2` (H, n, d) and `tau` (H). Equal pairs give the stationary kernel. With
    `phase_bias` each frequency gets a phase; the one that moves cos b_i.x changes kappa, the other does not.
    """

    omega1: nn.Parameter
    omega2: nn.Parameter

    def _add_parameters(self, phase_bias: bool) -> None:
        self.omega1 = self._frequencies()
        self.omega2 = self._frequencies()
        self.phase1 = self._phases(phase_bias)
        self.phase2 = self._phases(phase_bias)

    @torch.no_grad()
    def reset_parameters(self) -> None:
        super().reset_parameters()
        std = self.frequency_scale * self.scaling**0.5
        self.omega1.normal_(std=std)
        if self.softmax_start:
            self.omega2.copy_(self.omega1 + torch.randn_like(self.omega1) * (PAIR_NOISE * std))
        else:
            self.omega2.normal_(std=std)
        for phase in (self.phase1, self.phase2):
            if phase is not None:
                phase.zero_()

    def query_features(self, q: Tensor, positions: Tensor | None = None) -> Tensor:
        x = bounded(q)
        omega1, omega2 = per_head(self.omega1, x), per_head(self.omega2, x)
        a = x @ ((omega1 + omega2) / 2).transpose(-1, -2)
        b = x @ ((omega1 - omega2) / 2).transpose(-1, -2)
        if self.phase1 is not None and self.phase2 is not None:
            phase1, phase2 = per_head(self.phase1, x)[:, None, :], per_head(self.phase2, x)[:, None, :]
            a, b = a + (phase1 + phase2) / 2, b + (phase1 - phase2) / 2
        envelope = b.cos() * self.num_frequencies**-0.5
        return torch.cat((a.cos() * envelope, a.sin() * envelope), dim=-1)
