"""Ways to attend, each as a row of a comparison: (q, k, v) in, outputs out, nothing around them."""

from __future__ import annotations

import functools
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, replace
from typing import Any, Literal, NamedTuple

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from .. import attention, kernels
from ..attention.kernel import KernelAttention
from ..kernels import Kernel
from ..ops import linear_attention, reference_attention, traced
from ..ops.linear import CHUNK_SIZE
from ..ops.state import State

SDPA, UNFUSED, OURS, WHOLE = "softmax", "softmax-unfused", "flexformer-n", "flexformer-n-whole"
PAIRS = "flexformer-c-pairs"

Pass = Literal["forward", "forward+backward"]
PASSES: tuple[Pass, ...] = ("forward", "forward+backward")


@dataclass(frozen=True)
class Case:
    """What is attended to."""

    length: int
    batch: int = 1
    heads: int = 8
    head_dim: int = 64
    frequencies: int = 64
    dtype: str = "float32"
    is_causal: bool = False

    @property
    def torch_dtype(self) -> torch.dtype:
        dtype: torch.dtype = getattr(torch, self.dtype)
        return dtype


class Inputs(NamedTuple):
    """(B, H, T, D), or (B, T, H, D) for operations that want tokens first."""

    q: Tensor
    k: Tensor
    v: Tensor
    x: Tensor
    """(B, T, H * D): what a module around the operation would have been given."""
    gradient: Tensor
    """Of the outputs."""

    @classmethod
    def draw(cls, case: Case) -> Inputs:
        """Unit-variance numbers, the same for all operations."""
        generator = torch.Generator().manual_seed(case.length)
        shape = (case.batch, case.heads, case.length, case.head_dim)
        q, k, v, gradient = (torch.randn(shape, generator=generator).to(case.torch_dtype) for _ in range(4))
        return cls(q, k, v, q.transpose(1, 2).flatten(2), gradient)

    def tokens_first(self) -> Inputs:
        q, k, v, gradient = (t.transpose(1, 2).contiguous() for t in (self.q, self.k, self.v, self.gradient))
        return Inputs(q, k, v, self.x, gradient)

    def with_gradients(self) -> Inputs:
        q, k, v = (t.detach().requires_grad_() for t in self[:3])
        return Inputs(q, k, v, self.x, self.gradient)


Attend = Callable[[Inputs], Tensor]


class Operation(NamedTuple):
    """A row made for a case."""

    attend: Attend
    parameters: Sequence[Tensor] = ()
    reference: Attend | None = None
    """The same by definition, in float64, where there is one: what `attend` must equal."""


@dataclass(frozen=True)
class Row:
    """One way to attend."""

    name: str
    family: Literal["softmax", "flexformer", "other", "peer"]
    build: Callable[[Case], Operation] = field(repr=False)
    has_causal_form: bool = True
    has_bidirectional_form: bool = True
    tokens_first: bool = False

    def fits(self, case: Case) -> bool:
        return self.has_causal_form if case.is_causal else self.has_bidirectional_form


def prepare(row: Row, case: Case, direction: Pass, inputs: Inputs) -> Callable[[], Any]:
    """A call to measure.

    Args:
        row: what to measure.
        case: on what.
        direction: "forward" computes outputs only; "forward+backward" also the gradients of q, k, v and parameters.
        inputs: of that case, in the row's layout; they may be shared between calls.
    """
    torch.manual_seed(0)
    operation = row.build(case)
    if direction == "forward":
        return torch.no_grad()(functools.partial(operation.attend, inputs))
    return functools.partial(_with_backward, operation, inputs.with_gradients())


def _with_backward(operation: Operation, inputs: Inputs) -> tuple[Tensor, ...]:
    out = operation.attend(inputs)
    wanted = [*inputs[:3], *(p for p in operation.parameters if p.requires_grad)]
    gradients = torch.autograd.grad(out, wanted, inputs.gradient, allow_unused=True)
    return out, *(gradient for gradient in gradients if gradient is not None)


class CheckError(Exception):
    """A row computes something else than it says."""


def check(row: Row, case: Case, length: int = 2 * CHUNK_SIZE) -> None:
    """Refuse rows that are wrong: speed means nothing there.

    Outputs and gradients of a short case must be finite and, where the row has a definition, equal to it.
    """
    case = replace(case, length=length)
    torch.manual_seed(0)
    operation = row.build(case)
    drawn = Inputs.draw(case)
    inputs = (drawn.tokens_first() if row.tokens_first else drawn).with_gradients()
    found = _with_backward(operation, inputs)
    out = found[0]
    if out.shape != inputs.v.shape or not all(bool(t.isfinite().all()) for t in found):
        raise CheckError(f"{row.name}: outputs or gradients are not finite or of the wrong shape")
    if operation.reference is None:
        return
    exact = Inputs(*(t.detach().double() for t in inputs))
    with torch.no_grad():
        expected = operation.reference(exact)
    error = float((out.detach().double() - expected).square().mean().sqrt() / expected.square().mean().sqrt())
    tolerance = 1e-4 if out.dtype == torch.float32 else 2e-2
    if error > tolerance:
        raise CheckError(f"{row.name}: relative error {error:.1e} against the definition, above {tolerance:g}")


