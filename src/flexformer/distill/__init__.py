"""Attention-weight distillation, and fine-tuning of what was converted."""

from .distiller import Distiller
from .fidelity import fidelity
from .job import DistillJob
from .loss import LossOptions, compare
from .options import DistillOptions, FinetuneOptions, GlueOptions, KernelOptions, LoraOptions, TextOptions
from .report import Findings, Report

__all__ = [
    "DistillJob",
    "DistillOptions",
    "Distiller",
    "Findings",
    "FinetuneOptions",
    "GlueOptions",
    "KernelOptions",
    "LoraOptions",
    "LossOptions",
    "Report",
    "TextOptions",
    "compare",
    "fidelity",
]
