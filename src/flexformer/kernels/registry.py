"""Kernels by name, open to kernels from elsewhere."""

from __future__ import annotations

import inspect
from collections.abc import Callable
from typing import Any, TypeVar

from .base import Kernel

_KERNELS: dict[str, type[Kernel]] = {}
# What `MultiheadAttention` takes itself: an option of that name would not reach the kernel.
TAKEN = frozenset(
    {"embed_dim", "attention", "is_causal", "num_kv_heads", "context_dim", "bias", "dropout", "device", "dtype"}
)

KernelType = TypeVar("KernelType", bound=type[Kernel])


def register(name: str) -> Callable[[KernelType], KernelType]:
    """Make a kernel class buildable by `name`, here and in `MultiheadAttention`.

    The class must take `num_heads` and `head_dim`; every further argument is an option and has a default.
    """
    if not isinstance(name, str) or not name:
        raise ValueError(f"name {name!r} is not a kernel name; use a non-empty string")

    def add(kernel_class: KernelType) -> KernelType:
        if not (isinstance(kernel_class, type) and issubclass(kernel_class, Kernel)):
            raise TypeError(f"{kernel_class!r} is not a subclass of flexformer.kernels.Kernel")
        for option in inspect.signature(kernel_class).parameters:
            if option in TAKEN:
                raise ValueError(
                    f"{kernel_class.__name__} has an option {option!r}, which MultiheadAttention has too; rename it"
                )
        known = _KERNELS.get(name)
        again = known is not None and (known.__module__, known.__qualname__) == (
            kernel_class.__module__,
            kernel_class.__qualname__,
        )
        if known is not None and not again:  # the same class once more is a notebook cell run again
            raise ValueError(f"name {name!r} is taken by {_KERNELS[name].__name__}; choose another")
        _KERNELS[name] = kernel_class
        kernel_class.name = name
        return kernel_class

    return add


def names() -> tuple[str, ...]:
    """All registered kernels, in the order they were registered."""
    return tuple(_KERNELS)


def options(name: str) -> dict[str, Any]:
    """The options of a kernel with their defaults."""
    parameters = inspect.signature(_lookup(name)).parameters
    return {key: p.default for key, p in parameters.items() if key not in ("num_heads", "head_dim")}


def conversion_options(name: str) -> dict[str, Any]:
    """Options to start with where softmax attention that was trained is to be approximated."""
    return dict(_lookup(name).conversion_options)


def build(name: str, num_heads: int, head_dim: int, **kernel_options: Any) -> Kernel:
    """Build a kernel.

    Args:
        name: a registered name, see `names()`.
        num_heads: heads of the keys.
        head_dim: width of one head.
        **kernel_options: the kernel's own options, see `options(name)`.
    """
    known = options(name)
    for option in kernel_options:
        if option not in known:
            takes = ", ".join(known) or "none"
            raise TypeError(f"option {option!r} is unknown to kernel {name!r}; its options are: {takes}")
    return _lookup(name)(num_heads, head_dim, **kernel_options)


def _lookup(name: str) -> type[Kernel]:
    try:
        return _KERNELS[name]
    except (KeyError, TypeError):
        raise ValueError(f"kernel {name!r} is unknown; use one of {', '.join(_KERNELS)}") from None
