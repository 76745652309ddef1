"""What similarity is: attention kernels as small objects, by name.

    kernel = flexformer.kernels.build("flexformer-n", num_heads=8, head_dim=64)

A kernel from elsewhere joins with `@register("name")` on a subclass of `Kernel`.
"""

from . import cosformer, elu, hedgehog, polaformer, random, spectral  # noqa: F401  (they register themselves)
from .base import Kernel
from .policy import POLICIES
from .registry import build, names, options, register
from .statistics import KernelStatistics
from .weights import attention_weights

__all__ = ["POLICIES", "Kernel", "KernelStatistics", "attention_weights", "build", "names", "options", "register"]
