"""Attention whose cost grows linearly with length and whose similarity function is learned.

Queries, keys and values are (B, H, T, D) everywhere: batch, heads, tokens, width of one head. Keys and values
may have their own number of heads and, in cross attention, their own length S. Modules take and return
(B, T, E) with E = H * D.

Names resolve when first used: `import flexformer` costs next to nothing and the core needs torch alone.
"""

from __future__ import annotations

import importlib
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from flexformer import attention, kernels, ops
    from flexformer import models as models
    from flexformer import parallel as parallel
    from flexformer import tasks as tasks
    from flexformer import training as training
    from flexformer.attention import ATTENTIONS, MultiheadAttention, parameter_groups
    from flexformer.convert import convert, extend_positions, load, load_adapter, restore, save_adapter
    from flexformer.ops import State, linear_attention, reference_attention

__version__ = "0.1.0"

__all__ = [
    "ATTENTIONS",
    "MultiheadAttention",
    "State",
    "__version__",
    "attention",
    "convert",
    "extend_positions",
    "kernels",
    "linear_attention",
    "load",
    "load_adapter",
    "ops",
    "parameter_groups",
    "reference_attention",
    "restore",
    "save_adapter",
]

_ROOMS = frozenset({"attention", "convert", "distill", "kernels", "models", "ops", "parallel", "tasks", "training"})
_HOMES = {
    "ATTENTIONS": "flexformer.attention",
    "MultiheadAttention": "flexformer.attention",
    "State": "flexformer.ops",
    "extend_positions": "flexformer.convert",
    "linear_attention": "flexformer.ops",
    "load": "flexformer.convert",
    "load_adapter": "flexformer.convert",
    "parameter_groups": "flexformer.attention",
    "reference_attention": "flexformer.ops",
    "restore": "flexformer.convert",
    "save_adapter": "flexformer.convert",
}


def __getattr__(name: str) -> Any:
    if name in _ROOMS:
        return importlib.import_module(f"flexformer.{name}")
    if name in _HOMES:
        value = getattr(importlib.import_module(_HOMES[name]), name)
        globals()[name] = value  # the next access finds it without coming here
        return value
    raise AttributeError(f"module 'flexformer' has no attribute {name!r}; dir(flexformer) lists what it has")


def __dir__() -> list[str]:
    return sorted({*globals(), *__all__, *_ROOMS})
