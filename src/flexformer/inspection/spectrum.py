"""What a kernel has learned, seen without a text: its frequencies, the weight of a key's length, its curves."""

from __future__ import annotations

import torch
from torch import Tensor

from ..kernels import Kernel
from ..kernels.centres import CentredKernel
from ..kernels.complex_spectrum import ComplexKernel
from ..kernels.spectral import SpectralKernel

DIRECTIONS = 2
RADII = 65
REACH = 8.0
"""Curves go so far, in units of the distance at which softmax's own kernel has fallen to e^-1/2."""


def frequencies(kernel: Kernel) -> dict[str, Tensor]:
    """(H, n, d) by name; empty for kernels that have no spectrum."""
    names = kernel.frequency_names if isinstance(kernel, CentredKernel) else ()
    found = {name: getattr(kernel, name) for name in names}
    return {name: values.detach() for name, values in found.items() if values is not None}


def lengths(kernel: Kernel) -> dict[str, Tensor]:
    """(H, n) lengths of the frequencies by name, at the softmax scale: 1 is what estimates softmax itself.

    A frequency of softmax is drawn from N(0, s I), so its mean square length is s d.
    """
    unit = (getattr(kernel, "scaling", kernel.head_dim**-0.5) * kernel.head_dim) ** 0.5
    return {name: values.norm(dim=-1) / unit for name, values in frequencies(kernel).items()}


def norm_weight(kernel: Kernel) -> Tensor | None:
    """(H,) what the squared length of a key adds to the logarithm of its weight; None where it adds nothing."""
    if isinstance(kernel, SpectralKernel):
        return (-kernel.tau.detach()).exp()
    return kernel.beta.detach() if isinstance(kernel, ComplexKernel) else None


def density(values: Tensor, points: Tensor) -> Tensor:
    """(P,) how dense values (N,) lie at points (P,): Gaussians of Silverman's width, reflected at zero."""
    values = values.flatten().double()
    spread = float(values.std()) if values.numel() > 1 else 0.0
    width = max(1.06 * spread * values.numel() ** -0.2, 1e-3)
    at = points.double()[:, None]
    found = sum(torch.exp(-(((at - side * values) / width) ** 2) / 2) for side in (1.0, -1.0))
    assert isinstance(found, Tensor)
    return (found.mean(1) / (width * (2 * torch.pi) ** 0.5)).float()


def principal_directions(kernel: Kernel, keys: Tensor | None = None, count: int = DIRECTIONS) -> Tensor | None:
    """(H, count, d) unit vectors: of a text's keys, or of the frequencies; None where there are neither.

    Args:
        kernel: Whose heads.
        keys: (B, H, S, d).
        count: How many, the most important first.
    """
    if keys is not None:
        rows = keys.float().transpose(0, 1).flatten(1, 2)
        rows = rows - rows.mean(1, keepdim=True)
    else:
        found = list(frequencies(kernel).values())
        if not found:
            return None
        rows = torch.cat(found, dim=1)
    count = min(count, kernel.head_dim)
    vectors = torch.linalg.svd(rows, full_matrices=False).Vh[:, :count]
    # Either sign is right; the larger part of each is made positive, so that the same kernel gives the same curve.
    return vectors * torch.where(vectors.sum(-1, keepdim=True) < 0, -1.0, 1.0)


@torch.no_grad()
def curves(kernel: Kernel, directions: Tensor, radii: Tensor, origin: Tensor | None = None) -> Tensor:
    """(H, count, R): how alike the features of a key are to those of one at distance r along a direction.

    The cosine of the angle between features, k(x + r u, x) / sqrt(k(x + r u, x + r u) k(x, x)). It is 1 at r = 0 for
    every kernel; that of softmax is e^(-s r^2 / 2).

    Args:
        kernel: Any.
        directions: (H, count, d).
        radii: (R,).
        origin: (H, d) x; by default the kernel's centre of keys, or zero.
    """
    if origin is None:
        centre = kernel.centre_k if isinstance(kernel, CentredKernel) else None
        origin = directions.new_zeros(directions.shape[0], kernel.head_dim) if centre is None else centre.detach()
    heads, count, _ = directions.shape
    moved = origin[:, None, None, :] + radii[None, None, :, None] * directions[:, :, None, :]
    points = torch.cat((origin[:, None, :], moved.flatten(1, 2)), dim=1)[None].float()
    positions = torch.zeros(points.shape[2], dtype=torch.long) if kernel.uses_positions else None
    features = torch.nn.functional.normalize(kernel.key_features(points, positions)[0][0], dim=-1)
    return (features[:, 1:] @ features[:, :1].mT).reshape(heads, count, len(radii))


def radii(scaling: float) -> Tensor:
    """(RADII,) distances at which curves are drawn, for a softmax scale."""
    return torch.linspace(0.0, REACH * scaling**-0.5, RADII)


def softmax_curve(at: Tensor, scaling: float) -> Tensor:
    """(R,) the same curve of softmax."""
    return torch.exp(-scaling * at.square() / 2)
