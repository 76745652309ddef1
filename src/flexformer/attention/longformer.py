"""Longformer: softmax attention within a sliding window, and to and from a few global tokens."""

from __future__ import annotations

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from ..kernels.base import bounded, require_count, require_even
from ..kernels.weights import full_precision
from .mechanism import Mechanism


class LongformerAttention(Mechanism):
    r"""Sliding-window attention with the first G = `num_global` tokens global.

    For a token i that is not global, one softmax over the global keys and the window keys not global,

        S_i = {j < G} + {j >= G : |i - j| <= w / 2}
        o_i = sum_{j in S_i} softmax_j(q_i . k_j / sqrt(D)) v_j

    and for a global token i, over all keys, with projections of its own

        o_i = sum_j softmax_j(W_qg x_i . W_kg x_j / sqrt(D)) W_vg x_j

    Queries are cut into chunks of w / 2, which see the 3 w / 2 keys around them. Cost: O(N (w + G)).

    Masked positions neither give nor take: they are hidden as keys, and their outputs are zero.

    Beltagy, Peters, Cohan, "Longformer: The Long-Document Transformer", arXiv:2004.05150.

    Args:
        window: w, positions seen on both sides together; half of them on each side, and the token itself.
        num_global: G, how many leading tokens see, and are seen by, all.
    """

    self_attention_only = True

    def __init__(
        self,
        num_heads: int,
        head_dim: int,
        num_kv_heads: int | None = None,
        dropout: float = 0.0,
        embed_dim: int | None = None,
        *,
        window: int = 512,
        num_global: int = 0,
    ) -> None:
        super().__init__(num_heads, head_dim, num_kv_heads, dropout, embed_dim)
        require_even("window", window)
        require_count("num_global", num_global)
        self.window = window
        self.num_global = num_global
        if num_global > 0:
            self.q_global = nn.Linear(self.embed_dim, num_heads * head_dim)
            self.k_global = nn.Linear(self.embed_dim, num_heads * head_dim)
            self.v_global = nn.Linear(self.embed_dim, num_heads * head_dim)

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
        if not length:
            return v
        dtype = torch.promote_types(v.dtype, torch.float32)
        valid = q.new_ones(batch, length, dtype=torch.bool) if key_mask is None else key_mask
        hidden = ~valid[:, None, :, None]
        num_global = min(self.num_global, length)
        if num_global:  # projected as the module's own projections are, under the caller's autocast
            x = x.masked_fill(~valid[..., None], 0.0)
            projected = self.q_global(x[:, :num_global]), self.k_global(x), self.v_global(x)
        with full_precision(q):
            query, key, value = (t.to(dtype).masked_fill(hidden, 0.0) for t in (q, k, v))
            out = self._attend_windows(query, key, value, valid, num_global)
            if num_global:
                query, key, value = (self._split_heads(t).to(dtype) for t in projected)
                leading = self._attend(query, key.transpose(-1, -2), value, valid[:, None, None])
                out = torch.cat([leading, out[:, :, num_global:]], dim=2)
            return out.masked_fill(hidden, 0.0).to(v.dtype)

    def _attend_windows(self, query: Tensor, key: Tensor, value: Tensor, valid: Tensor, num_global: int) -> Tensor:
        """Outputs (B, H, N, D) of every query over the global keys and those of its window."""
        length, half = query.shape[2], self.window // 2
        if half >= length - 1:  # every window has all keys in it
            return self._attend(query, key.transpose(-1, -2), value, valid[:, None, None])
        filler = -length % half
        query = F.pad(query, (0, 0, 0, filler)).unflatten(2, (-1, half))  # (B, H, C, w/2, D)
        chunks = query.shape[2]

        def around(t: Tensor) -> Tensor:
            """(B, H, N, D) to (B, H, C, D, G + 3w/2): what each chunk sees, the global ones first."""
            leading = t[:, :, None, :num_global].transpose(-1, -2).expand(-1, -1, chunks, -1, -1)
            windows = F.pad(t, (0, 0, half, half + filler)).unfold(2, 3 * half, half)
            return torch.cat([leading, windows], dim=-1)

        # Global keys are hidden from the windows so as not to be counted twice.
        local = F.pad(valid[:, num_global:], (num_global + half, half + filler), value=False)
        local = local.unfold(1, 3 * half, half)[:, :, None]  # (B, C, 1, 3w/2)
        slot = torch.arange(3 * half, device=query.device)
        ahead = slot - slot[:half, None]  # w/2 more than key position - query position
        band = (ahead >= 0) & (ahead <= 2 * half)  # (w/2, 3w/2)
        leading = valid[:, None, None, :num_global].expand(-1, chunks, half, -1)
        visible = torch.cat([leading, local & band], dim=-1)[:, None]  # (B, 1, C, w/2, G + 3w/2)

        out = self._attend(query, around(key), around(value).transpose(-1, -2), visible)
        return out.flatten(2, 3)[:, :, :length]

    def _attend(self, query: Tensor, key_t: Tensor, value: Tensor, visible: Tensor) -> Tensor:
        logits = (bounded(query) * self.head_dim**-0.5) @ bounded(key_t)
        logits = logits.masked_fill(~visible, torch.finfo(logits.dtype).min)
        return F.dropout(logits.softmax(dim=-1), self.dropout, self.training) @ value

    def _split_heads(self, t: Tensor) -> Tensor:
        return t.unflatten(-1, (self.num_heads, self.head_dim)).transpose(1, 2)

    def extra_repr(self) -> str:
        return f"window={self.window}, num_global={self.num_global}, dropout={self.dropout}"
