"""How far a kernel's attention weights are from those of softmax, a block of rows at a time.

All pairs of queries and keys have to be formed to compare their weights, but never at once: rows are compared block
by block, the gradients of features summed on the way, and the parameters' gradients come from one pass through the
features at the end. `divergence.py` has the loss of one block.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Literal, NamedTuple

import torch
from torch import Tensor

from ..convert.observation import Call
from ..kernels import Kernel
from ..kernels.policy import denominator_limit
from ..kernels.weights import at_least_float32, full_precision
from ..ops.guard import normalise
from .divergence import LINE, SMALLEST_SUM, Divergence, KernelRows, absolute, clipped, paper

PAIRS_AT_ONCE = 2**20
"""Pairs of queries and keys whose weights are formed at a time, over batch and heads."""

SUMS = (
    "rows",
    "loss",
    "cross_entropy",
    "entropy",
    "output_error",
    "output_power",
    "negative_pairs",
    "pairs",
    "nonpositive_rows",
    "floored_rows",
)
"""What `Comparison.sums` holds for each sequence and head, in this order."""


@dataclass(frozen=True)
class LossOptions:
    """What kernels learn from.

    Args:
        name: How weights become a distribution. absolute: by the sum of their sizes, so that a negative weight costs
            as much as a positive one. paper: values below 1e-6 are raised to it, so that negative ones cost nothing.
        weights: Factor of the cross-entropy between softmax's weights and the kernel's.
        outputs: Factor of the squared error of the attention's output, relative to the values' mean square.
        line: With absolute, of kernels that may be negative: below this share of a row's mean the logarithm of a weight
            goes on as a straight line; default 0.2.
    """

    name: Literal["absolute", "paper"] = "absolute"
    weights: float = 1.0
    outputs: float = 0.0
    line: float | None = None

    def __post_init__(self) -> None:
        if self.name not in ("absolute", "paper"):
            raise ValueError(f"loss.name {self.name!r} is unknown; use absolute or paper")
        for name, value in (("weights", self.weights), ("outputs", self.outputs)):
            if not value >= 0:
                raise ValueError(f"loss.{name} {value} is negative; use 0 or more")
        if self.line is not None and not self.line > 0:
            raise ValueError(f"loss.line {self.line} is not a share; use a number above zero")
        if self.weights == self.outputs == 0:
            raise ValueError("loss.weights and loss.outputs are both 0; there is nothing to learn from")


class Comparison(NamedTuple):
    """A kernel beside the softmax attention it stands for, on one batch."""

    output: Tensor
    """(B, H, T, Dv) of softmax attention"""
    loss: Tensor
    """() mean over the queries that are not padding, and over heads"""
    gradients: list[Tensor]
    """of the kernel's trained parameters; empty if not asked for"""
    sums: Tensor | None
    """(B, H, len(SUMS)) over each sequence's queries; None if not asked for"""


@torch.no_grad()
def compare(call: Call, options: LossOptions, *, learn: bool, measure: bool) -> Comparison:
    """Compare a kernel with softmax attention on the same queries and keys.

    Args:
        call: The attention's inputs, from `convert.observation.observing`.
        options: The loss.
        learn: Compute gradients.
        measure: Compute sums.
    """
    with full_precision(call.query):
        pass_ = _Pass(call, options, learn)
        outputs, sums = [], []
        loss = pass_.weight.new_zeros(())
        for rows in pass_.blocks():
            target, entropy, output = pass_.teacher(rows)
            outputs.append(output)
            loss += pass_.student(rows, target, output)
            if measure:
                sums.append(pass_.measure(rows, target, entropy, output))
        gradients = pass_.parameter_gradients() if learn else []
    output = torch.cat(outputs, dim=2).to(call.value.dtype)
    return Comparison(output, loss, gradients, torch.stack(sums).sum(0) if measure else None)


