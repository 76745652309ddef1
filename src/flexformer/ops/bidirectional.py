"""Attention of every query to every visible key."""

from __future__ import annotations

import torch
from torch import Tensor

from .guard import normalise
from .state import State, log_ratio


def summarise(phi: Tensor, g: Tensor | None, v: Tensor) -> State:
    """The state of a block of keys.

    Args:
        phi: (..., S, F) features.
        g: (..., S) log-weights, -inf where masked, or None where all are zero.
        v: (..., S, D) values.
    """
    length = torch.full((), phi.shape[-2], dtype=torch.int64, device=phi.device)
    if g is None:
        m = phi.new_zeros(phi.shape[:-2])
        w = phi.new_full(phi.shape[:-2], phi.shape[-2])
        return State(S=phi.mT @ v, z=phi.sum(-2), w=w, m=m, length=length)
    m = g.detach().amax(-1)
    scale = log_ratio(g, m[..., None]).exp()
    z = (scale[..., None, :] @ phi).squeeze(-2)
    # Values are narrower than features: scaling them is the cheaper way.
    return State(S=phi.mT @ (v * scale[..., None]), z=z, w=scale.sum(-1), m=m, length=length)


def read(phi: Tensor, state: State, policy: str, floor: float) -> Tensor:
    """What queries with features `phi` (B, H, T, F) get from a state: (B, H, T, D)."""
    den = (state.z[..., None, :] @ phi.mT).squeeze(-2)
    return normalise(phi @ state.S, den, state.w[..., None].expand_as(den), policy, floor)
