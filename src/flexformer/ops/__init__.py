"""How attention over features is computed."""

from .linear import linear_attention
from .reference import attention_weights, reference_attention
from .state import State, merge

__all__ = ["State", "attention_weights", "linear_attention", "merge", "reference_attention"]