class _Pass:
    """One batch through one kernel: what all blocks of rows share, and the gradients they add to."""

    def __init__(self, call: Call, options: LossOptions, learn: bool) -> None:
        self.kernel, self.options, self.learn, self.scaling = call.kernel, options, learn, call.scaling
        self.is_causal = call.is_causal
        batch, self.heads, self.length, _ = call.query.shape
        if call.key.shape[2] != self.length:
            raise ValueError(
                f"{self.length} queries and {call.key.shape[2]} keys: pass whole sequences, without a cache"
            )
        self.group = self.heads // self.kernel.num_heads
        mask = call.key_mask
        self.mask = torch.ones(batch, self.length, dtype=torch.bool, device=call.query.device) if mask is None else mask
        hidden = ~self.mask[:, None, :, None]
        self.q = at_least_float32(call.query)
        self.k = at_least_float32(call.key).masked_fill(hidden, 0.0)
        self.v = at_least_float32(call.value).masked_fill(hidden, 0.0)
        power = self.v.square().sum((-1, -2)) / self.mask.sum(-1).clamp_min(1)[:, None]
        self.power = power.clamp_min(SMALLEST_SUM).repeat_interleave(self.group, dim=1)[..., None]  # (B, H, 1)
        self.weight = self.mask.to(self.q.dtype)[:, None] / (self.heads * max(int(self.mask.sum()), 1))  # (B, 1, T)
        with torch.set_grad_enabled(learn):
            self.features = _Features.of(self.kernel, self.q, self.k)
        self.phi_q, self.phi_k, g = (x.detach() for x in self.features)
        # Features without a negative part, as those of positive kernels, cannot have negative products.
        self.signed = any(bool((x < 0).any()) for x in (self.phi_q, self.phi_k))
        g = g - g.masked_fill(~self.mask[:, None], -torch.inf).amax(-1, keepdim=True).nan_to_num(neginf=0.0)
        self.g = g.repeat_interleave(self.group, dim=1)
        self.sums = [torch.zeros_like(x) for x in self.features] if learn else []

    def blocks(self) -> Iterator[slice]:
        rows = max(1, PAIRS_AT_ONCE // (self.q.shape[0] * self.heads * self.length))
        for start in range(0, self.length, rows):
            yield slice(start, min(start + rows, self.length))

    def visible(self, rows: slice) -> Tensor:
        """(B, 1, R, S), or (B, 1, 1, S) where all rows see the same."""
        seen = self.mask[:, None, None, :]
        if not self.is_causal:
            return seen
        position = torch.arange(self.length, device=self.q.device)
        return seen & (position[rows, None] >= position)

    def teacher(self, rows: slice) -> tuple[Tensor, Tensor, Tensor]:
        """Softmax's weights (B, H, R, S), the entropy of its rows (B, H, R) and its output (B, H, R, Dv)."""
        hidden = ~self.visible(rows)
        logs = self._pairs(self.q[:, :, rows], self.k).mul_(self.scaling)
        logs.masked_fill_(hidden, torch.finfo(logs.dtype).min)
        logs = logs.log_softmax(-1)
        weights = logs.exp().masked_fill_(hidden, 0.0)  # rows that see nothing are all zeros
        entropy = -(weights * logs.masked_fill_(hidden, 0.0)).sum(-1)
        return weights, entropy, self._mix(weights)

    def rows(self, rows: slice) -> KernelRows:
        """The kernel's weights of a block of rows."""
        visible, g = self.visible(rows), self.g[:, :, None, :]
        largest = g.masked_fill(~visible, -torch.inf).amax(-1, keepdim=True)
        largest.masked_fill_(largest.isneginf(), 0.0)
        logs = g - largest
        scale = logs.masked_fill(~visible, -torch.inf).exp_()
        return KernelRows(self._pairs(self.phi_q[:, :, rows], self.phi_k), scale, largest[..., 0], self.g)

    def student(self, rows: slice, target: Tensor, output: Tensor) -> Tensor:
        """This block's share of the loss; its gradients are added to the others'."""
        weights, share = self.rows(rows), self.weight[:, :, rows]
        options = self.options
        loss = share.new_zeros(())
        if options.weights:
            found = self._divergence(options.name, target, weights, options.weights * share)
            loss += (found.each * share).sum() * options.weights
            if self.learn:
                self._add(rows, found.dkappa, found.dlogs)
        if options.outputs:
            loss += self._output_term(rows, weights, output, options.outputs * share / self.power)
        return loss

    def _divergence(self, name: str, target: Tensor, weights: KernelRows, share: Tensor | None) -> Divergence:
        if name == "paper":
            return paper(target, weights, share)
        line = LINE if self.options.line is None else self.options.line
        return absolute(target, weights, share, self.signed, line)

    def _output_term(self, rows: slice, weights: KernelRows, output: Tensor, share: Tensor) -> Tensor:
        with torch.set_grad_enabled(self.learn):
            kappa = weights.kappa.requires_grad_(self.learn)
            logs = torch.zeros_like(kappa, requires_grad=self.learn)
            scale = weights.scale * logs.exp()  # of g less its largest, whose gradient is wanted
            loss = (self._error(kappa * scale, scale, output) * share).sum()
        if self.learn:
            self._add(rows, *torch.autograd.grad(loss, [kappa, logs]))
        return loss.detach()

    def _add(self, rows: slice, dkappa: Tensor, dlogs: Tensor) -> None:
        """Add a block's gradients of phi_q . phi_k and of the log-weights to those of the features."""
        batch, _, count, _ = dkappa.shape
        grouped = dkappa.view(batch, self.kernel.num_heads, self.group * count, self.length)
        phi_q = self.phi_q[:, :, rows].reshape(batch, self.kernel.num_heads, self.group * count, -1)
        self.sums[0][:, :, rows] += (grouped @ self.phi_k).view(batch, self.heads, count, -1)
        self.sums[1] += grouped.mT @ phi_q
        self.sums[2] += dlogs.sum(2).view(batch, self.kernel.num_heads, self.group, self.length).sum(2)

    def measure(self, rows: slice, target: Tensor, entropy: Tensor, output: Tensor) -> Tensor:
        """(B, H, len(SUMS)) of this block."""
        weights, options = self.rows(rows), self.options
        values = weights.kappa * weights.scale
        den, total = values.sum(-1), weights.scale.sum(-1).expand_as(entropy)
        error = self._error(values, weights.scale, output)
        cross_entropy = clipped(target, weights, self.signed)
        is_same = options.name == "absolute" and not self.signed
        objective = cross_entropy if is_same else self._divergence(options.name, target, weights, None).each
        limit = denominator_limit(total, self.kernel.policy, self.kernel.floor)
        found = {
            "rows": torch.ones_like(error),
            "loss": options.weights * objective + options.outputs * error / self.power,
            "cross_entropy": cross_entropy,
            "entropy": entropy,
            "output_error": error,
            "output_power": output.square().sum(-1),
            "negative_pairs": (values < 0).sum(-1),
            "pairs": self.visible(rows).sum(-1).expand_as(error),
            "nonpositive_rows": den <= 0,
            "floored_rows": (den.abs() if self.kernel.policy == "raw" else den) < limit,
        }
        counted = self.mask[:, None, rows]
        return torch.stack([(found[name] * counted).sum(-1, dtype=torch.float64) for name in SUMS], dim=-1)

    def parameter_gradients(self) -> list[Tensor]:
        parameters = self.kernel.trained_parameters()
        ends = [(x, dx) for x, dx in zip(self.features, self.sums, strict=True) if x.requires_grad]
        found = torch.autograd.grad([x for x, _ in ends], parameters, [dx for _, dx in ends], allow_unused=True)
        return [torch.zeros_like(p) if d is None else d for p, d in zip(parameters, found, strict=True)]

    def _error(self, values: Tensor, scale: Tensor, output: Tensor) -> Tensor:
        """(B, H, R) squared error of the linear form's output."""
        den, total = values.sum(-1), scale.sum(-1).expand(values.shape[:3])
        linear = normalise(self._mix(values), den, total, self.kernel.policy, self.kernel.floor)
        return (linear - output).square().sum(-1)

    def _pairs(self, x: Tensor, y: Tensor) -> Tensor:
        """(B, H, R, C) and (B, Hkv, S, C) to (B, H, R, S); query head h meets key head h // group."""
        batch, _, rows, width = x.shape
        pairs = x.reshape(batch, self.kernel.num_heads, self.group * rows, width) @ y.mT
        return pairs.view(batch, self.heads, rows, self.length)

    def _mix(self, weights: Tensor) -> Tensor:
        """(B, H, R, S) and the values to (B, H, R, Dv)."""
        batch, _, rows, _ = weights.shape
        mixed = weights.reshape(batch, self.kernel.num_heads, self.group * rows, self.length) @ self.v
        return mixed.view(batch, self.heads, rows, self.v.shape[3])


class _Features(NamedTuple):
    """A kernel's features of a whole batch."""

    phi_q: Tensor
    """(B, H, T, F)"""
    phi_k: Tensor
    """(B, Hkv, S, F)"""
    g: Tensor
    """(B, Hkv, S) log-weights of the keys"""

    @classmethod
    def of(cls, kernel: Kernel, q: Tensor, k: Tensor) -> _Features:
        batch, heads, length, width = q.shape
        group = heads // kernel.num_heads
        position = torch.arange(length, device=q.device)
        grouped = q.reshape(batch, kernel.num_heads, group * length, width)
        phi_q = kernel.query_features(grouped, position.repeat(group)).reshape(batch, heads, length, -1)
        phi_k, g = kernel.key_features(k, position)
        return cls(phi_q, phi_k, phi_k.new_zeros(phi_k.shape[:3]) if g is None else g)
