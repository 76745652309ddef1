"""A kernel with the tensors of an earlier moment: a backward pass that computes features anew needs those of its
forward pass, whatever the kernel has been given since.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any

from torch import Tensor
from torch.nn.utils.parametrize import is_parametrized

if TYPE_CHECKING:
    from .base import Kernel


def named_tensors(kernel: Kernel) -> dict[str, Tensor]:
    """Parameters and buffers, one that has several names under each of them."""
    parameters = kernel.named_parameters(remove_duplicate=False)
    return dict(parameters) | dict(kernel.named_buffers(remove_duplicate=False))


@contextmanager
def holding(kernel: Kernel, tensors: Mapping[str, Tensor]) -> Iterator[None]:
    """The kernel with other parameters and buffers in the place of its own."""
    before: list[tuple[dict[str, Any], str, Any]] = []
    try:
        for name, tensor in tensors.items():
            path, _, leaf = name.rpartition(".")
            module = kernel.get_submodule(path)
            own: dict[str, Any] = module._parameters if leaf in module._parameters else module._buffers
            before.append((own, leaf, own[leaf]))
            own[leaf] = tensor
        yield
    finally:
        for own, leaf, mine in reversed(before):
            own[leaf] = mine


def can_be_held(kernel: Kernel) -> bool:
    """Whether it computes with its parameters and buffers themselves, as far as one can see.

    Not so where parameters are computed from others, as by parametrizations and pruning, and in the replicas of
    `nn.DataParallel`: what is computed with is then a plain attribute.
    """
    return not any(
        is_parametrized(each)
        or getattr(each, "_is_replica", False)
        or any(isinstance(value, Tensor) for value in vars(each).values())
        for each in kernel.modules()
    )
