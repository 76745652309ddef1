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
        products: dtype of large matrix products that may be rounded; `dtype` by default.
    """

    def __init__(self, dtype: torch.dtype, device: torch.device, products: torch.dtype | None = None) -> None:
        self.dtype, self.device = dtype, device
        self.products = products or dtype
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

    def multiply(self, a: Tensor, b: Tensor, out: Tensor) -> Tensor:
        """a @ b, batched, into `out`."""
        if self.products == self.dtype:
            return torch.bmm(a, b, out=out)
        return out.copy_(torch.bmm(a.to(self.products), b.to(self.products)))

    def add_product(self, total: Tensor, a: Tensor, b: Tensor) -> Tensor:
        """Add a @ b, batched, to `total`."""
        if self.products == self.dtype:
            return total.baddbmm_(a, b)
        return total.add_(torch.bmm(a.to(self.products), b.to(self.products)))


def fast_products(inputs: torch.dtype, device: torch.device) -> torch.dtype | None:
    """The narrow dtype of `inputs` where the device multiplies matrices faster in it, else None.

    Never float16: sums over a long sequence do not fit it. Never on a CPU: where it multiplies bfloat16 by itself,
    gradients were found to be several times less exact than their own rounding.
    """
    return inputs if inputs == torch.bfloat16 and device.type == "cuda" else None
