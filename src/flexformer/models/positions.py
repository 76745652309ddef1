"""Positions of a language model: sinusoids that go on for ever, or learned vectors."""

from __future__ import annotations

import math

import torch
from torch import Tensor, nn

LEARNED_POSITION_STD = 0.02
FIRST = 2  # where the original code starts to count: its padding token has number 1


def sinusoid_at(positions: Tensor, width: int) -> Tensor:
    """(...) positions to (..., width) float32: sines in the first half, cosines in the second.

    The rates fall from 1 to 1/10000, both included; an odd width ends with a zero.
    """
    half = width // 2
    rates = torch.exp(torch.arange(half, device=positions.device) * (-math.log(10000.0) / max(half - 1, 1)))
    angles = (positions + FIRST)[..., None] * rates
    parts = [angles.sin(), angles.cos()]
    if width % 2:
        parts.append(torch.zeros_like(angles[..., :1]))
    return torch.cat(parts, dim=-1)


class LearnedPositions(nn.Module):
    """A vector for each of `length` positions.

    Args:
        length: the longest text.
        width: of the model E.
    """

    def __init__(self, length: int, width: int) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.empty(length, width))
        self.reset_parameters()

    def reset_parameters(self) -> None:
        """Draw them anew, small."""
        nn.init.normal_(self.weight, std=LEARNED_POSITION_STD)

    def forward(self, positions: Tensor) -> Tensor:
        """(...) positions to (..., E)."""
        if positions.numel() and int(positions.max()) >= len(self.weight):
            raise ValueError(
                f"position {int(positions.max())} is beyond the {len(self.weight)} that were learned "
                "(max_position_embeddings); use a shorter text, or a model with positions='sinusoid'"
            )
        return self.weight[positions]
