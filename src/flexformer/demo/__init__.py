"""A few minutes that show what this package is about: four small language models, side by side, from text to report."""

from .plan import ATTENTIONS, Plan
from .show import Outcome, run

__all__ = ["ATTENTIONS", "Outcome", "Plan", "run"]
