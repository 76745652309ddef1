"""Learned centres: one vector to subtract from all queries of a head, and one from all its keys."""

from __future__ import annotations

import torch
from torch import Tensor, nn

from .base import Kernel, per_head


class CentredKernel(Kernel):
    """A kernel of q - c_q and k - c_k.

    Softmax weights do not change when one vector is subtracted from all keys, and what a shift of the queries changes
    is a linear term in the log-weight of the key, which subclasses put back; so centres cost nothing in what can be
    expressed. They move queries and keys to where a kernel can tell them apart.

    Parameters are `centre_q` and `centre_k` (H, d), started at zero, or None without centres.
    """

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

        Args:
            q: (B, H, T, D) with H a multiple of `num_heads`.
            k: (B, num_heads, S, D).
            key_mask: (B, S) bool, True = attend; also the mask of queries where T = S.
        """
        if self.centre_q is None or self.centre_k is None:
            return
        self.centre_k.copy_(_mean(k, key_mask))
        rows = _mean(q, key_mask if q.shape[2] == k.shape[2] else None)
        self.centre_q.copy_(rows.unflatten(0, (self.num_heads, -1)).mean(1))


def centred(x: Tensor, centre: Tensor | None) -> Tensor:
    """(B, H, T, D) less the centre of its head."""
    return x if centre is None else x - per_head(centre, x)[:, None]


def _mean(x: Tensor, mask: Tensor | None) -> Tensor:
    """(B, H, T, D) to (H, D), over what the mask lets through."""
    x = x.float()
    if mask is None:
        return x.mean((0, 2))
    weight = mask[:, None, :, None].to(x)
    return x.masked_fill(~mask[:, None, :, None], 0.0).sum((0, 2)) / weight.sum().clamp_min(1.0)
