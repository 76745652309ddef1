"""Reformer: softmax attention among tokens that a random hash puts close together."""

from __future__ import annotations

import math

import torch
import torch.nn.functional as F
from torch import Tensor

from ..kernels.base import bounded, require_even, require_positive_int
from ..kernels.weights import full_precision
from .mechanism import Mechanism

_SELF_PENALTY = 1e5
_NORM_EPS = 1e-6


class ReformerAttention(Mechanism):
    r"""Locality-sensitive hashing attention with one vector x_i as query and key.

    In each of `num_hashes` rounds, with a Gaussian matrix R drawn anew at every forward,

        bucket(x) = argmax [x R ; -x R]

    positions are sorted by (bucket, position), and the sorted lists of all rounds, end to end, are cut into
    chunks of c = `chunk_length`. A token sees its own chunk and, circularly, the one before:

        o_i^r = sum_j softmax_j(x_i . x_j / |x_j|) v_j,    o_i = sum_r softmax_r(lse_i^r) o_i^r

    where lse_i^r is the log-sum-exp of round r's logits. A token sees itself only when it sees nothing else.
    Up to c tokens are attended to in full, without hashing. Cost: O(`num_hashes` N c).

    Masked positions neither give nor take: they are sorted last, hidden as keys, and their outputs are zero.

    Kitaev, Kaiser, Levskaya, "Reformer: The Efficient Transformer", ICLR 2020.

    Args:
        chunk_length: c, positions in a chunk.
        num_hashes: rounds of hashing.
        num_buckets: buckets in a round, an even number; None for the power of two at or below 2 N / c (N a
            multiple of c, by filling up), made of two narrower hashes where one would be wider than 2 c.
    """

    self_attention_only = True
    shares_query_key = True

    def __init__(
        self,
        num_heads: int,
        head_dim: int,
        num_kv_heads: int | None = None,
        dropout: float = 0.0,
        embed_dim: int | None = None,
        *,
        chunk_length: int = 64,
        num_hashes: int = 2,
        num_buckets: int | None = None,
    ) -> None:
        super().__init__(num_heads, head_dim, num_kv_heads, dropout, embed_dim)
        require_positive_int("chunk_length", chunk_length)
        require_positive_int("num_hashes", num_hashes)
        if num_buckets is not None:
            require_even("num_buckets", num_buckets)
        self.chunk_length = chunk_length
        self.num_hashes = num_hashes
        self.num_buckets = num_buckets

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
        batch, _, length, _ = q.shape
        dtype = torch.promote_types(v.dtype, torch.float32)
        valid = q.new_ones(batch, length, dtype=torch.bool) if key_mask is None else key_mask
        hidden = ~valid[:, None, :, None]
        with full_precision(q):
            shared = bounded(q).masked_fill(hidden, 0.0)
            value = v.to(dtype).masked_fill(hidden, 0.0)
            if length <= self.chunk_length:
                position = torch.arange(length, device=q.device)
                out, _ = self._attend(shared, shared, value, position, position, valid[:, None])
            else:
                out = self._attend_hashed(shared, value, valid)
            return out.masked_fill(hidden, 0.0).to(v.dtype)

    def bucket_factors(self, length: int) -> tuple[int, ...]:
        """Widths of the hashes whose combination numbers the buckets for `length` positions."""
        if self.num_buckets is not None:
            return (self.num_buckets,)
        power = (2 * (length // self.chunk_length)).bit_length() - 1
        if 2**power > 2 * max(math.sqrt(length / self.chunk_length), self.chunk_length):
            return 2 ** (power // 2), 2 ** (power - power // 2)
        return (2**power,)

    def hash_buckets(self, vectors: Tensor, valid: Tensor) -> Tensor:
        """Bucket of every vector in every round, by rotations drawn here; masked ones get one of their own.

        Args:
            vectors: (B, H, N, D).
            valid: (B, N) bool.

        Returns:
            (B, H, R, N) int64, R = `num_hashes`.
        """
        vectors = vectors.detach()
        bucket = valid.new_zeros((), dtype=torch.int64)
        stride = 1
        for width in self.bucket_factors(vectors.shape[2]):
            shape = (self.num_heads, self.head_dim, self.num_hashes, width // 2)
            # Always drawn in float32, so that a seed means the same hash in every precision.
            rotations = torch.randn(shape, device=vectors.device, dtype=torch.float32).to(vectors.dtype)
            rotated = torch.einsum("bhnd,hdrw->bhrnw", vectors, rotations)
            bucket = bucket + stride * torch.cat([rotated, -rotated], dim=-1).argmax(dim=-1)
            stride *= width
        return bucket.masked_fill(~valid[:, None, None], stride)

    def _attend_hashed(self, shared: Tensor, value: Tensor, valid: Tensor) -> Tensor:
        length = shared.shape[2]
        filler = -length % self.chunk_length
        shared, value = F.pad(shared, (0, 0, 0, filler)), F.pad(value, (0, 0, 0, filler))
        valid = F.pad(valid, (0, filler), value=False)

        order = self.hash_buckets(shared, valid).argsort(dim=-1, stable=True)  # (B, H, R, N)
        flat = order.flatten(2)  # (B, H, R N)
        rows = flat[..., None].expand(-1, -1, -1, self.head_dim)
        cut = (-1, self.chunk_length)
        query = shared.gather(2, rows).unflatten(2, cut)  # (B, H, C, c, D)
        position = flat.unflatten(2, cut)
        visible = valid[:, None].expand(-1, self.num_heads, -1).gather(2, flat).unflatten(2, cut)
        out, lse = self._attend(
            query,
            _with_previous(query),
            _with_previous(value.gather(2, rows).unflatten(2, cut)),
            position,
            _with_previous(position),
            _with_previous(visible),
        )

        undo = order.argsort(dim=-1)
        out = out.flatten(2, 3).unflatten(2, (self.num_hashes, -1))  # (B, H, R, N, D)
        out = out.gather(3, undo[..., None].expand(-1, -1, -1, -1, self.head_dim))
        lse = lse.flatten(2).unflatten(2, (self.num_hashes, -1)).gather(3, undo)
        return (lse.softmax(dim=2)[..., None] * out).sum(dim=2)[:, :, :length]

    def _attend(
        self,
        query: Tensor,
        key: Tensor,
        value: Tensor,
        position: Tensor,
        key_position: Tensor,
        visible: Tensor,
    ) -> tuple[Tensor, Tensor]:
        """Outputs (..., c, D) and log-sum-exps (..., c) of queries over the keys of their chunk."""
        # A root of mean square that cannot vanish: the gradient stays bounded at a zero vector.
        key = key * torch.rsqrt(key.square().sum(-1, keepdim=True) + self.head_dim * _NORM_EPS)
        logits = query @ key.transpose(-1, -2)
        # No logit is below -|query|, so this lies below all others and above the masked ones.
        alone = -(query.detach().norm(dim=-1, keepdim=True) + _SELF_PENALTY)
        logits = torch.where(position[..., :, None] == key_position[..., None, :], alone, logits)
        logits = logits.masked_fill(~visible[..., None, :], torch.finfo(logits.dtype).min)
        weights = F.dropout(logits.softmax(dim=-1), self.dropout, self.training)
        return weights @ value, logits.logsumexp(dim=-1)

    def extra_repr(self) -> str:
        return (
            f"chunk_length={self.chunk_length}, num_hashes={self.num_hashes}, "
            f"num_buckets={self.num_buckets}, dropout={self.dropout}"
        )


def _with_previous(chunks: Tensor) -> Tensor:
    """(B, H, C, c, ...) to (B, H, C, 2c, ...): each chunk after its predecessor, circularly."""
    return torch.cat([chunks.roll(1, dims=2), chunks], dim=3)
