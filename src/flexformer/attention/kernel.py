"""Kernel attention as a mechanism: any registered kernel, in linear time."""

from __future__ import annotations

from typing import Any

from torch import Tensor

from .. import kernels
from ..ops import State, linear_attention
from .mechanism import Mechanism


class KernelAttention(Mechanism):
    """Linear attention with the kernel called `name`. Attention dropout has no meaning here and is not applied.

    Args:
        num_heads: query heads.
        head_dim: width of one head.
        num_kv_heads: key heads; each has its own kernel parameters.
        dropout: accepted for a common interface, without effect.
        name: a name from `flexformer.kernels.names()`.
        **options: the kernel's options.
    """

    has_causal_form = True
    groups_heads = True
    has_kernel_forms = True

    def __init__(
        self,
        num_heads: int,
        head_dim: int,
        num_kv_heads: int | None = None,
        dropout: float = 0.0,
        embed_dim: int | None = None,
        *,
        name: str,
        **options: Any,
    ) -> None:
        super().__init__(num_heads, head_dim, num_kv_heads, dropout, embed_dim)
        self.kernel = kernels.build(name, self.num_kv_heads, head_dim, **options)

    def forward(
        self,
        q: Tensor,
        k: Tensor,
        v: Tensor,
        *,
        x: Tensor,
        key_mask: Tensor | None = None,
        is_causal: bool = False,
        cu_seqlens: Tensor | None = None,
        query_start: int | Tensor = 0,
    ) -> Tensor:
        if self.training:
            self.kernel.redraw_for_training()
        return linear_attention(
            q, k, v, self.kernel, is_causal, key_mask, cu_seqlens=cu_seqlens, query_start=query_start
        )

    def forward_with_state(
        self,
        q: Tensor,
        k: Tensor,
        v: Tensor,
        *,
        x: Tensor,
        key_mask: Tensor | None = None,
        is_causal: bool = False,
        state: State | None = None,
        query_start: int | Tensor = 0,
        update_state: bool = False,
    ) -> tuple[Tensor, State]:
        # A state means nothing to other random features than those it was made with.
        if self.training and state is None:
            self.kernel.redraw_for_training()
        return linear_attention(
            q,
            k,
            v,
            self.kernel,
            is_causal,
            key_mask,
            state,
            return_state=True,
            query_start=query_start,
            update_state=update_state,
        )
