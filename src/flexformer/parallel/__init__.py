"""One model on several processes: sequences divided over ranks, gradients added up, ranks that are gone noticed."""

from ..ops.split import Split, sequence_parallel
from .gradients import sum_gradients

__all__ = ["Split", "sequence_parallel", "sum_gradients"]