def softmax(case: Case) -> Operation:
    def attend(inputs: Inputs) -> Tensor:
        return F.scaled_dot_product_attention(inputs.q, inputs.k, inputs.v, is_causal=case.is_causal)

    return Operation(attend, reference=functools.partial(_unfused, case.is_causal))


def softmax_unfused(case: Case) -> Operation:
    """All weights in memory: matrix product, softmax, matrix product."""
    return Operation(functools.partial(_unfused, case.is_causal), reference=softmax(case).attend)


def _unfused(is_causal: bool, inputs: Inputs) -> Tensor:
    q, k, v = inputs[:3]
    scores = (q * q.shape[-1] ** -0.5) @ k.mT
    if is_causal:
        length = q.shape[2]
        future = torch.ones(length, length, dtype=torch.bool, device=q.device).triu(1)
        scores = scores.masked_fill(future, -torch.inf)
    return scores.softmax(-1) @ v


def build_kernel(name: str, case: Case, **options: Any) -> Kernel:
    """A kernel with as many features as flexformer-n has, where their number can be chosen."""
    known = kernels.options(name)
    sizes = {"num_frequencies": case.frequencies, "num_features": 2 * case.frequencies, "max_length": case.length}
    if name == "hedgehog":
        del sizes["num_features"]  # its own default already gives features of both signs, twice the head's width
    options |= {option: size for option, size in sizes.items() if option in known}
    return kernels.build(name, case.heads, case.head_dim, **options)


def reference_of(kernel: Kernel, is_causal: bool, tokens_first: bool = False) -> Attend:
    """The definition with this kernel, in float64."""

    def attend(inputs: Inputs) -> Tensor:
        q, k, v = (t.transpose(1, 2) if tokens_first else t for t in inputs[:3])
        before = next((p.dtype for p in kernel.parameters()), torch.float32)
        out = reference_attention(q, k, v, kernel.double(), is_causal)
        kernel.to(before)
        return out.transpose(1, 2) if tokens_first else out

    return attend


def kernel_operation(name: str, case: Case, **options: Any) -> Operation:
    kernel = build_kernel(name, case, **options)

    def attend(inputs: Inputs) -> Tensor:
        return linear_attention(inputs.q, inputs.k, inputs.v, kernel, case.is_causal)

    return Operation(attend, list(kernel.parameters()), reference_of(kernel, case.is_causal))


def whole_features(case: Case) -> Operation:
    """flexformer-n as one would write it down: features of the whole sequence, gradients by autograd."""
    kernel = build_kernel(OURS, case)

    def bidirectional(inputs: Inputs) -> Tensor:
        q, k, v = (t.float() for t in inputs[:3])
        phi_q = kernel.query_features(q)
        phi_k, g = kernel.key_features(k)
        assert g is not None
        weights = (g - g.amax(-1, keepdim=True)).exp()
        weighted = phi_k * weights[..., None]
        num = phi_q @ (weighted.mT @ v)
        den = (phi_q @ weighted.sum(-2)[..., None]).squeeze(-1)
        den = torch.maximum(den, kernel.floor * weights.sum(-1, keepdim=True))
        return (num / den[..., None]).to(inputs.v.dtype)

    def causal(inputs: Inputs) -> Tensor:
        empty = State.empty(case.batch, case.heads, kernel.num_features, case.head_dim)
        out, _ = traced.causal(*inputs[:3], kernel, None, empty, kernel.floor, None, CHUNK_SIZE)
        return out.to(inputs.v.dtype)

    attend = causal if case.is_causal else bidirectional
    return Operation(attend, list(kernel.parameters()), reference_of(kernel, case.is_causal))


def mechanism_operation(name: str, case: Case) -> Operation:
    mechanism: nn.Module = attention.build(name, case.heads, case.head_dim).to(case.torch_dtype)
    shares = bool(mechanism.shares_query_key)

    def attend(inputs: Inputs) -> Tensor:
        key = inputs.q if shares else inputs.k
        out: Tensor = mechanism(inputs.q, key, inputs.v, x=inputs.x, is_causal=case.is_causal)
        return out

    return Operation(attend, list(mechanism.parameters()))


def own_rows() -> list[Row]:
    """Softmax and everything of this package, in the order of `ATTENTIONS`."""
    rows = [
        Row(SDPA, "softmax", softmax),
        Row(UNFUSED, "softmax", softmax_unfused),
        Row(WHOLE, "flexformer", whole_features),
        Row(PAIRS, "flexformer", functools.partial(kernel_operation, "flexformer-c", num_real=0)),
    ]
    known = kernels.names()
    names = [name for name in attention.ATTENTIONS if name != SDPA]
    for name in (*names, *(name for name in known if name not in names)):
        mechanism = attention.build(name, 2, 8)
        # PolaFormer's kernel serves two polarities, which only the mechanism puts together.
        if name in known and type(mechanism) is KernelAttention:
            family: Literal["flexformer", "other"] = "flexformer" if name.startswith("flexformer") else "other"
            rows.append(Row(name, family, functools.partial(kernel_operation, name)))
        else:
            causal = mechanism.has_causal_form
            rows.append(Row(name, "other", functools.partial(mechanism_operation, name), has_causal_form=causal))
    return rows
