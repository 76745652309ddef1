"""Memory that one block after another computes in."""

from __future__ import annotations

import math

import torch
from torch import Tensor


class Workspace:
    """Named pieces of memory, kept for the blocks to come.

    On a CPU, memory fresh from the system costs a page fault every few kilobytes, often more time than what is
    computed in it. A piece is valid until its name is asked for again.

    Args:
        dtype: of what is computed.
        device: where.
    """

    def __init__(self, dtype: torch.dtype, device: torch.device) -> None:
        self.dtype, self.device = dtype, device
        self._memory: dict[str, Tensor] = {}
        self._pieces: dict[tuple[str, tuple[int, ...]], Tensor] = {}

    def __call__(self, name: str, *shape: int) -> Tensor:
        """Contiguous memory of this shape, holding anything."""
        piece = self._pieces.get((name, shape))
        if piece is None:
            size = math.prod(shape)
            memory = self._memory.get(name)
            if memory is None or memory.numel() < size:
                memory = self._memory[name] = torch.empty(size, dtype=self.dtype, device=self.device)
                self._pieces = {key: view for key, view in self._pieces.items() if key[0] != name}
            piece = self._pieces[name, shape] = memory[:size].view(shape)
        return piece
