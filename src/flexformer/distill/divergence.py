"""Cross-entropies between softmax's weights and a kernel's for a block of rows, with their gradients written out.

With P softmax's weights, kappa_ij = phi(q_i) . phi(k_j) and g_j the log-weight of a key, the weights of a kernel are
kappa_ij e^{g_j}. A cross-entropy is log Z_i - sum_j P_ij (log kappa_ij + g_j); the three here differ in what they take
for the logarithm and the sum Z where kappa is negative. `absolute` and `paper` are there to learn from, `clipped` to
measure with.
"""

from __future__ import annotations

from typing import NamedTuple

import torch
from torch import Tensor

# Below it, in units of a row's mean, the logarithm of a value that may be negative goes on as a straight line: such
# values scatter around zero and must not be pushed to -infinity. Being relative, a row gains nothing by shrinking.
# Positive values may be as small as they like and learn all the same.
LINE = 0.2
CLIPPED_EPS = 1e-6
POSITIVE_EPS = 1e-20
PAPER_EPS = 1e-6
SMALLEST_SUM = 1e-30
SMALLEST_MEAN = 1e-12


class KernelRows(NamedTuple):
    """A kernel's weights of a block of rows: kappa * scale, in units of the largest visible e^g of each row."""

    kappa: Tensor
    """(B, H, R, S) phi_q . phi_k"""
    scale: Tensor
    """(B, H, R, S) e^g in these units, zero where not visible; (B, H, 1, S) where all rows see the same"""
    largest: Tensor
    """(B, H, R or 1) the largest visible g"""
    g: Tensor
    """(B, H, S), the largest of all taken off: only differences matter"""


class Divergence(NamedTuple):
    """A cross-entropy and its gradients."""

    each: Tensor
    """(B, H, R)"""
    dkappa: Tensor
    """(B, H, R, S), where asked for"""
    dlogs: Tensor
    """(B, H, R, S) of g for each row, where asked for"""


def absolute(target: Tensor, rows: KernelRows, share: Tensor | None, signed: bool, line: float = LINE) -> Divergence:
    """Z is the sum of the weights' sizes, so that a negative weight costs as much as a positive one.

    Args:
        target: (B, H, R, S) softmax's weights.
        rows: The kernel's.
        share: (B, 1, R) factors of the rows, for the gradients; None leaves those out.
        signed: Values may be negative.
        line: Then the logarithm goes on as a straight line below this share of a row's mean, and the least the
            cross-entropy can be is softmax's entropy less log(1 + line / e).
    """
    if signed:
        return _signed(target, rows, share, line)
    size = rows.kappa * rows.scale
    total = size.sum(-1, keepdim=True).clamp_min_(SMALLEST_SUM)
    raised = rows.kappa.clamp_min(POSITIVE_EPS)
    each = _cross_entropy(target, rows, raised.log(), total)
    if share is None:
        return Divergence(each, each, each)
    dkappa = (rows.scale / total).expand_as(target) - target / raised
    return Divergence(each, dkappa.mul_(share[..., None]), _dlogs(size, total, target, share))


def _signed(target: Tensor, rows: KernelRows, share: Tensor | None, line: float) -> Divergence:
    # With W = sum_j e^g_j the mean is Z / W. The logarithm of kappa / mean has the slope 1 / max(kappa, eps) in kappa,
    # eps being in units of the mean; the slope of the loss in log mean is `pull`, 1 where no value is below eps.
    mean, weight = _mean_size(rows)
    total, eps = mean * weight, line * mean
    raised = rows.kappa.clamp_min(eps)
    logs = (rows.kappa - raised).div_(eps).add_(raised.log())
    each = _cross_entropy(target, rows, logs, total)
    if share is None:
        return Divergence(each, each, each)
    pull = (rows.kappa / raised).mul_(target).sum(-1, keepdim=True)
    dkappa = torch.copysign((rows.scale / total).expand_as(target), rows.kappa).mul_(pull).sub_(target / raised)
    dlogs = rows.kappa.abs().mul_(rows.scale).mul_(pull / total).add_(rows.scale * ((1.0 - pull) / weight)).sub_(target)
    return Divergence(each, dkappa.mul_(share[..., None]), dlogs.mul_(share[..., None]))


def clipped(target: Tensor, rows: KernelRows, signed: bool) -> Tensor:
    """(B, H, R) cross-entropy with the weights that are left when negative ones are dropped.

    Never below softmax's entropy. Values that may be negative are raised to 1e-6 of the row's mean.
    """
    if not signed:
        return absolute(target, rows, None, signed).each
    raised = rows.kappa.clamp_min(CLIPPED_EPS * _mean_size(rows)[0])
    total = (raised * rows.scale).sum(-1, keepdim=True).clamp_min_(SMALLEST_SUM)
    return _cross_entropy(target, rows, raised.log(), total)


def _mean_size(rows: KernelRows) -> tuple[Tensor, Tensor]:
    """(B, H, R, 1) mean of |kappa|, weighted by e^g, and the sum of e^g."""
    weight = rows.scale.sum(-1, keepdim=True).clamp_min(SMALLEST_SUM)
    size = rows.kappa.abs().mul_(rows.scale).sum(-1, keepdim=True)
    return (size / weight).clamp_min_(SMALLEST_MEAN), weight


def paper(target: Tensor, rows: KernelRows, share: Tensor | None) -> Divergence:
    """Values below 1e-6 are raised to it, which makes the loss finite and leaves negative ones alone.

    Arguments as for `absolute`.
    """
    raised = rows.kappa.clamp_min(PAPER_EPS)
    size = raised * rows.scale
    total = size.sum(-1, keepdim=True).clamp_min_(SMALLEST_SUM)
    each = _cross_entropy(target, rows, raised.log(), total)
    if share is None:
        return Divergence(each, each, each)
    dkappa = (rows.scale / total - target / raised).masked_fill_(rows.kappa < PAPER_EPS, 0.0)
    return Divergence(each, dkappa.mul_(share[..., None]), _dlogs(size, total, target, share))


def _cross_entropy(target: Tensor, rows: KernelRows, logs: Tensor, total: Tensor) -> Tensor:
    gains = (target @ rows.g[..., None])[..., 0] - rows.largest * target.sum(-1)
    return total[..., 0].log() - logs.mul_(target).sum(-1) - gains


def _dlogs(size: Tensor, total: Tensor, target: Tensor, share: Tensor) -> Tensor:
    return size.div_(total).sub_(target).mul_(share[..., None])
