"""BigBird: softmax attention over a few blocks of keys: global, neighbouring and random ones."""

from __future__ import annotations

from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor

from ..kernels.base import bounded, require_count, require_positive_int
from ..kernels.weights import full_precision
from .mechanism import Mechanism


class BigBirdAttention(Mechanism):
    r"""Block-sparse attention, with existing tokens as the global ones (ITC).

    Positions are cut into n blocks of b = `block_size`. A query in block I sees the keys of

        S_I = {0, n-1} + {I-1, I, I+1} + {r random blocks}    for 0 < I < n-1,    all blocks otherwise
        o_i = sum_{j in S_I} softmax_j(q_i . k_j / sqrt(D)) v_j

    each key once. The random blocks differ between heads and are drawn once, without replacement, among the
    blocks that are neither global nor neighbours of I (blocks 1 and n-2 count as neighbours). They depend
    only on n and on the buffer `seed`, which is saved with the parameters. Where n <= 5 + 2 r, attention is
    full. Cost: O(N b (5 + r)).

    Masked positions neither give nor take: they are hidden as keys, and their outputs are zero.

    Zaheer et al., "Big Bird: Transformers for Longer Sequences", NeurIPS 2020.

    Args:
        block_size: b, positions in a block.
        num_random_blocks: r, random blocks seen from each block.
    """

    self_attention_only = True
    seed: Tensor

    def __init__(
        self,
        num_heads: int,
        head_dim: int,
        num_kv_heads: int | None = None,
        dropout: float = 0.0,
        embed_dim: int | None = None,
        *,
        block_size: int = 64,
        num_random_blocks: int = 3,
    ) -> None:
        super().__init__(num_heads, head_dim, num_kv_heads, dropout, embed_dim)
        require_positive_int("block_size", block_size)
        require_count("num_random_blocks", num_random_blocks)
        self.block_size = block_size
        self.num_random_blocks = num_random_blocks
        self.register_buffer("seed", torch.empty((), dtype=torch.int64))
        self._tables: dict[tuple[int, torch.device], Tensor] = {}
        self.register_load_state_dict_post_hook(_forget_tables)
        self.reset_parameters()

    @torch.no_grad()
    def reset_parameters(self) -> None:
        """Draw other random blocks."""
        self.seed.random_(2**62)
        self._tables.clear()

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
        dtype = torch.promote_types(v.dtype, torch.float32)
        valid = q.new_ones(batch, length, dtype=torch.bool) if key_mask is None else key_mask
        hidden = ~valid[:, None, :, None]
        num_blocks = -(-length // self.block_size)
        with full_precision(q):
            query, key, value = (t.to(dtype).masked_fill(hidden, 0.0) for t in (q, k, v))
            if num_blocks <= 5 + 2 * self.num_random_blocks:
                out = self._attend(query, key, value, valid[:, None, None])
            else:
                filler = num_blocks * self.block_size - length
                query, key, value = (F.pad(t, (0, 0, 0, filler)) for t in (query, key, value))
                out = self._attend_blocks(query, key, value, F.pad(valid, (0, filler), value=False))
            return out[:, :, :length].masked_fill(hidden, 0.0).to(v.dtype)

    def block_table(self, num_blocks: int, device: torch.device) -> Tensor:
        """The key blocks seen from blocks 1 to n-2: (H, n-2, 5 + r) int64, in the order of S_I.

        A global block that is a neighbour too appears twice in a row of the table.
        """
        if (num_blocks, device) not in self._tables:
            self._tables[num_blocks, device] = self._draw_table(num_blocks).to(device)
        return self._tables[num_blocks, device]

    def _draw_table(self, num_blocks: int) -> Tensor:
        middle = num_blocks - 2
        if self.seed.is_meta:
            return self.seed.new_empty(self.num_heads, middle, 5 + self.num_random_blocks)
        generator = torch.Generator("cpu").manual_seed(int(self.seed))
        shape = (self.num_heads, middle, 1)
        # On the ring of middle blocks, block I may draw all but the three at distance -1, 0 and 1: the
        # offsets 2 to middle - 2. Floyd's method draws r of them without replacement.
        choices = middle - 3
        offsets = torch.empty(self.num_heads, middle, 0, dtype=torch.int64, device="cpu")
        for last in range(choices - self.num_random_blocks, choices):
            drawn = torch.randint(last + 1, shape, generator=generator, device="cpu")
            taken = (offsets == drawn).any(dim=-1, keepdim=True)
            offsets = torch.cat([offsets, drawn.masked_fill(taken, last)], dim=-1)
        ring = torch.arange(middle, device="cpu")[:, None]
        random = 1 + (ring + 2 + offsets) % middle
        neighbours = ring + torch.arange(3, device="cpu")
        ends = torch.tensor([0, num_blocks - 1], device="cpu")
        fixed = torch.cat([ends.expand(middle, 2), neighbours], dim=-1)
        return torch.cat([fixed.expand(self.num_heads, -1, -1), random], dim=-1)

    def _attend_blocks(self, query: Tensor, key: Tensor, value: Tensor, valid: Tensor) -> Tensor:
        """As `forward`, for a length that is a multiple of `block_size`."""
        size = self.block_size
        num_blocks = valid.shape[1] // size
        table = self.block_table(num_blocks, query.device)
        heads = torch.arange(self.num_heads, device=table.device)[:, None, None]
        rows = (heads * num_blocks + table).flatten()

        def select(t: Tensor) -> Tensor:
            """(B, H, N, D) to (B, H, n-2, (5 + r) b, D): the blocks named in each row of the table."""
            blocks = t.unflatten(2, (num_blocks, size)).flatten(1, 2).index_select(1, rows)
            return blocks.unflatten(1, table.shape).flatten(3, 4)

        twice = (table[..., :, None] == table[..., None, :]).tril(-1).any(dim=-1)
        visible = valid.unflatten(1, (num_blocks, size))[:, table] & ~twice[..., None]
        middle = query[:, :, size:-size].unflatten(2, (-1, size))  # (B, H, n-2, b, D)
        middle = self._attend(middle, select(key), select(value), visible.flatten(3)[:, :, :, None])
        ends = torch.cat([query[:, :, :size], query[:, :, -size:]], dim=2)
        ends = self._attend(ends, key, value, valid[:, None, None])
        return torch.cat([ends[:, :, :size], middle.flatten(2, 3), ends[:, :, size:]], dim=2)

    def _attend(self, query: Tensor, key: Tensor, value: Tensor, visible: Tensor) -> Tensor:
        logits = (bounded(query) * self.head_dim**-0.5) @ bounded(key).transpose(-1, -2)
        logits = logits.masked_fill(~visible, torch.finfo(logits.dtype).min)
        return F.dropout(logits.softmax(dim=-1), self.dropout, self.training) @ value

    def extra_repr(self) -> str:
        blocks = f"block_size={self.block_size}, num_random_blocks={self.num_random_blocks}"
        return f"{blocks}, dropout={self.dropout}"


def _forget_tables(module: BigBirdAttention, incompatible_keys: Any) -> None:
    module._tables.clear()
