"""What similarity is: attention kernels as small objects, by name.

    kernel = flexformer.kernels.build("flexformer-n", num_heads=8, head_dim=64)

A kernel from elsewhere joins with `@register("name")` on a subclass of `Kernel`.
"""

from . import (  # noqa: F401  (they register themselves)
    complex_spectrum,
    cosformer,
    elu,
    hedgehog,
    polaformer,
    random,
    spectral,
)
from .base import Kernel
from .policy import POLICIES
from .registry import build, conversion_options, names, options, register
from .statistics import KernelStatistics
from .weights import attention_weights

__all__ = [
    "POLICIES",
    "Kernel",
    "KernelStatistics",
    "attention_weights",
    "build",
    "conversion_options",
    "names",
    "options",
    "register",
]
