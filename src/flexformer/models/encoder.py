"""The encoder: embeddings, blocks and a pooled vector per sequence."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from itertools import pairwise
from typing import Any, ClassVar, cast

import torch
from torch import Tensor, nn
from transformers import PreTrainedModel
from transformers.initialization import guard_torch_init_functions
from transformers.utils.generic import ModelOutput

from ..attention import MultiheadAttention
from .blocks import Block, FeedForward
from .configuration import EncoderConfig
from .embeddings import Embeddings

LOADED = "_is_hf_initialized"  # the mark that Hugging Face puts on tensors and modules that need no start


@dataclass
class EncoderOutput(ModelOutput):
    """What an encoder makes of a batch."""

    last_hidden_state: Tensor | None = None
    """(B, T', E) after the final norm; a class token comes first, and `drop_masked` leaves visible positions only"""
    pooled: Tensor | None = None
    """(B, E)"""


class Head(nn.Module):
    """Linear layers with ReLU between them.

    Args:
        widths: of the input, every hidden layer and the output.
    """

    def __init__(self, *widths: int) -> None:
        super().__init__()
        self.layers = nn.ModuleList(nn.Linear(a, b) for a, b in pairwise(widths))
        self.reset_parameters()

    def reset_parameters(self) -> None:
        """Draw the weights anew: Xavier uniform, biases zero."""
        for linear in self._linears():
            nn.init.xavier_uniform_(linear.weight)
            nn.init.zeros_(linear.bias)

    def _linears(self) -> Iterator[nn.Linear]:
        return (layer for layer in self.layers if isinstance(layer, nn.Linear))

    def forward(self, x: Tensor) -> Tensor:
        """(..., first width) to (..., last width)."""
        *hidden, last = self._linears()
        for linear in hidden:
            x = linear(x).relu()
        out: Tensor = last(x)
        return out


class FlexformerPreTrainedModel(PreTrainedModel):
    """What all models share: how weights start, and what Hugging Face's tools may do with them."""

    self_starting: ClassVar[tuple[type[nn.Module], ...]] = (
        MultiheadAttention,
        Embeddings,
        FeedForward,
        Head,
        nn.LayerNorm,
    )
    """modules that draw the weights of all their parts"""
    config_class = EncoderConfig
    base_model_prefix = "encoder"
    main_input_name = "input_ids"
    supports_gradient_checkpointing = True
    _no_split_modules = ["Block"]  # noqa: RUF012  (as the base class has it)

    @torch.no_grad()
    @guard_torch_init_functions()
    def initialize_weights(self) -> None:
        """Let modules draw their own start, save what was loaded from a file.

        Hugging Face would ask leaves one by one, and a linear layer cannot know what it is part of.
        """
        for module in self.modules():
            if not isinstance(module, self.self_starting):
                continue
            tensors = (*module.parameters(), *module.buffers())
            loaded = [t for t in tensors if getattr(t, LOADED, False)]
            if not getattr(module, LOADED, False) and len(loaded) < len(tensors):
                values = [t.clone() for t in loaded]
                cast(Any, module).reset_parameters()
                for tensor, value in zip(loaded, values, strict=True):
                    tensor.copy_(value)
            setattr(module, LOADED, True)

    @torch.no_grad()
    def _init_weights(self, module: nn.Module) -> None:
        # Called when embeddings are resized.
        if isinstance(module, nn.Embedding):
            nn.init.normal_(module.weight)


class Encoder(FlexformerPreTrainedModel):
    """Bidirectional encoder with any attention, pre-norm, with a final norm."""

    def __init__(self, config: EncoderConfig) -> None:
        super().__init__(config)
        self.embeddings = Embeddings(config)
        self.blocks = nn.ModuleList(_block(config) for _ in range(config.num_hidden_layers))
        self.norm = nn.LayerNorm(config.hidden_size, eps=config.layer_norm_eps)
        self.post_init()

    def get_input_embeddings(self) -> nn.Module:
        return self.embeddings.tokens

    def set_input_embeddings(self, value: nn.Module) -> None:
        if not isinstance(value, nn.Embedding):
            raise TypeError(f"value is a {type(value).__name__}; pass a torch.nn.Embedding")
        self.embeddings.tokens = value

    def forward(
        self, input_ids: Tensor, key_mask: Tensor | None = None, attention_mask: Tensor | None = None
    ) -> EncoderOutput:
        """Encode a batch.

        Args:
            input_ids: (B, T) token ids.
            key_mask: (B, T) bool, True = a token, False = padding, which then has no influence on anything.
            attention_mask: the same as Hugging Face's tokenizers give it, 1 and 0.
        """
        mask = resolve_mask(key_mask, attention_mask, input_ids)
        if not input_ids.shape[1] and self.config.pooling != "mean":
            raise ValueError(
                f"input_ids has shape {tuple(input_ids.shape)}; {self.config.pooling!r} needs a token to pool"
            )
        x, mask = self.embeddings(input_ids, mask)
        if self.config.drop_masked and mask is not None:
            x, mask = without_masked(x, mask)
        for block in self.blocks:
            x = block(x, key_mask=mask)
        x = self.norm(x)
        return EncoderOutput(last_hidden_state=x, pooled=pool(x, mask, self.config.pooling))


def resolve_mask(key_mask: Tensor | None, attention_mask: Tensor | None, input_ids: Tensor) -> Tensor | None:
    """One (B, T) bool mask from the two ways of giving it; None where nothing is masked."""
    if key_mask is not None and attention_mask is not None:
        raise ValueError("key_mask and attention_mask both given; they mean the same, pass one")
    mask = key_mask if attention_mask is None else attention_mask
    if mask is None:
        return None
    if mask.shape != input_ids.shape:
        raise ValueError(f"mask has shape {tuple(mask.shape)}; pass one of input_ids, {tuple(input_ids.shape)}")
    return mask.bool()


def without_masked(x: Tensor, key_mask: Tensor) -> tuple[Tensor, Tensor]:
    """(B, T, E) and (B, T) to (B, L, E) and (B, L): visible positions in their order, then padding up to the most."""
    longest = max(1, int(key_mask.sum(1).max()))
    kept = key_mask.int().argsort(dim=1, descending=True, stable=True)[:, :longest]
    return x.gather(1, kept[..., None].expand(-1, -1, x.shape[2])), key_mask.gather(1, kept)


def pool(x: Tensor, key_mask: Tensor | None, how: str) -> Tensor:
    """(B, T, E) to (B, E), from visible positions only."""
    if how == "cls":
        return x[:, 0]
    if how == "mean" and not x.shape[1]:
        return x.new_zeros(len(x), x.shape[2])
    if key_mask is None:
        return x.mean(1) if how == "mean" else x[:, 0]
    if how == "first":
        return x[torch.arange(len(x), device=x.device), key_mask.int().argmax(1)]
    visible = key_mask[..., None]
    return x.masked_fill(~visible, 0.0).sum(1) / visible.sum(1).clamp(min=1)


def _block(config: EncoderConfig) -> Block:
    attention = MultiheadAttention(
        config.hidden_size,
        config.num_attention_heads,
        config.attention,
        head_dim=config.head_dim,
        bias=False,
        dropout=config.attention_dropout,
        **config.mechanism_options(),
    )
    feed_forward = FeedForward(config.hidden_size, config.intermediate_size, config.hidden_act, config.hidden_dropout)
    return Block(attention, feed_forward, config.hidden_dropout, config.layer_norm_eps)
