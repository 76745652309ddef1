"""Where random and learned frequencies start."""

from __future__ import annotations

import math
from functools import partial

import torch
from torch import Tensor

from .weights import at_least_float32


def gaussian_rows(count: int, dim: int, orthogonal: bool, like: Tensor) -> Tensor:
    """(count, dim) rows distributed as N(0, I), orthogonal within blocks of `dim` if asked.

    Orthogonal rows have the lengths of independent Gaussian ones, so that each row alone is Gaussian. They are
    drawn in float32 whatever the dtype of `like`: there is no QR in half precision.
    """
    normal = partial(torch.randn, device=like.device, dtype=torch.float32)
    if not orthogonal:
        return normal(count, dim).to(like.dtype)
    blocks = math.ceil(count / dim)
    q, r = torch.linalg.qr(normal(blocks, dim, dim))
    # QR fixes the signs of its columns by convention; undone, the directions are uniform.
    directions = q * r.diagonal(dim1=-2, dim2=-1).sign()[:, None, :]
    rows = directions.transpose(-1, -2).reshape(blocks * dim, dim)[:count]
    lengths = normal(count, dim).norm(dim=-1, keepdim=True)
    return (rows * lengths).to(like.dtype)


@torch.no_grad()
def draw(frequencies: Tensor, std: float, orthogonal: bool) -> None:
    """Fill (H, n, d) with Gaussian rows, the n of a head orthogonal within blocks of d if asked."""
    if orthogonal:
        heads, count, dim = frequencies.shape
        for head in range(heads):
            frequencies[head] = gaussian_rows(count, dim, True, frequencies) * std
    else:
        frequencies.normal_(std=std)


def spread(x: Tensor, mask: Tensor | None) -> tuple[Tensor, Tensor]:
    """Mean (H, D) and covariance (H, D, D) of (B, H, T, D), over what the mask (B, T) lets through."""
    x = at_least_float32(x)
    weight = x.new_ones(x.shape[0], x.shape[2]) if mask is None else mask.to(x)
    weight = weight[:, None, :, None] / weight.sum().clamp_min(1.0)
    x = x.masked_fill(weight == 0, 0.0)
    mean = (x * weight).sum((0, 2))
    centred = x - mean[None, :, None]
    return mean, torch.einsum("bhti,bhtj->hij", centred * weight, centred)


def shape_of(covariance: Tensor) -> Tensor:
    """The symmetric square roots (H, D, D) of covariances, scaled to a mean variance of one."""
    values, vectors = torch.linalg.eigh(covariance)
    values = values.clamp_min(0.0)
    average = values.mean(-1, keepdim=True)
    flat = average <= 0  # all inputs are alike: no direction stands out
    values = torch.where(flat, torch.ones_like(values), values / average.masked_fill(flat, 1.0))
    return (vectors * values.sqrt()[:, None]) @ vectors.mT
