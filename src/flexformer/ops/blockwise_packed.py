"""Bidirectional attention within packed sequences, a few at a time."""

from __future__ import annotations

from collections.abc import Iterator
from itertools import pairwise

import torch
from torch import Tensor
from torch.utils.checkpoint import checkpoint

from ..kernels import Kernel
from ..kernels.held import holding, named_tensors
from . import traced
from .arguments import accumulation_dtype, empty_state
from .blockwise_bidirectional import blockwise_bidirectional
from .packed import pack

# Sequences of at least this many tokens are worth a pass of their own; shorter ones are taken together, up to so many.
GROUP = 1024


def blockwise_packed(
    q: Tensor,
    k: Tensor,
    v: Tensor,
    kernel: Kernel,
    key_mask: Tensor | None,
    cu_seqlens: Tensor,
    floor: float,
    size: int,
) -> Tensor:
    """Features are held for one group of sequences at a time, and computed anew in the backward pass."""
    bounds = cu_seqlens.tolist()
    groups = list(_groups(bounds))
    lengths = [bounds[last] - bounds[first] for first, last in groups]
    # A copy: what is computed anew must see the mask as it is now.
    mask = key_mask.clone().split(lengths, dim=1) if key_mask is not None else [None] * len(groups)
    tensors = named_tensors(kernel)
    outputs = []
    pieces = zip(groups, *(x.split(lengths, dim=2) for x in (q, k, v)), mask, strict=True)
    for (first, last), qs, ks, vs, visible in pieces:
        if last - first == 1:
            out, _ = blockwise_bidirectional(qs, ks, vs, kernel, visible, empty_state(kernel, qs, ks, vs), floor, 0)
        else:
            within = cu_seqlens[first : last + 1] - bounds[first]
            seen = [_changes(x) for x in (qs, ks, vs, *tensors.values())]
            arguments = (qs, ks, vs, visible, kernel, tensors, seen, within, floor, size)
            out = checkpoint(_group, *arguments, use_reentrant=False, preserve_rng_state=False)
        outputs.append(out)
    return torch.cat(outputs, dim=2)


def packed_at_once(
    q: Tensor,
    k: Tensor,
    v: Tensor,
    kernel: Kernel,
    key_mask: Tensor | None,
    cu_seqlens: Tensor,
    floor: float,
    size: int,
) -> Tensor:
    """In plain tensor operations, all sequences together."""
    packing = pack(cu_seqlens.to(q.device), q.shape[2], size)
    visible = packing.filled if key_mask is None else packing.spread(key_mask[0], 0)
    dtype = accumulation_dtype(q, k, v)
    q, k, v = (packing.spread(x, 2) for x in (q, k, v))
    positions = packing.positions if kernel.uses_positions else None
    out = traced.packed(q, k, v, kernel, visible[None], floor, positions, size, packing.segments, dtype)
    return packing.gather(out, 2)


def _group(
    q: Tensor,
    k: Tensor,
    v: Tensor,
    key_mask: Tensor | None,
    kernel: Kernel,
    tensors: dict[str, Tensor],
    seen: list[int],
    cu_seqlens: Tensor,
    floor: float,
    size: int,
) -> Tensor:
    # What is computed anew for the backward pass is not saved with autograd, which would notice.
    if seen != [_changes(x) for x in (q, k, v, *tensors.values())]:
        raise RuntimeError(
            "one of the variables needed for gradient computation has been modified by an inplace operation: "
            "queries, keys, values or the kernel's parameters and buffers of attention in packed sequences"
        )
    return packed_at_once(q, k, v, holding(kernel, tensors), key_mask, cu_seqlens, floor, size)


def _changes(x: Tensor) -> int:
    """How often a tensor was changed in place."""
    return 0 if x.is_inference() else x._version


def _groups(bounds: list[int]) -> Iterator[tuple[int, int]]:
    """First and last boundary of consecutive sequences to take together."""
    start = 0
    for i, (begin, end) in enumerate(pairwise(bounds)):
        if end - begin >= GROUP:
            if start < i:
                yield start, i
            yield i, i + 1
            start = i + 1
        elif end - bounds[start] >= GROUP:
            yield start, i + 1
            start = i + 1
    if start < len(bounds) - 1:
        yield start, len(bounds) - 1
