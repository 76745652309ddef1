"""The two Flexformer kernels: learned spectral frequencies of a positive-definite kernel."""

from __future__ import annotations

import math
from typing import Any, ClassVar

import torch
from torch import Tensor, nn

from .base import bounded, in_dtype_of, require_bool, require_finite, require_positive, require_positive_int
from .blocks import BlockFeatures, computes_as
from .centres import CentredKernel, centred
from .registry import register
from .spectral_blocks import NonstationaryBlocks, StationaryBlocks
from .starts import draw
from .workspace import Workspace

DEFAULT_FLOORS = {"floor": 0.01, "raw": 1e-4}
FREQUENCY_SCALE = 0.25
SMALLEST_TAU = -20.0  # |k|^2 / e^tau of the largest inputs there are still fits float32, for heads of any width

# The frequency pairs of a softmax start differ by this much of their spread: equal ones would get equal
# gradients and never part.
PAIR_NOISE = 0.01


class SpectralKernel(CentredKernel):
    r"""What both variants share: k(q, k) = e^{\|k\|^2 / e^tau} kappa(q, k) with \|kappa\| <= 1.

    The factor e^{\|q\|^2 / e^tau} of the query cancels in the normalised output and is never computed.

    Args:
        num_heads: heads of the keys.
        head_dim: width d of one head.
        num_frequencies: n; `head_dim` by default. Features are twice as many.
        frequency_scale: c, 0.25 by default; frequencies start as N(0, c^2 s I), s the softmax scale.
        softmax_start: start at the random-feature estimate of softmax attention: c = 1 and, for pairs of
            frequencies, (nearly) equal ones. Needs many frequencies or small inputs, see docs/numerics.md.
        tau: start of tau; log(2/s) by default. At 100 and above keys have no weight of their own.
        match_tau: start tau at log(2/(s c^2)) instead. Stationary kernels, and equal pairs, then estimate softmax of
            temperature 1/c^2, independent pairs weights of 1/2 + e^{c^2 s q.k} / 2.
        scaling: the softmax scale s to start from; d^-1/2 by default.
        phase_bias: add a learned phase to every frequency, as the paper's parameter counts imply.
        learn_tau: let tau train.
        centres: learn a vector to subtract from all queries of a head and one from all its keys.
        orthogonal: draw frequencies that are orthogonal within blocks of d.
        data_start: let `initialise_from_data`, which distillation calls, give the frequencies the shape of the spread
            of queries and keys.
        policy: what happens to rows whose weights cancel, "floor" or "raw"; see `Kernel`.
        floor: the policy's number: 0.01 for "floor", 1e-4 for "raw" by default.
    """

    conversion_options: ClassVar[dict[str, Any]] = {"match_tau": True, "centres": True}
    phase_names: ClassVar[tuple[str, ...]]

    def __init__(
        self,
        num_heads: int,
        head_dim: int,
        num_frequencies: int | None = None,
        frequency_scale: float | None = None,
        softmax_start: bool = False,
        tau: float | None = None,
        match_tau: bool = False,
        scaling: float | None = None,
        phase_bias: bool = False,
        learn_tau: bool = True,
        centres: bool = False,
        orthogonal: bool = False,
        data_start: bool = False,
        policy: str = "floor",
        floor: float | None = None,
    ) -> None:
        require_positive_int("head_dim", head_dim)
        n = head_dim if num_frequencies is None else num_frequencies
        require_positive_int("num_frequencies", n)
        flags = {
            "softmax_start": softmax_start,
            "match_tau": match_tau,
            "phase_bias": phase_bias,
            "learn_tau": learn_tau,
            "centres": centres,
            "orthogonal": orthogonal,
            "data_start": data_start,
        }
        for argument, flag in flags.items():
            require_bool(argument, flag)
        if softmax_start and frequency_scale is not None:
            raise ValueError(f"frequency_scale {frequency_scale} cannot go with softmax_start, whose scale is 1")
        if softmax_start and data_start:
            raise ValueError("softmax_start and data_start are two starts; leave one out")
        if frequency_scale is None:
            frequency_scale = 1.0 if softmax_start else FREQUENCY_SCALE
        scaling = head_dim**-0.5 if scaling is None else scaling
        require_positive("frequency_scale", frequency_scale)
        require_positive("scaling", scaling)
        if tau is None:
            tau = math.log(2.0 / scaling) - (2.0 * math.log(frequency_scale) if match_tau else 0.0)
        elif match_tau:
            raise ValueError(f"tau {tau} cannot go with match_tau, which sets it; leave one out")
        require_finite("tau", tau)
        if tau < SMALLEST_TAU:
            raise ValueError(f"tau {tau} makes log-weights of keys overflow; use at least {SMALLEST_TAU:g}")
        if policy not in DEFAULT_FLOORS:
            raise ValueError(f"policy {policy!r} is unknown to this kernel; use one of {', '.join(DEFAULT_FLOORS)}")
        super().__init__(num_heads, head_dim, 2 * n, policy, DEFAULT_FLOORS[policy] if floor is None else floor)
        self.num_frequencies = n
        self.frequency_scale = frequency_scale
        self.softmax_start = softmax_start
        self.tau_start = tau
        self.scaling = scaling
        self.orthogonal, self.data_start = orthogonal, data_start
        self.tau = nn.Parameter(torch.empty(num_heads), requires_grad=learn_tau)
        self._add_parameters(phase_bias)
        self._add_centres(centres)
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
        self.tau.fill_(self.tau_start)
        self._reset_centres()

    def waves(self) -> Tensor:
        """(H, A, d): the rows whose inner products with an input are the angles of its features."""
        raise NotImplementedError

    def phases(self) -> Tensor | None:
        """(H, A): what is added to the angles."""
        raise NotImplementedError

    def _angles(self, x: Tensor, waves: Tensor) -> Tensor:
        """(B, H, T, d) to (B, H, A, T): features lie together in memory, where cosines of halves are fast."""
        angles = waves @ x.mT
        phases = self.phases()
        return angles if phases is None else angles + in_dtype_of(phases, x)[..., None]

    def unmix(self, names: tuple[str, ...], gradient: Tensor) -> dict[str, Tensor]:
        """A gradient of `waves()` or `phases()` as those of the parameters, called `names`, they are made of."""
        raise NotImplementedError

    def query_features(self, q: Tensor, positions: Tensor | None = None) -> Tensor:
        return self._features(centred(bounded(q), self.centre_q))

    def key_features(self, k: Tensor, positions: Tensor | None = None) -> tuple[Tensor, Tensor | None]:
        k = centred(bounded(k), self.centre_k)
        # With the queries' centre put back, softmax is still what the start estimates.
        y = k if self.centre_q is None else k + in_dtype_of(self.centre_q, k)[:, None]
        return self._features(k), y.square().sum(-1) * in_dtype_of(self.tau, k).neg().exp()[:, None]

    def _features(self, x: Tensor) -> Tensor:
        """phi of inputs (B, H, T, d) with centres taken off."""
        raise NotImplementedError

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

    frequency_names = ("omega",)
    phase_names = ("phase",)

    omega: nn.Parameter

    def _add_parameters(self, phase_bias: bool) -> None:
        self.omega = self._frequencies()
        self.phase = self._phases(phase_bias)

    @torch.no_grad()
    def reset_parameters(self) -> None:
        super().reset_parameters()
        draw(self.omega, self.frequency_scale * self.scaling**0.5, self.orthogonal)
        if self.phase is not None:
            self.phase.zero_()

    def waves(self) -> Tensor:
        return self.omega

    def phases(self) -> Tensor | None:
        return self.phase

    def _features(self, x: Tensor) -> Tensor:
        angle = self._angles(x, in_dtype_of(self.waves(), x))
        return (torch.cat((angle.cos(), angle.sin()), dim=-2) * self.num_frequencies**-0.5).mT

    def blocks(self, batch: int, workspace: Workspace) -> BlockFeatures:
        kind = StationaryBlocks if computes_as(self, StationaryKernel) else BlockFeatures
        return kind(self, batch, workspace)

    def unmix(self, names: tuple[str, ...], gradient: Tensor) -> dict[str, Tensor]:
        return {names[0]: gradient}


