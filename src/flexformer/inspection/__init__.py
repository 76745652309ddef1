"""Looking at kernels that have learned: spectra, curves, attention on a text, two checkpoints side by side."""

from .checkpoint import Checkpoint, CheckpointError, load

__all__ = ["Checkpoint", "CheckpointError", "load"]
