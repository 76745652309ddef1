"""What the learned kernels share: where frequencies start, and a centre for queries and one for keys."""

from __future__ import annotations

from typing import ClassVar

import torch
from torch import Tensor, nn

from .base import Kernel, in_dtype_of
from .starts import shape_of, spread


class CentredKernel(Kernel):
    """A kernel of q - c_q and k - c_k.

    Softmax weights do not change when one vector is subtracted from all keys, and what a shift of the queries changes
    is a linear term in the log-weight of the key, which subclasses put back; so centres cost nothing in what can be
    expressed. They move queries and keys to where a kernel can tell them apart.

    Parameters are `centre_q` and `centre_k` (H, d), started at zero, or None without centres.

    With `data_start`, `initialise_from_data` also gives the frequencies, drawn alike in every direction, the shape of
    the spread of queries and keys: most where these differ most.
    """

    frequency_names: ClassVar[tuple[str, ...]]
    data_start: bool
    centre_q: nn.Parameter | None
    centre_k: nn.Parameter | None

    def _add_centres(self, wanted: bool) -> None:
        for name in ("centre_q", "centre_k"):
            vector = nn.Parameter(torch.zeros(self.num_heads, self.head_dim)) if wanted else None
            self.register_parameter(name, vector)

    @torch.no_grad()
    def _reset_centres(self) -> None:
        for centre in (self.centre_q, self.centre_k):
            if centre is not None:
                centre.zero_()

    @torch.no_grad()
    def initialise_from_data(self, q: Tensor, k: Tensor, key_mask: Tensor | None = None) -> None:
        """Start the centres at the mean query and key of each head.

        With `data_start` everything starts anew, the frequencies bent.

        Args:
            q: (B, H, T, D) with H a multiple of `num_heads`.
            k: (B, num_heads, S, D).
            key_mask: (B, S) bool, True = attend; also the mask of queries where T = S.
        """
        if self.centre_k is None and not self.data_start:
            return
        for argument, x, heads in (("q", q, "a multiple of "), ("k", k, "")):
            wrong = x.ndim != 4 or x.shape[1] % self.num_heads or x.shape[3] != self.head_dim
            if wrong or (argument == "k" and x.shape[1] != self.num_heads):
                raise ValueError(
                    f"{argument} has shape {tuple(x.shape)}; use (batch, heads, length, width) with {heads}"
                    f"{self.num_heads} heads and width {self.head_dim}"
                )
        key_mean, key_covariance = spread(k, key_mask)
        query_mean, query_covariance = (
            found.unflatten(0, (self.num_heads, -1)).mean(1)
            for found in spread(q, key_mask if q.shape[2] == k.shape[2] else None)
        )
        for argument, mean, covariance in (("q", query_mean, query_covariance), ("k", key_mean, key_covariance)):
            if not mean.isfinite().all():
                raise ValueError(f"{argument} is not finite everywhere, so its mean cannot be a centre")
            if self.data_start and not covariance.isfinite().all():
                raise ValueError(f"{argument} is too large: its squares are not finite, so it has no spread")
        if self.data_start:
            self.reset_parameters()
        if self.centre_q is not None and self.centre_k is not None:
            self.centre_q.copy_(query_mean)
            self.centre_k.copy_(key_mean)
        if self.data_start:
            shape = shape_of(query_covariance + key_covariance)
            for name in self.frequency_names:
                frequencies = getattr(self, name)
                if frequencies is not None:
                    frequencies.copy_(frequencies @ shape.to(frequencies))


def centred(x: Tensor, centre: Tensor | None) -> Tensor:
    """(B, H, T, D) less the centre of its head."""
    return x if centre is None else x - in_dtype_of(centre, x)[:, None]
