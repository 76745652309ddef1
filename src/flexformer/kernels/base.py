"""The contract every attention kernel fulfils."""

from __future__ import annotations

import math
from typing import Any, ClassVar

import torch
from torch import Tensor, nn

from .blocks import BlockFeatures
from .policy import POLICIES
from .statistics import KernelStatistics, kernel_statistics
from .weights import at_least_float32
from .workspace import Workspace

# Phases of larger inputs carry no information in float32, and their squares still fit it.
LARGEST_INPUT = 1e12

# Keeps positive kernels from dividing by zero; its inverse leaves room for gradients in float32.
SMALLEST_DENOMINATOR = 1e-30

# An inner product of features that are at least e^-30, one of a key whose e^g is the largest, is above it.
SMALLEST_LOG = -30.0


class Kernel(nn.Module):
    r"""A similarity k(q, k) = e^{g(k)} phi_q(q) . phi_k(k) that linear attention can use.

    Queries and keys have a side each, so that a kernel may treat them differently. The key side also gives a
    log-weight g, which the attention ops carry in log space with a running maximum: a kernel whose values
    span many orders of magnitude puts their size into g and keeps its features of order one. A factor that
    depends on the query alone cancels in normalised attention and must be left out.

    What becomes of a row whose weights sum to (nearly) nothing is the kernel's `policy`. With den the row's
    sum of weights and w its sum of e^g, both in units of the largest visible e^g:

    - "floor": den <- max(den, floor * w). For kernels with \|phi_q . phi_k\| <= 1; bounds the output by
      max\|v\| / floor whatever the weights' signs.
    - "absolute": den <- max(den, floor). For positive kernels, and as RFA guards its signed one. Kernels with a
      log-weight can only use it to keep from dividing by zero, as their unit changes from row to row.
    - "raw": \|den\| <- max(\|den\|, floor * w), the sign kept: the formulas taken literally.

    Args:
        num_heads: heads of the keys; grouped queries share the kernel of their key head.
        head_dim: width of one head.
        num_features: width F of the feature maps.
        policy: one of the three above.
        floor: the policy's number.
    """

    name: ClassVar[str] = ""
    uses_positions: ClassVar[bool] = False
    conversion_options: ClassVar[dict[str, Any]] = {}
    """Options to start with where softmax attention that was trained is to be approximated."""

    def __init__(self, num_heads: int, head_dim: int, num_features: int, policy: str, floor: float) -> None:
        super().__init__()
        for argument, value in (
            ("num_heads", num_heads),
            ("head_dim", head_dim),
            ("num_features", num_features),
        ):
            require_positive_int(argument, value)
        if policy not in POLICIES:
            raise ValueError(f"policy {policy!r} is unknown; use one of {', '.join(POLICIES)}")
        check_floor(floor, policy)
        self.num_heads = num_heads
        self.head_dim = head_dim
        self.num_features = num_features
        self.policy = policy
        self.floor = floor
        self.max_length: int | None = None

    def query_features(self, q: Tensor, positions: Tensor | None = None) -> Tensor:
        """phi_q: (B, H, T, D) -> (B, H, T, F), at least float32. `positions` broadcasts to (B, H, T)."""
        raise NotImplementedError

    def key_features(self, k: Tensor, positions: Tensor | None = None) -> tuple[Tensor, Tensor | None]:
        """phi_k and g: (B, H, S, D) -> (B, H, S, F) and (B, H, S), or None where g is zero everywhere."""
        raise NotImplementedError

    def blocks(self, batch: int, workspace: Workspace) -> BlockFeatures:
        """Features block by block with their gradients, for one pass over a batch of sequences."""
        return BlockFeatures(self, batch, workspace)

    def trained_parameters(self) -> list[Tensor]:
        """Those that need a gradient, in the order of `parameters()`."""
        return [p for p in self.parameters() if p.requires_grad]

    def check_length(self, length: int, of: str = "") -> None:
        """Raise where positions do not go so far; `of` says whose length it is."""
        if self.max_length is not None and length > self.max_length:
            raise ValueError(
                f"length {length}{of} exceeds max_length {self.max_length} of kernel {self.name!r}; "
                f"build it with max_length={length} or more"
            )

    def reset_parameters(self) -> None:
        """Draw the start anew; for kernels without parameters there is nothing to do."""

    def redraw_for_training(self) -> None:
        """Called once before each training forward; kernels with random features may draw them anew."""

    @torch.no_grad()
    def statistics(
        self, q: Tensor, k: Tensor, *, is_causal: bool = False, key_mask: Tensor | None = None
    ) -> KernelStatistics:
        """How healthy the weights of these queries and keys are. Quadratic in time, not in memory.

        Args:
            q: (B, H, T, D) with H a multiple of `num_heads`.
            k: (B, num_heads, S, D).
            is_causal: query i sees keys up to i.
            key_mask: (B, S) bool, True = attend.
        """
        return kernel_statistics(self, q, k, is_causal, key_mask)

    def extra_repr(self) -> str:
        return (
            f"num_heads={self.num_heads}, head_dim={self.head_dim}, num_features={self.num_features}, "
            f"policy={self.policy!r}, floor={self.floor:g}"
        )


