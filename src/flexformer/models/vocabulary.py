"""From token ids to vectors and from vectors to a distribution over tokens, with the same weights."""

from __future__ import annotations

import abc

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from ..kernels.weights import at_least_float32


class Vocabulary(nn.Module, abc.ABC):
    """Both ends of a language model.

    Embeddings come out with unit variance at the start: they are scaled by sqrt(E), which the way back is not.
    """

    vocab_size: int
    width: int

    def forward(self, ids: Tensor) -> Tensor:
        """(...) ids to (..., E)."""
        return self.embed(ids)

    @abc.abstractmethod
    def embed(self, ids: Tensor) -> Tensor:
        """(...) ids to (..., E)."""

    @abc.abstractmethod
    def scores(self, x: Tensor) -> Tensor:
        """(..., E) to (..., V) in at least float32: logits, or log-probabilities, which serve as such."""

    @abc.abstractmethod
    def surprise(self, x: Tensor, targets: Tensor) -> Tensor:
        """-log p(target): (N, E) and (N,) to (N,) in at least float32, without forming what no target needs."""

    @abc.abstractmethod
    def reset_parameters(self) -> None:
        """Draw the weights anew."""


class TiedVocabulary(Vocabulary):
    """One vector for each token; its product with the model's output is the token's logit.

    Args:
        vocab_size: distinct tokens V.
        width: of the model E.
        dropout: of the vectors that are scored.
        padding: this token's vector starts at zero.
    """

    def __init__(self, vocab_size: int, width: int, dropout: float = 0.0, padding: int | None = None) -> None:
        super().__init__()
        self.vocab_size, self.width, self.padding = vocab_size, width, padding
        self.weight = nn.Parameter(torch.empty(vocab_size, width))
        self.dropout = nn.Dropout(dropout)
        self.reset_parameters()

    def reset_parameters(self) -> None:
        start_embedding(self.weight, self.padding)

    def embed(self, ids: Tensor) -> Tensor:
        try:
            return F.embedding(ids, self.weight) * self.width**0.5
        except IndexError:
            raise unknown(ids, self.vocab_size) from None

    def scores(self, x: Tensor) -> Tensor:
        return at_least_float32(F.linear(self.dropout(x), self.weight))

    def surprise(self, x: Tensor, targets: Tensor) -> Tensor:
        return F.cross_entropy(self.scores(x), targets, reduction="none")

    def extra_repr(self) -> str:
        return f"{self.vocab_size} tokens, {self.width} wide"


def unknown(ids: Tensor, vocab_size: int) -> IndexError:
    """What to raise for `ids` that are not all below `vocab_size`; torch's own error, on CPUs, does not say which."""
    return IndexError(f"ids {int(ids.min())} to {int(ids.max())} are not all in 0..{vocab_size - 1}")


@torch.no_grad()
def start_embedding(weight: Tensor, padding: int | None = None) -> None:
    """N(0, 1 / width), and zero for padding."""
    nn.init.normal_(weight, std=weight.shape[1] ** -0.5)
    if padding is not None:
        weight[padding] = 0.0
