"""Kernels whose features are random projections: Performer's FAVOR+ and Random Feature Attention."""

from __future__ import annotations

import torch
from torch import Tensor, nn

from .base import (
    SMALLEST_DENOMINATOR,
    Kernel,
    bounded,
    exponentials,
    in_dtype_of,
    require_bool,
    require_count,
    require_even,
    require_positive,
    require_positive_int,
)
from .registry import register
from .starts import gaussian_rows


class RandomKernel(Kernel):
    """Holds the random projection and draws it anew every `redraw_interval` training forwards.

    The projection is a buffer: it is saved with the model and stays fixed in evaluation. Under gradient checkpointing a
    model that runs several times before one backward pass needs an interval of 0 or 1: a forward that is run again
    cannot know that another draw came after it.
    """

    projection: Tensor

    def __init__(
        self,
        num_heads: int,
        head_dim: int,
        num_features: int,
        policy: str,
        floor: float,
        *,
        shape: tuple[int, int, int],
        orthogonal: bool,
        redraw_interval: int,
    ) -> None:
        super().__init__(num_heads, head_dim, num_features, policy, floor)
        require_count("redraw_interval", redraw_interval)
        require_bool("orthogonal", orthogonal)
        self.orthogonal = orthogonal
        self.redraw_interval = redraw_interval
        self.training_forwards = 0  # public, so that a resumed training goes on counting where it stopped
        self.register_buffer("projection", torch.empty(shape))
        self.redraw()

    @torch.no_grad()
    def redraw(self) -> None:
        """Draw new random features from torch's default generator."""
        heads, count, dim = self.projection.shape
        # A new tensor rather than new values: a backward pass may still need the old ones. One that was made in
        # inference mode could not be trained with later.
        with torch.inference_mode(False):
            self.projection = torch.stack(
                [gaussian_rows(count, dim, self.orthogonal, self.projection) for _ in range(heads)]
            )

    def redraw_for_training(self) -> None:
        # A compiled graph would count only while it is traced; there the caller redraws.
        if self.redraw_interval == 0 or torch.compiler.is_compiling():
            return
        # Gradient checkpointing runs the forward again inside the backward. A draw at every forward is repeated
        # there with the same random numbers; counting once more would draw at the wrong one.
        if self.redraw_interval > 1 and torch._C._current_graph_task_id() != -1:
            return
        self.training_forwards += 1
        if self.training_forwards % self.redraw_interval == 0:
            self.redraw()

    def reset_parameters(self) -> None:
        self.redraw()


@register("performer")
class PerformerKernel(RandomKernel):
    r"""FAVOR+: positive orthogonal random features of the softmax kernel (Choromanski et al., 2021).

        phi(x)_l = exp(w_l.x' - \|x'\|^2 / 2),  x' = s^1/2 x,  w_l Gaussian rows, orthogonal in blocks of d

    so that E[phi(q) . phi(k)] = e^{s q.k}. The original divides by the largest feature of all keys and adds
    eps = 1e-4 to every feature, through which a causal output would see the future. Here eps is 0 and each
    key's own largest feature goes into its log-weight, which is exact and strictly causal.

    Args:
        num_heads: heads of the keys; they share one projection, as in the original.
        head_dim: width d of one head.
        num_features: 2d by default; the original uses 256, or d ln d.
        orthogonal: draw orthogonal rows.
        redraw_interval: training forwards between new draws; 0 keeps the first.
        scaling: the softmax scale s; d^-1/2 by default.
    """

    def __init__(
        self,
        num_heads: int,
        head_dim: int,
        num_features: int | None = None,
        orthogonal: bool = True,
        redraw_interval: int = 1000,
        scaling: float | None = None,
    ) -> None:
        require_positive_int("head_dim", head_dim)
        count = 2 * head_dim if num_features is None else num_features
        require_positive_int("num_features", count)
        super().__init__(
            num_heads,
            head_dim,
            count,
            policy="absolute",
            floor=SMALLEST_DENOMINATOR,
            shape=(1, count, head_dim),
            orthogonal=orthogonal,
            redraw_interval=redraw_interval,
        )
        self.scaling = head_dim**-0.5 if scaling is None else scaling
        require_positive("scaling", self.scaling)

    def _features(self, scaled: Tensor) -> tuple[Tensor, Tensor]:
        return exponentials(scaled @ in_dtype_of(self.projection, scaled).mT, dim=-1)

    def query_features(self, q: Tensor, positions: Tensor | None = None) -> Tensor:
        return self._features(bounded(q) * self.scaling**0.5)[0]

    def key_features(self, k: Tensor, positions: Tensor | None = None) -> tuple[Tensor, Tensor | None]:
        scaled = bounded(k) * self.scaling**0.5
        phi, size = self._features(scaled)
        return phi, size.squeeze(-1) - scaled.square().sum(-1) / 2


@register("rfa")
class RandomFeatureKernel(RandomKernel):
    r"""Random Feature Attention, ungated (Peng et al., 2021).

        phi(x) = 0.1 [sin W x', cos W x'],  x' = x / (\|x\| + 1e-3),  W = sigma * W_0

    with W_0 (H, F/2, d) Gaussian and `sigma` (H, d) learned, started at 1. The kernel is signed; as in the
    original's causal form the denominator is at least 1, which shrinks the outputs of rows that see very few keys.
    The original's cross attention takes the absolute value first; here every form has the same guard.

    Args:
        num_heads: heads of the keys.
        head_dim: width d of one head.
        num_features: 2d by default.
        orthogonal: draw orthogonal rather than independent rows.
        redraw_interval: training forwards between new draws; the original draws at every one.
    """

    def __init__(
        self,
        num_heads: int,
        head_dim: int,
        num_features: int | None = None,
        orthogonal: bool = False,
        redraw_interval: int = 1,
    ) -> None:
        require_positive_int("head_dim", head_dim)
        count = 2 * head_dim if num_features is None else num_features
        require_even("num_features", count)
        super().__init__(
            num_heads,
            head_dim,
            count,
            policy="absolute",
            floor=1.0,
            shape=(num_heads, count // 2, head_dim),
            orthogonal=orthogonal,
            redraw_interval=redraw_interval,
        )
        self.sigma = nn.Parameter(torch.ones(num_heads, head_dim))

    def reset_parameters(self) -> None:
        super().reset_parameters()
        nn.init.ones_(self.sigma)

    def query_features(self, q: Tensor, positions: Tensor | None = None) -> Tensor:
        x = bounded(q)
        unit = x / (torch.linalg.vector_norm(x, dim=-1, keepdim=True) + 1e-3)
        frequencies = in_dtype_of(self.projection, x) * in_dtype_of(self.sigma, x)[:, None, :]
        angle = unit @ frequencies.transpose(-1, -2)
        return torch.cat((angle.sin(), angle.cos()), dim=-1) * 0.1

    def key_features(self, k: Tensor, positions: Tensor | None = None) -> tuple[Tensor, Tensor | None]:
        return self.query_features(k), None