def require_positive_int(argument: str, value: int) -> None:
    if isinstance(value, bool) or not isinstance(value, int):
        raise TypeError(f"{argument} {value!r} is not an integer; use a whole number of at least 1")
    if value < 1:
        raise ValueError(f"{argument} {value} is too small; use at least 1")


def require_count(argument: str, value: int) -> None:
    if isinstance(value, bool) or not isinstance(value, int):
        raise TypeError(f"{argument} {value!r} is not an integer; use a whole number of at least 0")
    if value < 0:
        raise ValueError(f"{argument} {value} is negative; use at least 0")


def require_positive(argument: str, value: float) -> None:
    if isinstance(value, bool) or not isinstance(value, int | float):
        raise TypeError(f"{argument} {value!r} is not a number; use one above zero")
    if not (math.isfinite(value) and value > 0):
        raise ValueError(f"{argument} {value} is not a positive number; use one above zero")


def check_floor(floor: float, policy: str) -> None:
    require_positive("floor", floor)
    if policy != "absolute" and floor > 1:
        raise ValueError(f"floor {floor:g} is above 1, the most that a row's sum can be; use less")


def require_finite(argument: str, value: float) -> None:
    if isinstance(value, bool) or not isinstance(value, int | float) or not math.isfinite(value):
        raise ValueError(f"{argument} {value!r} is not a finite number")


def require_bool(argument: str, value: bool) -> None:
    if not isinstance(value, bool):
        raise TypeError(f"{argument} {value!r} is not a bool; use True or False")


def require_even(argument: str, value: int) -> None:
    require_positive_int(argument, value)
    if value % 2:
        raise ValueError(f"{argument} {value} is odd; use an even number")


def bounded(x: Tensor) -> Tensor:
    """`x` in at least float32, within a range whose squares and sums are finite."""
    return at_least_float32(x).clamp(-LARGEST_INPUT, LARGEST_INPUT)


def exponentials(logs: Tensor, dim: int) -> tuple[Tensor, Tensor]:
    """e^logs in units of the largest along a dimension, and the logarithm of that, which no gradient passes.

    None is below e^-30, so that sums of products are positive in float32 too. Gradients take no notice of this limit.
    """
    size = logs.detach().amax(dim, keepdim=True)
    small = logs - size
    return torch.where(small > SMALLEST_LOG, small, SMALLEST_LOG + (small - small.detach())).exp(), size


def in_dtype_of(parameter: Tensor, x: Tensor) -> Tensor:
    """A parameter in the dtype that `x` is computed in."""
    return parameter.to(x.dtype)
