"""Plots. matplotlib is imported when one is drawn."""

from .bench import plot_of

__all__ = ["plot_of"]
