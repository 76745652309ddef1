"""A kernel with the tensors of an earlier moment: a backward pass that computes features anew needs those of its
forward pass, whatever the kernel has been given since.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING, TypeVar

from torch import Tensor, nn
from torch.nn.utils.parametrize import is_parametrized

if TYPE_CHECKING:
    from .base import Kernel

AnyModule = TypeVar("AnyModule", bound=nn.Module)


def named_tensors(kernel: Kernel) -> dict[str, Tensor]:
    """Parameters and buffers, one that has several names under each of them."""
    parameters = kernel.named_parameters(remove_duplicate=False)
    return dict(parameters) | dict(kernel.named_buffers(remove_duplicate=False))


def holding(kernel: AnyModule, tensors: Mapping[str, Tensor], prefix: str = "") -> AnyModule:
    """A stand-in for the kernel that has other parameters and buffers, by name.

    The kernel itself is not touched: other threads may compute with it meanwhile.
    """
    twin = kernel.__new__(type(kernel))
    own = vars(twin)
    own.update(vars(kernel))
    for kind in ("_parameters", "_buffers"):
        own[kind] = {name: tensors.get(prefix + name, x) for name, x in own[kind].items()}
    own["_modules"] = {
        name: part and holding(part, tensors, f"{prefix}{name}.") for name, part in kernel._modules.items()
    }
    return twin


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
