"""Tokens and positions to vectors."""

from __future__ import annotations

import math

import torch
from torch import Tensor, nn

from .configuration import EncoderConfig
from .vocabulary import unknown

LEARNED_POSITION_STD = 0.02


def sinusoid(length: int, width: int, device: torch.device | None = None) -> Tensor:
    """(length, width) float32: sines in even and cosines in odd columns, wavelengths from 2 pi towards 10000 * 2 pi."""
    rates = torch.exp(torch.arange(0, width, 2, device=device) * (-math.log(10000.0) / width))
    angles = torch.arange(length, device=device)[:, None] * rates
    return torch.stack((angles.sin(), angles.cos()), dim=-1).flatten(1)[:, :width]


def grid(side: int, width: int, device: torch.device | None = None) -> Tensor:
    """(side * side, width) float32, places in a square row by row: the row in the first half, the column in the second.

    Each is sines, then cosines, of wavelengths from 4 places towards 400: a picture has no use for longer ones.
    """
    quarter = width // 4
    rates = torch.exp(torch.arange(quarter, device=device) * (-math.log(100.0) / quarter)) * (math.pi / 2)
    angles = torch.arange(side, device=device)[:, None] * rates
    places = torch.cat((angles.sin(), angles.cos()), dim=-1)
    rows, columns = places[:, None].expand(side, side, -1), places[None].expand(side, side, -1)
    return torch.cat((rows, columns), dim=-1).flatten(0, 1)


class Embeddings(nn.Module):
    """Token embeddings, a class token in front where pooling asks for one, and positions.

    Embeddings start as N(0, 1), which the spectral kernels train well with, and are not scaled.
    """

    def __init__(self, config: EncoderConfig) -> None:
        super().__init__()
        self.max_length = config.max_position_embeddings
        self.tokens = nn.Embedding(config.vocab_size, config.hidden_size)
        self.side = _side(config) if config.positions == "grid" else None
        self.class_token: nn.Parameter | None = None
        self.positions: nn.Parameter | None = None
        if config.pooling == "cls":
            self.class_token = nn.Parameter(torch.empty(config.hidden_size))
        if config.positions == "learned":
            length = self.max_length + (self.class_token is not None)
            self.positions = nn.Parameter(torch.empty(length, config.hidden_size))
        self.dropout = nn.Dropout(config.hidden_dropout)
        self.reset_parameters()

    def reset_parameters(self) -> None:
        """Draw the embeddings anew; the class token starts at zero."""
        nn.init.normal_(self.tokens.weight)
        if self.class_token is not None:
            nn.init.zeros_(self.class_token)
        if self.positions is not None:
            nn.init.normal_(self.positions, std=LEARNED_POSITION_STD)

    def forward(self, input_ids: Tensor, key_mask: Tensor | None) -> tuple[Tensor, Tensor | None]:
        """(B, T) ids and (B, T) mask to (B, T', E) vectors and (B, T') mask; T' = T + 1 with a class token."""
        batch, length = input_ids.shape
        if length > self.max_length:
            raise ValueError(
                f"input_ids has {length} tokens; this model reads {self.max_length} (max_position_embeddings)"
            )
        try:
            x = self.tokens(input_ids)
        except IndexError:
            raise unknown(input_ids, self.tokens.num_embeddings) from None
        if self.side is not None:  # a class token has no place in the picture
            x = x + grid(self.side, x.shape[2], x.device)[:length].to(x.dtype)
        if self.class_token is not None:
            x = torch.cat((self.class_token.to(x.dtype).expand(batch, 1, -1), x), dim=1)
            if key_mask is not None:
                key_mask = torch.cat((key_mask.new_ones(batch, 1), key_mask), dim=1)
        if self.positions is not None:
            x = x + self.positions[: x.shape[1]]
        elif self.side is None:
            x = x + sinusoid(x.shape[1], x.shape[2], x.device).to(x.dtype)
        return self.dropout(x), key_mask


def _side(config: EncoderConfig) -> int:
    """Of the square picture that a model with positions on a grid reads."""
    side = math.isqrt(config.max_position_embeddings)
    if side * side != config.max_position_embeddings:
        raise ValueError(
            f"max_position_embeddings {config.max_position_embeddings} is not the number of pixels of a square "
            "picture, which positions='grid' needs; use 'sinusoid' or 'learned'"
        )
    if config.hidden_size % 4:
        raise ValueError(
            f"hidden_size {config.hidden_size} is not divisible by 4, which positions='grid' needs; use a multiple of 4"
        )
    return side
