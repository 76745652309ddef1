"""How well predictions go with what is true, by the measures GLUE reports."""

from __future__ import annotations

import numpy as np


def matthews(predictions: np.ndarray, labels: np.ndarray) -> float:
    """Matthews correlation of two-valued predictions and labels (N,); 0 where either has one value only."""
    predictions, labels = np.asarray(predictions) > 0, np.asarray(labels) > 0
    true_positive, true_negative = np.sum(predictions & labels), np.sum(~predictions & ~labels)
    false_positive, false_negative = np.sum(predictions & ~labels), np.sum(~predictions & labels)
    sides = (true_positive + false_positive, true_positive + false_negative)
    others = (true_negative + false_positive, true_negative + false_negative)
    scale = np.sqrt(np.prod([float(n) for n in (*sides, *others)]))
    difference = float(true_positive) * float(true_negative) - float(false_positive) * float(false_negative)
    return difference / float(scale) if scale > 0 else 0.0


def pearson(x: np.ndarray, y: np.ndarray) -> float:
    """Linear correlation of two series (N,); 0 where either is constant."""
    a, b = (np.asarray(series, np.float64) - np.mean(series, dtype=np.float64) for series in (x, y))
    scale = np.sqrt(np.sum(a * a) * np.sum(b * b))
    return float(np.sum(a * b) / scale) if scale > 0 else 0.0


def spearman(x: np.ndarray, y: np.ndarray) -> float:
    """Correlation of the ranks of two series (N,); equal values share the mean of their ranks."""
    return pearson(_ranks(np.asarray(x)), _ranks(np.asarray(y)))


def _ranks(values: np.ndarray) -> np.ndarray:
    _, place, count = np.unique(values, return_inverse=True, return_counts=True)
    last = np.cumsum(count)
    return (last - (count - 1) / 2)[place]
