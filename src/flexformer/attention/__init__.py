"""Attention modules: one interface for kernel attentions and for those that are not kernels."""

from .mechanism import Mechanism
from .multihead import MultiheadAttention
from .parameters import parameter_groups
from .registry import ATTENTIONS, build, options
from .softmax import SoftmaxState

__all__ = [
    "ATTENTIONS",
    "Mechanism",
    "MultiheadAttention",
    "SoftmaxState",
    "build",
    "options",
    "parameter_groups",
]
