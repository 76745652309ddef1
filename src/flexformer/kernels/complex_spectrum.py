"""Flexformer with a complex spectrum: growing and oscillating waves."""

from __future__ import annotations

from typing import Any, ClassVar

import torch
from torch import Tensor, nn

from .base import (
    SMALLEST_DENOMINATOR,
    bounded,
    exponentials,
    in_dtype_of,
    require_bool,
    require_finite,
    require_positive,
    require_positive_int,
)
from .blocks import BlockFeatures, computes_as
from .centres import CentredKernel, centred
from .complex_blocks import ComplexBlocks
from .registry import register
from .starts import draw
from .workspace import Workspace

REAL_SCALE, WAVE_SCALE = 0.1, 0.25
LARGEST_BETA = 1e8  # beta |k|^2 of the largest inputs there are still fits float32, for heads of any width
FLOOR = 0.01


@register("flexformer-c")
class ComplexKernel(CentredKernel):
    r"""Flexformer with a learned complex spectrum (Laplace and Fourier at once).

        k(q, k) = e^{beta \|k\|^2} sum_i e^{a_i.(q + k)} cos b_i.(q - k)

    With the query's factor of the same form, which cancels, it is positive definite for any a_i, b_i and beta.
    `num_real` of the features have b_i = 0: exponentials with learned directions, whose weights are positive. The
    others come in pairs, e^{a.x} cos b.x and e^{a.x} sin b.x; a = 0 gives flexformer-s. Where there are pairs, features
    are brought to unit length, the length of a key's going into its log-weight, so that "floor" has its meaning;
    without pairs no row can cancel and there is nothing to guard.

    With a ~ N(0, A^2 s I) and b ~ N(0, B^2 s I), s the softmax scale, the start is the random-feature estimate of
    softmax attention at temperature 1 / (A^2 + B^2), given beta = s (B^2 - A^2) / 2. For real exponentials B counts as
    zero; a mixture of both estimates no single temperature.

    Parameters are `alpha` (H, n_real + n_pairs, d), the exponentials of their own first, `omega` (H, n_pairs, d),
    `beta` (H), and with `centres` `centre_q` and `centre_k` (H, d).

    Args:
        num_heads: heads of the keys.
        head_dim: width d of one head.
        num_frequencies: half the number of features; `head_dim` by default.
        num_real: features that are real exponentials, an even number up to 2 `num_frequencies`, "half" (rounded down
            to an even number) or "all", the default; the rest are pairs.
        real_scale: A; may be zero where there are pairs alone, which then start as flexformer-s.
        wave_scale: B, of pairs.
        scaling: the softmax scale s to start from; d^-1/2 by default.
        beta: start of beta; by default the one above.
        learn_beta: let beta train.
        centres: learn a vector to subtract from all queries of a head and one from all its keys.
        orthogonal: draw rows of `alpha` and of `omega` that are orthogonal within blocks of d.
        data_start: let `initialise_from_data`, which distillation calls, give them the shape of the spread of queries
            and keys.
        floor: smallest denominator relative to the row's sum of e^g, where there are pairs.
    """

    frequency_names = ("alpha", "omega")
    conversion_options: ClassVar[dict[str, Any]] = {
        "real_scale": 0.5,
        "wave_scale": 0.1,
        "centres": True,
    }

    def __init__(
        self,
        num_heads: int,
        head_dim: int,
        num_frequencies: int | None = None,
        num_real: int | str = "all",
        real_scale: float = REAL_SCALE,
        wave_scale: float = WAVE_SCALE,
        scaling: float | None = None,
        beta: float | None = None,
        learn_beta: bool = True,
        centres: bool = False,
        orthogonal: bool = False,
        data_start: bool = False,
        floor: float | None = None,
    ) -> None:
        require_positive_int("head_dim", head_dim)
        n = head_dim if num_frequencies is None else num_frequencies
        require_positive_int("num_frequencies", n)
        real = _real_count(num_real, n)
        flags = {"learn_beta": learn_beta, "centres": centres, "orthogonal": orthogonal, "data_start": data_start}
        for argument, flag in flags.items():
            require_bool(argument, flag)
        scaling = head_dim**-0.5 if scaling is None else scaling
        pairs = n - real // 2
        for argument, value in (("real_scale", real_scale), ("wave_scale", wave_scale), ("scaling", scaling)):
            if not (argument == "real_scale" and value == 0 and not real):
                require_positive(argument, value)
        if floor is not None:
            require_positive("floor", floor)
            if not pairs and floor != SMALLEST_DENOMINATOR:  # adapters name the one that there is
                raise ValueError(f"floor {floor} has no use where all features are real; leave it out")
        policy, default = ("floor", FLOOR) if pairs else ("absolute", SMALLEST_DENOMINATOR)
        super().__init__(num_heads, head_dim, 2 * n, policy, default if floor is None else floor)
        self.num_frequencies, self.num_real, self.num_pairs = n, real, pairs
        self.real_scale, self.wave_scale, self.scaling = real_scale, wave_scale if pairs else 0.0, scaling
        self.orthogonal, self.data_start = orthogonal, data_start
        if beta is None:
            beta = scaling * (self.wave_scale**2 - real_scale**2) / 2
        require_finite("beta", beta)
        if abs(beta) > LARGEST_BETA:
            raise ValueError(f"beta {beta:g} makes log-weights of keys overflow; use one of at most {LARGEST_BETA:g}")
        self.beta_start = beta
        self.alpha = nn.Parameter(torch.empty(num_heads, real + pairs, head_dim))
        self.omega = nn.Parameter(torch.empty(num_heads, pairs, head_dim)) if pairs else None
        self.beta = nn.Parameter(torch.empty(num_heads), requires_grad=learn_beta)
        self._add_centres(centres)
        self.reset_parameters()

    @torch.no_grad()
    def reset_parameters(self) -> None:
        """Draw the start anew."""
        root = self.scaling**0.5
        draw(self.alpha, self.real_scale * root, self.orthogonal)
        if self.omega is not None:
            draw(self.omega, self.wave_scale * root, self.orthogonal)
        self.beta.fill_(self.beta_start)
        self._reset_centres()

    @property
    def sharpness(self) -> float:
        """A^2 + B^2 times the softmax scale: what an inner product counts for at the start."""
        return self.scaling * (self.real_scale**2 + self.wave_scale**2)

    def waves(self) -> Tensor:
        """(H, n_real + 2 n_pairs, d): the rows whose inner products with an input make its features."""
        return self.alpha if self.omega is None else torch.cat((self.alpha, self.omega), dim=1)

    def query_features(self, q: Tensor, positions: Tensor | None = None) -> Tensor:
        return self._features(centred(bounded(q), self.centre_q))[0]

    def key_features(self, k: Tensor, positions: Tensor | None = None) -> tuple[Tensor, Tensor | None]:
        k = bounded(k)
        x = centred(k, self.centre_k)
        phi, size = self._features(x)
        g = size + x.square().sum(-1) * in_dtype_of(self.beta, k)[:, None]
        if self.centre_q is not None:
            g = g + (k @ (self.sharpness * in_dtype_of(self.centre_q, k))[..., None]).squeeze(-1)
        return phi, g

    def _features(self, x: Tensor) -> tuple[Tensor, Tensor]:
        """Features (B, H, T, F) and the logarithm of what they are to be multiplied by, (B, H, T)."""
        angles = in_dtype_of(self.waves(), x) @ x.mT
        growth = angles[..., : self.num_real + self.num_pairs, :]
        if not self.num_pairs:
            # Any size will do, as it is taken out of the features and put into the log-weight.
            phi, size = exponentials(growth, dim=-2)
            return phi.mT, size.squeeze(-2)
        size = (2.0 * growth).logsumexp(-2, keepdim=True) / 2.0
        real, envelope = (growth - size).exp().split((self.num_real, self.num_pairs), dim=-2)
        phase = angles[..., -self.num_pairs :, :]
        return torch.cat((real, envelope * phase.cos(), envelope * phase.sin()), dim=-2).mT, size.squeeze(-2)

    def blocks(self, batch: int, workspace: Workspace) -> BlockFeatures:
        kind = ComplexBlocks if computes_as(self, ComplexKernel) else BlockFeatures
        return kind(self, batch, workspace)

    def extra_repr(self) -> str:
        return (
            f"num_heads={self.num_heads}, head_dim={self.head_dim}, num_frequencies={self.num_frequencies}, "
            f"num_real={self.num_real}, centres={self.centre_q is not None}"
            + (f", floor={self.floor:g}" if self.num_pairs else "")
        )


def _real_count(num_real: int | str, frequencies: int) -> int:
    """How many of 2 `frequencies` features are real exponentials."""
    features = 2 * frequencies
    if isinstance(num_real, bool) or not isinstance(num_real, int):
        if num_real not in ("all", "half"):
            raise ValueError(f"num_real {num_real!r} is not a count; use a whole number, 'half' or 'all'")
        return features if num_real == "all" else frequencies - frequencies % 2
    if not 0 <= num_real <= features:
        raise ValueError(f"num_real {num_real} is not among the features; use an even number up to {features}")
    if num_real % 2:
        raise ValueError(f"num_real {num_real} is odd and does not leave pairs; use an even number up to {features}")
    return num_real
