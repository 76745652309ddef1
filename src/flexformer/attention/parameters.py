"""Which parameters weight decay may touch."""

from __future__ import annotations

from typing import Any

from torch import nn

from ..kernels import Kernel


def parameter_groups(model: nn.Module, weight_decay: float = 0.0) -> list[dict[str, Any]]:
    """Optimiser groups in which kernel parameters never decay.

    Decay would pull frequencies and tau towards zero, which is not a neutral kernel but a different one.

    Args:
        model: any module.
        weight_decay: for all parameters that belong to no kernel.

    Returns:
        Two groups for a torch optimiser, the second without decay; parameters that need no gradient are left out.
    """
    if not isinstance(weight_decay, int | float) or isinstance(weight_decay, bool):
        raise TypeError(f"weight_decay {weight_decay!r} is not a number; use zero or more")
    if not weight_decay >= 0:
        raise ValueError(f"weight_decay {weight_decay} is negative; use zero or more")
    kernels = [module for module in model.modules() if isinstance(module, Kernel)]
    undecayed = {id(p) for kernel in kernels for p in kernel.parameters()}
    trained = [p for p in model.parameters() if p.requires_grad]
    return [
        {"params": [p for p in trained if id(p) not in undecayed], "weight_decay": weight_decay},
        {"params": [p for p in trained if id(p) in undecayed], "weight_decay": 0.0},
    ]
