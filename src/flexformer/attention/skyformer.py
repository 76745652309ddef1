"""Skyformer: Gaussian-kernel attention through a handful of landmarks."""

from __future__ import annotations

import torch
from torch import Tensor

from ..kernels.base import require_even
from ..kernels.weights import full_precision
from .mechanism import Mechanism

_RIDGE = 0.1
_ITERATIONS = 6
_CLIP = 1e15  # far beyond any meaningful input, and its square is still finite in float32


class SkyformerAttention(Mechanism):
    r"""Kernelized attention, not normalised over keys, by a Nystrom approximation.

    The target, with x~ = D^(-1/4) x, is

        o_i = sum_j kappa(q~_i, k~_j) v_j,    kappa(x, y) = exp(-|x - y|^2 / 2)

    With p = `num_landmarks` landmarks L, half of them queries and half of them keys, drawn with replacement
    at every forward, from the same U(0, 1) numbers for all samples and heads,

        o = kappa(q~, L) G^-1 kappa(L, k~) v,    G = kappa(L, L) + 0.1 I

    where G^-1 comes from six Newton steps on G scaled by its row sums. Cost: O(N p + p^3).

    Masked keys are never landmarks and contribute nothing. A sequence of queries as long as the keys is taken
    to be the same sequence, and then masked positions are no landmarks among the queries either. Outputs at
    masked positions are those of any other query, as in cross attention nothing says that they are padding.
    Outputs grow with the number of keys; those beyond the range of the dtype of `v` are clipped to it.

    Chen, Zeng, Ji, Yang, "Skyformer: Remodel Self-Attention with Gaussian Kernel and Nystrom Method",
    NeurIPS 2021.

    Args:
        num_landmarks: p, an even number.
    """

    def __init__(
        self,
        num_heads: int,
        head_dim: int,
        num_kv_heads: int | None = None,
        dropout: float = 0.0,
        embed_dim: int | None = None,
        *,
        num_landmarks: int = 128,
    ) -> None:
        super().__init__(num_heads, head_dim, num_kv_heads, dropout, embed_dim)
        require_even("num_landmarks", num_landmarks)
        self.num_landmarks = num_landmarks

    def forward(
        self,
        q: Tensor,
        k: Tensor,
        v: Tensor,
        *,
        x: Tensor,
        key_mask: Tensor | None = None,
        is_causal: bool = False,
    ) -> Tensor:
        if not q.shape[2] or not k.shape[2]:
            return (q * 0.0).to(v.dtype)  # zero, and still part of the graph
        dtype = torch.promote_types(v.dtype, torch.float32)
        query_mask = key_mask if q.shape[2] == k.shape[2] else None
        with full_precision(q):
            query, key, value = q.to(dtype), k.to(dtype), v.to(dtype)
            if key_mask is not None:
                hidden = ~key_mask[:, None, :, None]
                key, value = key.masked_fill(hidden, 0.0), value.masked_fill(hidden, 0.0)
            scale = self.head_dim**-0.25
            query, key = query.clamp(-_CLIP, _CLIP) * scale, key.clamp(-_CLIP, _CLIP) * scale

            u = torch.rand(2, self.num_landmarks // 2, device=q.device, dtype=torch.float32)
            landmarks = torch.cat([_pick(query, query_mask, u[0]), _pick(key, key_mask, u[1])], dim=2)  # (B, H, p, D)
            summary = gaussian_kernel(landmarks, key) @ value  # masked values are zero
            out = gaussian_kernel(query, landmarks) @ (inverse_gram(landmarks) @ summary)
            info = torch.finfo(v.dtype)
            return out.clamp(info.min, info.max).to(v.dtype)

    def extra_repr(self) -> str:
        return f"num_landmarks={self.num_landmarks}"


def gaussian_kernel(x: Tensor, y: Tensor) -> Tensor:
    """exp(-|x - y|^2 / 2) for every pair: (..., N, D) and (..., M, D) to (..., N, M)."""
    exponent = x @ y.transpose(-1, -2)
    exponent = exponent - x.square().sum(-1, keepdim=True) / 2 - y.square().sum(-1)[..., None, :] / 2
    # Rounding can leave a squared distance below zero, by much when the norms are large.
    return exponent.clamp(max=0.0).exp()


def newton_inverse(matrix: Tensor) -> Tensor:
    """Approximate inverse of symmetric matrices (..., p, p) whose largest eigenvalue is one.

    Six steps of Z <- Z (13 I - A Z (15 I - A Z (7 I - A Z))) / 4 from Z = A / max(column sums), the maximum
    taken of each matrix by itself. The eigenvalues of A Z start in [0, 1], so no step diverges.
    """
    identity = torch.eye(matrix.shape[-1], dtype=matrix.dtype, device=matrix.device)
    inverse = matrix.transpose(-1, -2) / matrix.sum(dim=-2).amax(dim=-1)[..., None, None]
    for _ in range(_ITERATIONS):
        product = matrix @ inverse
        inner = 15 * identity - product @ (7 * identity - product)
        inverse = inverse @ (13 * identity - product @ inner) / 4
    return inverse


def inverse_gram(landmarks: Tensor) -> Tensor:
    """(kappa(L, L) + 0.1 I)^-1, (B, H, p, p)."""
    gram = gaussian_kernel(landmarks, landmarks)
    # Exactly symmetric with an exact diagonal: with positive row sums, this is what bounds the eigenvalues.
    gram = (gram + gram.transpose(-1, -2)) / 2
    diagonal = torch.eye(gram.shape[-1], dtype=torch.bool, device=gram.device)
    gram = gram.masked_fill(diagonal, 1.0 + _RIDGE)
    root = gram.sum(dim=-1).rsqrt()
    outer = root[..., :, None] * root[..., None, :]
    return outer * newton_inverse(outer * gram)


def _pick(t: Tensor, mask: Tensor | None, u: Tensor) -> Tensor:
    """Rows floor(u * length) of the unmasked rows of `t`: (B, H, N, D) and (m,) to (B, H, m, D)."""
    length = t.shape[2]
    if mask is None:
        return t.index_select(2, (u * length).long().clamp(max=length - 1))
    valid_first = mask.logical_not().to(torch.uint8).argsort(dim=-1, stable=True)
    count = mask.sum(dim=-1, keepdim=True)
    rank = torch.minimum((u * count).long(), count - 1).clamp(min=0)
    rows = valid_first.gather(1, rank)  # (B, m)
    return t.gather(2, rows[:, None, :, None].expand(-1, t.shape[1], -1, t.shape[3]))
