"""Adaptive input and softmax: wide vectors for frequent words, narrow ones for rare words, shared by both ends."""

from __future__ import annotations

from collections.abc import Sequence
from itertools import pairwise

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from ..kernels.weights import at_least_float32
from .vocabulary import Vocabulary, start_embedding, unknown


class Band(nn.Module):
    """The words of one band: ids start .. start + size - 1, vectors of `inner`, and a projection to the model's width.

    Args:
        start: the first id.
        size: number of words.
        inner: width of their vectors.
        width: of the model E.
        padding: an id of this band whose vector starts at zero.
    """

    def __init__(self, start: int, size: int, inner: int, width: int, padding: int | None = None) -> None:
        super().__init__()
        self.start, self.size, self.padding = start, size, padding
        self.words = nn.Parameter(torch.empty(size, inner))
        self.projection = nn.Linear(inner, width, bias=False)
        self.reset_parameters()

    def reset_parameters(self) -> None:
        """Words as N(0, 1 / inner), the projection Xavier uniform."""
        start_embedding(self.words, None if self.padding is None else self.padding - self.start)
        nn.init.xavier_uniform_(self.projection.weight)

    def rows_of(self, ids: Tensor) -> Tensor:
        """Where in `ids` (N,) words of this band stand."""
        return ((ids >= self.start) & (ids < self.start + self.size)).nonzero()[:, 0]

    def embed(self, ids: Tensor) -> Tensor:
        """(N,) ids of this band to (N, E)."""
        out: Tensor = self.projection(F.embedding(ids - self.start, self.words))
        return out

    def logits(self, x: Tensor, dropout: nn.Module) -> Tensor:
        """(..., E) to (..., size): the way in, backwards."""
        narrow = dropout(F.linear(x, self.projection.weight.t()))
        return at_least_float32(F.linear(narrow, self.words))

    def extra_repr(self) -> str:
        return f"words {self.start} to {self.start + self.size - 1}"


class AdaptiveVocabulary(Vocabulary):
    r"""Words sorted by frequency and cut into bands (Grave et al., 2017; Baevski & Auli, 2019).

    Band b has vectors of width E / factor^b, each band a projection P_b to E. Going in, word w of band b is
    sqrt(E) P_b e_w. Coming out, the words of band 0 compete with one entry for each other band, c_1, c_2, ...:

        p(w | x) = softmax([e_0 x; c x])_w                                          w in band 0
        p(w | x) = softmax([e_0 x; c x])_{c_b}  softmax(e_b P_b^T x)_w              w in band b > 0

    where e_0 x leaves P_0 out. Weights and projections are the same in both directions, nothing has a bias. Of the
    bands after the first only those are computed whose words occur, and only for the rows where they do.

    Args:
        vocab_size: distinct words V; ids in order of falling frequency.
        width: of the model E, divisible by factor^(number of cutoffs).
        cutoffs: where bands after the first begin, ascending.
        factor: by which each band is narrower than the one before.
        dropout: of the vectors that are scored, and once more inside the bands after the first.
        padding: this word's vector starts at zero.
    """

    def __init__(
        self,
        vocab_size: int,
        width: int,
        cutoffs: Sequence[int],
        factor: int = 4,
        dropout: float = 0.0,
        padding: int | None = None,
    ) -> None:
        super().__init__()
        borders = [0, *cutoffs, vocab_size]
        if len(borders) < 3 or any(a >= b for a, b in pairwise(borders)):
            raise ValueError(
                f"cutoffs {list(cutoffs)} do not cut {vocab_size} words into bands; use ascending numbers between "
                f"1 and {vocab_size - 1}"
            )
        narrowest = factor ** len(cutoffs)
        if width % narrowest:
            raise ValueError(
                f"width {width} is not divisible by {narrowest} (factor {factor} to the power of {len(cutoffs)} "
                "cutoffs); use a multiple of it"
            )
        self.vocab_size, self.width, self.cutoffs = vocab_size, width, tuple(cutoffs)
        self.bands = nn.ModuleList(
            Band(a, b - a, width // factor**number, width, padding if padding in range(a, b) else None)
            for number, (a, b) in enumerate(pairwise(borders))
        )
        self.clusters = nn.Parameter(torch.empty(len(cutoffs), width))
        self.dropout = nn.Dropout(dropout)
        self.reset_parameters()

    def reset_parameters(self) -> None:
        for band in self._bands():
            band.reset_parameters()
        start_embedding(self.clusters)

    def embed(self, ids: Tensor) -> Tensor:
        self._check(ids)
        flat = ids.flatten()
        found = [(band, band.rows_of(flat)) for band in self._bands()]
        pieces = [band.embed(flat[rows]) for band, rows in found if len(rows)]
        if not pieces:
            return self.clusters.new_zeros(*ids.shape, self.width)
        back = torch.cat([rows for _, rows in found]).argsort()
        return torch.cat(pieces)[back].unflatten(0, ids.shape) * self.width**0.5

    def surprise(self, x: Tensor, targets: Tensor) -> Tensor:
        self._check(targets)
        x = self.dropout(x)
        cluster = torch.bucketize(targets, torch.tensor(self.cutoffs, device=targets.device), right=True)
        first = torch.where(cluster == 0, targets, self.cutoffs[0] + cluster - 1)
        out = F.cross_entropy(self._head(x), first, reduction="none")
        for band in self._bands()[1:]:
            rows = band.rows_of(targets)
            if len(rows):
                logits, words = band.logits(x[rows], self.dropout), targets[rows] - band.start
                out = out.index_add(0, rows, F.cross_entropy(logits, words, reduction="none"))
        return out

    def scores(self, x: Tensor) -> Tensor:
        x = self.dropout(x)
        head = self._head(x).log_softmax(-1)
        words, clusters = head.split([self.cutoffs[0], len(self.cutoffs)], dim=-1)
        tails = (
            band.logits(x, self.dropout).log_softmax(-1) + clusters[..., i : i + 1]
            for i, band in enumerate(self._bands()[1:])
        )
        return torch.cat((words, *tails), dim=-1)

    def _check(self, ids: Tensor) -> None:
        """A word of no band would be left out without a sound."""
        if ids.numel() and not ids.is_meta and (int(ids.min()) < 0 or int(ids.max()) >= self.vocab_size):
            raise unknown(ids, self.vocab_size)

    def _bands(self) -> list[Band]:
        return [band for band in self.bands if isinstance(band, Band)]

    def _head(self, x: Tensor) -> Tensor:
        """(..., E) to (..., words of the first band + clusters)."""
        # One product: joining the weights copies less than joining the logits would.
        return at_least_float32(F.linear(x, torch.cat((self._bands()[0].words, self.clusters))))

    def extra_repr(self) -> str:
        return f"{self.vocab_size} words, {self.width} wide"