@register("flexformer-n")
class NonstationaryKernel(SpectralKernel):
    r"""Flexformer with a learned nonstationary kernel (Yaglom).

        a_i = (w1_i + w2_i) / 2,  b_i = (w1_i - w2_i) / 2
        phi(x) = n^-1/2 [cos a_i.x cos b_i.x, sin a_i.x cos b_i.x]_i
        kappa(q, k) = 1/(4n) sum_i (cos w1_i.q + cos w2_i.q)(cos w1_i.k + cos w2_i.k) + the same with sines

    Parameters are `omega1` and `omega2` (H, n, d) and `tau` (H). Equal pairs give the stationary kernel. With
    `phase_bias` each frequency gets a phase; the one that moves cos b_i.x changes kappa, the other does not.
    """

    frequency_names = ("omega1", "omega2")
    phase_names = ("phase1", "phase2")

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
        draw(self.omega1, std, self.orthogonal)
        if self.softmax_start:
            self.omega2.copy_(self.omega1 + torch.randn_like(self.omega1) * (PAIR_NOISE * std))
        else:
            draw(self.omega2, std, self.orthogonal)
        for phase in (self.phase1, self.phase2):
            if phase is not None:
                phase.zero_()

    def waves(self) -> Tensor:
        return torch.cat((self.omega1 + self.omega2, self.omega1 - self.omega2), dim=1) / 2

    def phases(self) -> Tensor | None:
        if self.phase1 is None or self.phase2 is None:
            return None
        return torch.cat((self.phase1 + self.phase2, self.phase1 - self.phase2), dim=1) / 2

    def _features(self, x: Tensor) -> Tensor:
        a, b = self._angles(x, in_dtype_of(self.waves(), x)).chunk(2, dim=-2)
        envelope = b.cos() * self.num_frequencies**-0.5
        return torch.cat((a.cos() * envelope, a.sin() * envelope), dim=-2).mT

    def blocks(self, batch: int, workspace: Workspace) -> BlockFeatures:
        kind = NonstationaryBlocks if computes_as(self, NonstationaryKernel) else BlockFeatures
        return kind(self, batch, workspace)

    def unmix(self, names: tuple[str, ...], gradient: Tensor) -> dict[str, Tensor]:
        a, b = gradient.chunk(2, dim=1)
        return {names[0]: (a + b) / 2, names[1]: (a - b) / 2}
