"""Attention over a divided sequence beside the same in one process; every rank computes both."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any, NamedTuple

import torch
import torch.distributed as dist
from torch import Tensor

from flexformer import State, kernels, linear_attention
from flexformer.parallel import sequence_parallel

KERNELS = kernels.names()
HEADS, DIM, BATCH = 2, 8, 2


class Case(NamedTuple):
    kernel: str
    is_causal: bool
    lengths: tuple[int, ...]
    padding: str = "none"
    group: int = 1
    options: tuple[tuple[str, Any], ...] = ()
    gain: float = 1.0

    @property
    def name(self) -> str:
        form = "causal" if self.is_causal else "bidirectional"
        own = "".join(f" {key}={value}" for key, value in self.options)
        large = f" keys x{self.gain:g}" if self.gain != 1.0 else ""
        return f"{self.kernel} {form} {'+'.join(map(str, self.lengths))} {self.padding} group {self.group}{own}{large}"


def cases(size: int) -> list[Case]:
    """With two ranks all kernels; with more, which differ in how states travel, only a few."""
    even, uneven = (40,) * size, (70, 1, 130, 9, 66)[:size]
    empty, long = (0, 33, 20, 0, 7)[:size], (700, 401, 650, 300, 600)[:size]
    found = []
    for is_causal in (False, True):
        found += [Case(kernel, is_causal, uneven, "left") for kernel in (KERNELS if size == 2 else KERNELS[:3])]
        for lengths in (even, uneven, empty, empty[::-1], long):
            found.append(Case("flexformer-n", is_causal, lengths))
        found += [Case("flexformer-s", is_causal, uneven, padding) for padding in ("right", "all of one rank")]
        found += [Case("flexformer-c", is_causal, even, "left", group=3), Case("linear", is_causal, uneven, "right")]
        found += [Case("flexformer-n", is_causal, uneven, options=(("policy", policy),)) for policy in ("raw",)]
        found.append(Case("flexformer-s", is_causal, uneven, gain=6.0))
    return found


def errors(size: int) -> dict[str, float]:
    """The worst difference of each case, relative to the largest value of what is compared."""
    return {case.name: compare(case) for case in cases(size)}


def build(case: Case) -> kernels.Kernel:
    torch.manual_seed(1)
    kernel = kernels.build(case.kernel, num_heads=HEADS, head_dim=DIM, **dict(case.options)).double()
    with torch.no_grad():
        for parameter in kernel.parameters():
            parameter += 0.1 * torch.randn_like(parameter)
    return kernel


def mask(case: Case) -> Tensor | None:
    total = sum(case.lengths)
    visible = torch.ones(BATCH, total, dtype=torch.bool)
    if case.padding == "none":
        return None
    if case.padding == "left":
        visible[0, : case.lengths[0] + 1] = False
    elif case.padding == "right":
        visible[1, total - total // 3 :] = False
    else:
        visible[:, : case.lengths[0]] = False
    return visible


def compare(case: Case) -> float:
    kernel, rank = build(case), dist.get_rank()
    total = sum(case.lengths)
    inputs = [torch.randn(BATCH, heads, total, DIM).double() for heads in (HEADS * case.group, HEADS, HEADS)]
    inputs[1] *= case.gain
    visible, upstream = mask(case), torch.randn(BATCH, HEADS * case.group, total, DIM).double()
    expected = gradients(linear_attention, kernel, inputs, visible, upstream, case.is_causal)

    start = sum(case.lengths[:rank])
    here = slice(start, start + case.lengths[rank])
    own = [x[:, :, here] for x in inputs]
    own_visible = None if visible is None else visible[:, here]
    with sequence_parallel() as split:
        out, *inner = gradients(linear_attention, kernel, own, own_visible, upstream[:, :, here], case.is_causal)
    for gradient in inner[3:]:
        split.all_reduce(gradient)
    cut = [x[:, :, here] for x in expected[:4]]
    pairs = zip([out, *inner], [*cut, *expected[4:]], [*expected], strict=True)
    return max(_relative(a, e, whole) for a, e, whole in pairs)


def gradients(attention: Any, kernel: Any, inputs: list[Tensor], visible: Any, upstream: Tensor, is_causal: bool):
    leaves = [x.clone().requires_grad_() for x in inputs]
    parameters = kernel.trained_parameters()
    out = attention(*leaves, kernel, is_causal, visible)
    found = torch.autograd.grad(out, [*leaves, *parameters], upstream, allow_unused=True)
    zeros = (torch.zeros_like(x) for x in (*leaves, *parameters))
    return [out.detach(), *(z if g is None else g for g, z in zip(found, zeros, strict=True))]


def _relative(actual: Tensor, expected: Tensor, whole: Tensor) -> float:
    assert actual.shape == expected.shape
    if not actual.numel():
        return 0.0
    return float((actual - expected).abs().max() / whole.abs().max().clamp_min(1e-3))


def state_error() -> float:
    """Of what is computed from the state of the whole sequence, which every rank has."""
    case = Case("cosformer", True, (20, 7, 9, 4, 11)[: dist.get_world_size()])
    kernel, rank, total = build(case), dist.get_rank(), sum(case.lengths)
    q, k, v = (torch.randn(BATCH, HEADS, total + 5, DIM).double() for _ in range(3))
    whole = linear_attention(q, k, v, kernel, True)
    start = sum(case.lengths[:rank])
    here = slice(start, start + case.lengths[rank])
    with sequence_parallel():
        _, state = linear_attention(*(x[:, :, here] for x in (q, k, v)), kernel, True, return_state=True)
    assert int(state.length) == total
    with torch.no_grad():  # and it can be gone on from in place
        copy = State(*(x.clone() for x in state))
        linear_attention(*(x[:, :, total:] for x in (q, k, v)), kernel, True, initial_state=copy, update_state=True)
        assert int(copy.length) == total + 5
    more = linear_attention(*(x[:, :, total:] for x in (q, k, v)), kernel, True, initial_state=state)
    return _relative(more, whole[:, :, total:], whole)


def traffic(lengths: list[int]) -> dict[str, list[int]]:
    """Bytes that this rank sends forward and backward, by form, for each length: as counted, and as seen on the way."""
    found: dict[str, list[int]] = {}
    for is_causal in (False, True):
        form = "causal" if is_causal else "bidirectional"
        for length in lengths:
            kernel = build(Case("flexformer-n", is_causal, ()))
            inputs = [torch.randn(BATCH, HEADS, length, DIM, requires_grad=True) for _ in range(3)]
            with watched() as seen, sequence_parallel() as split:
                linear_attention(*inputs, kernel.float(), is_causal).sum().backward()
            found.setdefault(form, []).append(split.bytes_sent)
            found.setdefault(f"{form}, seen", []).append(sum(seen))
    return found


@contextmanager
def watched() -> Iterator[list[int]]:
    """The size of every message given to torch.distributed, whoever gives it."""
    seen: list[int] = []
    originals = {name: getattr(dist, name) for name in ("all_reduce", "all_gather", "broadcast")}

    def watch(name: str) -> Any:
        def call(*arguments: Any, **named: Any) -> Any:
            tensor = arguments[1] if name == "all_gather" else arguments[0]
            seen.append(tensor.numel() * tensor.element_size())
            return originals[name](*arguments, **named)

        return call

    def batch(operations: list[Any]) -> Any:
        seen.extend(o.tensor.numel() * o.tensor.element_size() for o in operations if o.op is dist.isend)
        return originals_batch(operations)

    originals_batch = dist.batch_isend_irecv
    try:
        for name in originals:
            setattr(dist, name, watch(name))
        dist.batch_isend_irecv = batch
        yield seen
    finally:
        for name, original in originals.items():
            setattr(dist, name, original)
        dist.batch_isend_irecv = originals_batch
