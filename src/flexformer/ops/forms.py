"""Every form of attention beside the definition it must agree with.

One list serves the tests, which go through lengths and chunk sizes, and `flexformer doctor`, which runs a few on
the user's machine.
"""

from __future__ import annotations

from collections.abc import Callable
from itertools import pairwise
from typing import NamedTuple

import torch
from torch import Tensor

from ..kernels import Kernel
from .linear import linear_attention
from .reference import reference_attention

Attention = Callable[[Tensor, Tensor, Tensor, Kernel, int], Tensor]

PADDING = 5
GARBAGE = 1e9


class Form(NamedTuple):
    """A way to compute attention and the same by definition, as functions of q, k, v, kernel and chunk size."""

    name: str
    run: Attention
    expected: Attention
    group: int = 1
    """Query heads to a key head."""
    queries: float = 1.0
    """Queries to a key, for cross attention."""


def _whole(is_causal: bool) -> Attention:
    def run(q: Tensor, k: Tensor, v: Tensor, kernel: Kernel, chunk: int) -> Tensor:
        return linear_attention(q, k, v, kernel, is_causal, chunk_size=chunk)

    return run


def _definition(is_causal: bool) -> Attention:
    def run(q: Tensor, k: Tensor, v: Tensor, kernel: Kernel, chunk: int) -> Tensor:
        return reference_attention(q, k, v, kernel, is_causal)

    return run


def _in_pieces(sizes: Callable[[int], list[int]]) -> Attention:
    """Causal, a piece at a time, with the state carried from piece to piece."""

    def run(q: Tensor, k: Tensor, v: Tensor, kernel: Kernel, chunk: int) -> Tensor:
        state, outs = None, []
        pieces = zip(*(x.split(sizes(q.shape[2]), dim=2) for x in (q, k, v)), strict=True)
        for q, k, v in pieces:
            out, state = linear_attention(
                q, k, v, kernel, True, initial_state=state, return_state=True, chunk_size=chunk
            )
            outs.append(out)
        return torch.cat(outs, dim=2)

    return run


def _padded(is_causal: bool, left: bool) -> Attention:
    """In a longer batch whose padding holds garbage."""

    def run(q: Tensor, k: Tensor, v: Tensor, kernel: Kernel, chunk: int) -> Tensor:
        length = q.shape[2]
        sides = (0, 0, PADDING, 0) if left else (0, 0, 0, PADDING)
        q, k, v = (torch.nn.functional.pad(x, sides, value=GARBAGE) for x in (q, k, v))
        key_mask = torch.ones(q.shape[0], length, dtype=torch.bool, device=q.device)
        key_mask = torch.nn.functional.pad(key_mask, sides[2:], value=False)
        out = linear_attention(q, k, v, kernel, is_causal, key_mask, chunk_size=chunk)
        return out[:, :, PADDING:] if left else out[:, :, :length]

    return run


