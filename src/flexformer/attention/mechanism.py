"""The contract between `MultiheadAttention` and the ways of mixing values it can hold."""

from __future__ import annotations

from typing import Any, ClassVar

from torch import Tensor, nn


class Mechanism(nn.Module):
    """Turns projected queries, keys and values into outputs.

    `MultiheadAttention` owns the projections, checks shapes and calls the mechanism with heads first,
    (B, H, T, D). A mechanism states what it can do in class attributes, so that the module can
    refuse what has no meaning when it is built rather than when it runs.

    Args:
        num_heads: query heads.
        head_dim: width of one head.
        num_kv_heads: key and value heads; `num_heads` unless `groups_heads`.
        dropout: probability of dropping an attention weight, for mechanisms that form weights.
        embed_dim: width E of the module's input; `num_heads * head_dim` by default.
    """

    has_causal_form: ClassVar[bool] = False
    self_attention_only: ClassVar[bool] = False  # the pattern needs queries and keys of the same positions
    shares_query_key: ClassVar[bool] = False  # one projection serves as query and key
    groups_heads: ClassVar[bool] = False  # takes fewer key heads than query heads as they are
    has_kernel_forms: ClassVar[bool] = False  # also takes what `linear_attention` does by keyword

    def __init__(
        self,
        num_heads: int,
        head_dim: int,
        num_kv_heads: int | None = None,
        dropout: float = 0.0,
        embed_dim: int | None = None,
    ) -> None:
        super().__init__()
        self.num_heads = num_heads
        self.head_dim = head_dim
        self.num_kv_heads = num_heads if num_kv_heads is None else num_kv_heads
        self.dropout = dropout
        self.embed_dim = num_heads * head_dim if embed_dim is None else embed_dim

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
        """Mix `v` for every query.

        Args:
            q: (B, H, T, D).
            k: (B, Hkv, S, D); the same tensor as `q` where `shares_query_key`.
            v: (B, Hkv, S, D).
            x: (B, T, E) the module's input, for mechanisms with projections of their own.
            key_mask: (B, S) bool, True = attend.
            is_causal: only ever True where `has_causal_form`.

        Returns:
            (B, H, T, D). A row with no visible key is zero.
        """
        raise NotImplementedError

    def forward_with_state(
        self,
        q: Tensor,
        k: Tensor,
        v: Tensor,
        *,
        x: Tensor,
        key_mask: Tensor | None = None,
        is_causal: bool = False,
        state: Any = None,
    ) -> tuple[Tensor, Any]:
        """As `forward`, from and to a decoding state. Only where `has_causal_form`."""
        raise NotImplementedError
