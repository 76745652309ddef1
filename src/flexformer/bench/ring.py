"""Ring attention, the usual way to divide softmax over ranks, to compare with: keys and values go round."""

from __future__ import annotations

import torch
import torch.distributed as dist
from torch import Tensor

from ..parallel import Split


def ring_attention(q: Tensor, k: Tensor, v: Tensor, split: Split) -> Tensor:
    """Softmax attention of this rank's queries (B, H, T, D) to the keys of all ranks, without gradients."""
    out, largest = _attend(q, k, v)
    travelling = torch.stack((k, v))
    for _ in range(split.size - 1):
        travelling = _pass_on(travelling, split)
        more, scale = _attend(q, *travelling)
        total = torch.logaddexp(largest, scale)
        out = out * (largest - total).exp()[..., None] + more * (scale - total).exp()[..., None]
        largest = total
    return out


def _attend(q: Tensor, k: Tensor, v: Tensor) -> tuple[Tensor, Tensor]:
    """The output, and the logarithm of each row's sum of weights."""
    out, scale = torch.ops.aten._scaled_dot_product_flash_attention_for_cpu(q, k, v)
    return out, scale


def _pass_on(x: Tensor, split: Split) -> Tensor:
    """Send to the next rank and receive from the one before, the last one being before the first."""
    received = torch.empty_like(x)
    to, origin = ((split.rank + step) % split.size for step in (1, -1))
    operations = [
        dist.P2POp(dist.isend, x, dist.get_global_rank(split.group, to), split.group),
        dist.P2POp(dist.irecv, received, dist.get_global_rank(split.group, origin), split.group),
    ]
    for work in dist.batch_isend_irecv(operations):
        work.wait()
    split.bytes_sent += x.numel() * x.element_size()
    return received
