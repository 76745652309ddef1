"""How attention over features is computed."""

from .linear import linear_attention
from .reference import reference_attention
from .state import State, merge

__all__ = ["State", "linear_attention", "merge", "reference_attention"]
