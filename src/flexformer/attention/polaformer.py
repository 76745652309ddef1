"""PolaFormer: two polarities on one half of the values each, and a gate."""

from __future__ import annotations

import torch
from torch import Tensor, nn

from ..kernels.base import require_bool
from ..ops import State
from .kernel import KernelAttention


class PolaformerAttention(KernelAttention):
    r"""Polarity-aware linear attention (Meng et al., 2025) for sequences.

        y = [same(q, k) v_1, opposite(q, k) v_2] * (x W_g)

    with v = [v_1, v_2] halves of a head's values, `same` the normalised weights of the kernel k(q, k) and
    `opposite` those of k(-q, k). Query head h is computed twice, as q and as -q, on the same keys, so that
    one state serves both. There is no single matrix of attention weights.

    Args:
        num_heads: query heads.
        head_dim: width of one head, even.
        num_kv_heads: key heads.
        dropout: without effect.
        embed_dim: width of the module's input.
        alpha: the kernel's largest power is 1 + alpha.
        gate: multiply by x W_g, linear and without bias.
    """

    def __init__(
        self,
        num_heads: int,
        head_dim: int,
        num_kv_heads: int | None = None,
        dropout: float = 0.0,
        embed_dim: int | None = None,
        *,
        alpha: float = 4.0,
        gate: bool = True,
    ) -> None:
        require_bool("gate", gate)
        if head_dim % 2:
            raise ValueError(f"head_dim {head_dim} is odd; polaformer splits values in halves, use an even one")
        super().__init__(num_heads, head_dim, num_kv_heads, dropout, embed_dim, name="polaformer", alpha=alpha)
        self.gate = nn.Linear(self.embed_dim, num_heads * head_dim, bias=False) if gate else None
        self.reset_parameters()

    def reset_parameters(self) -> None:
        """Draw the gate anew, as the module's projections are: Xavier uniform."""
        if self.gate is not None:
            nn.init.xavier_uniform_(self.gate.weight)

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
        out = super().forward(_both_signs(q), k, v, x=x, key_mask=key_mask, is_causal=is_causal, cu_seqlens=cu_seqlens)
        return self._gated_halves(out, x)

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
        out, state = super().forward_with_state(
            _both_signs(q), k, v, x=x, key_mask=key_mask, is_causal=is_causal, state=state, update_state=update_state
        )
        return self._gated_halves(out, x), state

    def _gated_halves(self, out: Tensor, x: Tensor) -> Tensor:
        same, opposite = out.unflatten(1, (self.num_heads, 2)).unbind(2)
        half = self.head_dim // 2
        out = torch.cat((same[..., :half], opposite[..., half:]), dim=-1)
        if self.gate is None:
            return out
        return out * self.gate(x).unflatten(-1, (self.num_heads, self.head_dim)).transpose(1, 2)


def _both_signs(q: Tensor) -> Tensor:
    """(B, H, T, D) to (B, 2H, T, D): every head followed by its negative."""
    return torch.stack((q, -q), dim=2).flatten(1, 2)