def _boundaries(length: int) -> list[int]:
    return [0, length // 3, length // 3, length // 2, length]


def _packed(is_causal: bool) -> Attention:
    def run(q: Tensor, k: Tensor, v: Tensor, kernel: Kernel, chunk: int) -> Tensor:
        cu_seqlens = torch.tensor(_boundaries(q.shape[2]), device=q.device)
        rows = zip(q.split(1), k.split(1), v.split(1), strict=True)
        outs = [linear_attention(*row, kernel, is_causal, cu_seqlens=cu_seqlens, chunk_size=chunk) for row in rows]
        return torch.cat(outs)

    return run


def _separate(is_causal: bool) -> Attention:
    def run(q: Tensor, k: Tensor, v: Tensor, kernel: Kernel, chunk: int) -> Tensor:
        ends = _boundaries(q.shape[2])
        parts = [slice(a, b) for a, b in pairwise(ends)]
        outs = [reference_attention(q[:, :, p], k[:, :, p], v[:, :, p], kernel, is_causal) for p in parts]
        return torch.cat(outs, dim=2)

    return run


def _one_query_of_each_group(is_causal: bool) -> Attention:
    def run(q: Tensor, k: Tensor, v: Tensor, kernel: Kernel, chunk: int) -> Tensor:
        grouped = q.unflatten(1, (kernel.num_heads, -1)).unbind(2)
        outs = [reference_attention(member, k, v, kernel, is_causal) for member in grouped]
        return torch.stack(outs, dim=2).flatten(1, 2)

    return run


def _halves(length: int) -> list[int]:
    return [length // 2, length - length // 2]


FORMS = (
    Form("bidirectional", _whole(False), _definition(False)),
    Form("causal", _whole(True), _definition(True)),
    Form("step by step", _in_pieces(lambda length: [1] * length), _definition(True)),
    Form("split, resumed", _in_pieces(_halves), _definition(True)),
    Form("packed", _packed(False), _separate(False)),
    Form("packed causal", _packed(True), _separate(True)),
    Form("padded left", _padded(True, left=True), _definition(True)),
    Form("padded right", _padded(False, left=False), _definition(False)),
    Form("grouped heads", _whole(True), _one_query_of_each_group(True), group=3),
    Form("cross", _whole(False), _definition(False), queries=0.7),
)


class Comparison(NamedTuple):
    """Worst errors, relative to the largest value of each compared tensor."""

    output: float
    gradient: float


def compare(
    form: Form,
    kernel: Kernel,
    length: int,
    *,
    dtype: torch.dtype = torch.float64,
    chunk_size: int = 64,
    batch: int = 2,
    seed: int = 0,
) -> Comparison:
    """Run a form in `dtype` and its definition in float64 on unit-variance inputs, with all gradients.

    Gradients are those of queries, keys, values and every kernel parameter. `kernel` must be in float64 and is
    left as it was.
    """
    generator = torch.Generator().manual_seed(seed)
    heads, dim = kernel.num_heads, kernel.head_dim
    rows = max(1, round(length * form.queries))

    def draw(heads: int, rows: int) -> Tensor:
        # Drawn on the CPU and rounded to `dtype`, so that both sides see the same numbers.
        return torch.randn(batch, heads, rows, dim, generator=generator).to(dtype).double()

    inputs = [draw(heads * form.group, rows), draw(heads, length), draw(heads, length)]
    cotangent = torch.randn(batch, heads * form.group, rows, dim, generator=generator).to(dtype).double()
    device = next(kernel.parameters(), inputs[0]).device
    inputs, cotangent = [x.to(device) for x in inputs], cotangent.to(device)
    expected = _with_gradients(form.expected, inputs, kernel, cotangent, chunk_size)
    actual = _with_gradients(form.run, [x.to(dtype) for x in inputs], kernel, cotangent.to(dtype), chunk_size)
    errors = [_relative_error(a, e) for a, e in zip(actual, expected, strict=True)]
    return Comparison(errors[0], max(errors[1:]))


def _with_gradients(
    attention: Attention, inputs: list[Tensor], kernel: Kernel, cotangent: Tensor, chunk_size: int
) -> list[Tensor]:
    leaves = [x.detach().requires_grad_() for x in inputs]
    parameters = [p for p in kernel.parameters() if p.requires_grad]
    out = attention(leaves[0], leaves[1], leaves[2], kernel, chunk_size)
    gradients = torch.autograd.grad(out, [*leaves, *parameters], cotangent, allow_unused=True)
    zeros = (torch.zeros_like(x) for x in (*leaves, *parameters))
    return [out.detach(), *(z if g is None else g for g, z in zip(gradients, zeros, strict=True))]


def _relative_error(actual: Tensor, expected: Tensor) -> float:
    if expected.numel() == 0:
        return 0.0
    scale = expected.abs().max().clamp_min(1e-3)
    return float((actual.double() - expected).abs().max() / scale)
