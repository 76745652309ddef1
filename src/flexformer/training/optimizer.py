"""The optimiser of every run."""

from __future__ import annotations

import torch
from torch import nn

from ..attention import parameter_groups
from .options import OptimizerOptions

# Where torch updates all parameters in one pass over memory. On a CPU the plain loop takes as long as the backward pass
# of a small pretrained model: its vocabulary's rows are many and few of them are read in a batch.
FUSED_DEVICES = frozenset({"cpu", "cuda"})


def adamw(model: nn.Module, options: OptimizerOptions) -> torch.optim.AdamW:
    """AdamW for what is to be trained of a model; kernel parameters never decay."""
    groups = parameter_groups(model, options.weight_decay)
    devices = {p.device.type for group in groups for p in group["params"]}
    return torch.optim.AdamW(
        groups,
        lr=options.lr,
        betas=(options.beta1, options.beta2),
        eps=options.eps,
        fused=True if devices <= FUSED_DEVICES else None,
    )
