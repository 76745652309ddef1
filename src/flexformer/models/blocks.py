"""The transformer block every model is made of."""

from __future__ import annotations

from typing import Any

from torch import Tensor, nn
from transformers.activations import ACT2FN
from transformers.modeling_layers import GradientCheckpointingLayer

from ..attention import MultiheadAttention


class FeedForward(nn.Module):
    """Two linear layers around an activation, position by position.

    Args:
        width: of input and output.
        inner: width between.
        activation: a name that transformers knows.
        dropout: of the output.
        activation_dropout: after the activation; `dropout` by default.
    """

    def __init__(
        self,
        width: int,
        inner: int,
        activation: str = "gelu",
        dropout: float = 0.0,
        activation_dropout: float | None = None,
    ) -> None:
        super().__init__()
        self.expand = nn.Linear(width, inner)
        self.activation = ACT2FN[activation]
        self.activation_dropout = nn.Dropout(dropout if activation_dropout is None else activation_dropout)
        self.contract = nn.Linear(inner, width)
        self.dropout = nn.Dropout(dropout)
        self.reset_parameters()

    def reset_parameters(self) -> None:
        """Draw the weights anew: Xavier uniform, biases zero."""
        for linear in (self.expand, self.contract):
            nn.init.xavier_uniform_(linear.weight)
            nn.init.zeros_(linear.bias)

    def forward(self, x: Tensor) -> Tensor:
        """(..., width) to the same."""
        inner = self.activation_dropout(self.activation(self.expand(x)))
        out: Tensor = self.dropout(self.contract(inner))
        return out


class Block(GradientCheckpointingLayer):
    """Attention and a feed-forward layer, each normalised before and added after (pre-norm).

    Args:
        attention: the attention, bidirectional or causal.
        feed_forward: what follows it.
        dropout: of the attention's output.
        layer_norm_eps: added to variances.
    """

    def __init__(
        self,
        attention: MultiheadAttention,
        feed_forward: FeedForward,
        dropout: float = 0.0,
        layer_norm_eps: float = 1e-6,
    ) -> None:
        super().__init__()
        self.attention_norm = nn.LayerNorm(attention.embed_dim, eps=layer_norm_eps)
        self.attention = attention
        self.dropout = nn.Dropout(dropout)
        self.feed_forward_norm = nn.LayerNorm(attention.embed_dim, eps=layer_norm_eps)
        self.feed_forward = feed_forward

    def forward(
        self, x: Tensor, key_mask: Tensor | None = None, state: Any = None, return_state: bool = False
    ) -> Tensor | tuple[Tensor, Any]:
        """One block.

        Args:
            x: (B, T, E).
            key_mask: (B, T) bool, True = attend.
            state: of this block's attention, from an earlier call.
            return_state: also return the attention's state after these positions.

        Returns:
            (B, T, E), with `return_state` also the state.
        """
        normed = self.attention_norm(x)
        if return_state:
            mixed, state = self.attention(normed, key_mask, state=state, return_state=True)
        else:
            mixed = self.attention(normed, key_mask, state=state)
        x = x + self.dropout(mixed)
        x = x + self.feed_forward(self.feed_forward_norm(x))
        return (x, state) if return_state else x
