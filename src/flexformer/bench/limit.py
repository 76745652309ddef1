"""What attention with flexformer-n cannot do without, each part timed by itself.

Counted are the matrix products and the cosines, sines and exponentials, in the blocks that `linear_attention` uses,
into buffers that are already there. Not counted is everything else: sums, products element by element, normalisation,
copies. Per token and head, with n frequencies, F = 2n features and D the width of a head:

- forward: 2n x D angles for q and for k, 3n cosines and sines for each, F x D to fold a key into the state and F x D
  to read it with a query, one exponential for the key's weight.
- backward: the angles and their 3n cosines and sines once more, for they are not kept, and n sines for the slope of
  the envelope; F x D for the state's gradient, for the gradient of the values and twice for that of features; 2n x D
  for the gradient of inputs and of frequencies, for q and for k each.
- causal, with C tokens to a chunk: also C x F and C x D for pairs within a chunk, and backwards C x F to have them
  again, C x D for their gradient, C x F for either side's features and C x D for the values.
"""

from __future__ import annotations

import functools
from collections.abc import Callable, Iterator
from typing import NamedTuple

import torch
from torch import Tensor

from ..kernels.spectral import NonstationaryKernel
from ..ops.linear import CHUNK_SIZE
from ..ops.recompute import block_length, blocks
from .operations import OURS, Case, Pass, build_kernel


class Part(NamedTuple):
    """One kind of work over the whole sequence."""

    name: str
    times: int
    """how often it is needed"""
    call: Callable[[], object]


class Work:
    """Inputs of full length and buffers of one block, heads as a batch of products, as attention has them.

    G = batch * heads, F = 2n angles or features, t tokens to a block, C to a chunk.
    """

    def __init__(self, case: Case) -> None:
        kernel = build_kernel(OURS, case)
        assert isinstance(kernel, NonstationaryKernel)
        draw = functools.partial(torch.randn, generator=torch.Generator().manual_seed(0))
        heads, n, width = case.batch * case.heads, case.frequencies, case.head_dim
        self.case = case
        self.x = draw(case.batch, case.heads, case.length, width)
        self.block = min(case.length, block_length(kernel, self.x, CHUNK_SIZE if case.is_causal else 1))
        self.chunk = min(CHUNK_SIZE, self.block)
        self.tokens = self.x.flatten(0, 1)  # (G, T, D)
        self.waves = kernel.waves().detach().repeat(case.batch, 1, 1)  # (G, F, D)
        self.state = draw(heads, 2 * n, width)
        self.features = draw(heads, 2 * n, self.block)
        self.halves = draw(heads, n, self.block)
        self.weights = draw(heads, self.block)
        self.pairs = draw(heads * (self.block // self.chunk), self.chunk, self.chunk)
        self._buffers: dict[tuple[int, ...], Tensor] = {}
        self._chunked: dict[tuple[int, ...], Tensor] = {}

    def blocks(self) -> Iterator[tuple[Tensor, int]]:
        """(G, t, D) block by block, and t."""
        for here in blocks(self.case.length, self.block):
            yield self.tokens[:, here], here.stop - here.start

    def project(self) -> None:
        """(F, D) x (D, t): angles; the gradient of features has the same shapes."""
        for x, t in self.blocks():
            torch.bmm(self.waves, x.mT, out=self._buffer(*self.waves.shape[:2], t))

    def fold(self) -> None:
        """(F, t) x (t, D): what a block adds to the state; the gradients of state and frequencies likewise."""
        for x, t in self.blocks():
            torch.bmm(self.features[:, :, :t], x, out=self._buffer(*self.state.shape))

    def read(self) -> None:
        """(t, F) x (F, D): rows from the state; the gradients of values and inputs likewise."""
        for _, t in self.blocks():
            torch.bmm(self.features[:, :, :t].mT, self.state, out=self._buffer(len(self.state), t, self.state.shape[2]))

    def cosine(self) -> None:
        """n cosines a token."""
        for _, t in self.blocks():
            torch.cos(self.halves[:, :, :t], out=self._buffer(*self.halves.shape[:2], t))

    def sine(self) -> None:
        """n sines a token."""
        for _, t in self.blocks():
            torch.sin(self.halves[:, :, :t], out=self._buffer(*self.halves.shape[:2], t))

    def exponential(self) -> None:
        """An exponential a token."""
        for _, t in self.blocks():
            torch.exp(self.weights[:, :t], out=self._buffer(len(self.weights), t))

    def pairs_of_features(self) -> None:
        """(C, F) x (F, C) in every chunk."""
        for _, t in self.blocks():
            chunks = self._chunks(self.features[:, :, :t].mT)
            self._multiply(chunks, chunks.mT)

    def pairs_of_values(self) -> None:
        """(C, D) x (D, C) in every chunk."""
        for x, _ in self.blocks():
            chunks = self._chunks(x)
            self._multiply(chunks, chunks.mT)

    def spread_to_features(self) -> None:
        """(C, C) x (C, F) in every chunk."""
        for _, t in self.blocks():
            chunks = self._chunks(self.features[:, :, :t].mT)
            self._multiply(self.pairs[: len(chunks)], chunks)

    def spread_to_values(self) -> None:
        """(C, C) x (C, D) in every chunk."""
        for x, _ in self.blocks():
            chunks = self._chunks(x)
            self._multiply(self.pairs[: len(chunks)], chunks)

    def _multiply(self, a: Tensor, b: Tensor) -> None:
        torch.bmm(a, b, out=self._buffer(len(a), a.shape[1], b.shape[2]))

    def _chunks(self, x: Tensor) -> Tensor:
        """(G, t, ...) as whole chunks (G * N, C, ...), less than a chunk left out; made beforehand, as not counted."""
        key = tuple(x.shape)
        found = self._chunked.get(key)
        if found is None:
            whole = x[:, : x.shape[1] // self.chunk * self.chunk]
            found = self._chunked[key] = whole.unflatten(1, (-1, self.chunk)).flatten(0, 1)
        return found

    def _buffer(self, *shape: int) -> Tensor:
        """Memory to write to, made once."""
        if shape not in self._buffers:
            self._buffers[shape] = torch.empty(shape)
        return self._buffers[shape]


def parts(work: Work, direction: Pass) -> list[Part]:
    """What `direction` needs in float32. Parts of the same shape share their call; the limit is sum times * seconds."""
    backward = direction != "forward"
    found = [
        Part("angles", 4 if backward else 2, work.project),
        Part("fold", 1, work.fold),
        Part("read", 1, work.read),
        Part("cosine", 8 if backward else 4, work.cosine),
        Part("sine", 6 if backward else 2, work.sine),
        Part("exponential", 2 if backward else 1, work.exponential),
    ]
    if backward:
        found += [
            Part("gradient of features", 2, work.project),
            Part("gradient of inputs", 2, work.read),
            Part("gradient of frequencies", 2, work.fold),
            Part("gradient of the state", 1, work.fold),
            Part("gradient of values", 1, work.read),
        ]
    if work.case.is_causal:
        found += [
            Part("pairs within chunks", 2 if backward else 1, work.pairs_of_features),
            Part("values within chunks", 2 if backward else 1, work.spread_to_values),
        ]
        if backward:
            found += [
                Part("gradient of pairs", 1, work.pairs_of_values),
                Part("gradient of features within chunks", 2, work.spread_to_features),
            ]
    return found
