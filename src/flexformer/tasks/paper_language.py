"""The paper's numbers on language modelling, as data."""

from __future__ import annotations

from typing import Literal, TypeAlias

Size: TypeAlias = Literal["small", "big"]

WIKITEXT_103_WORDS = 267_744
"""of the vocabulary: 267,733 words, four special symbols, and seven to fill up to a multiple of 8"""

PERPLEXITY: dict[str, dict[Size, tuple[tuple[float, float], tuple[float, float]]]] = {
    "softmax": {"small": ((30.0, 0.06), (31.3, 0.07)), "big": ((22.6, 0.03), (23.8, 0.06))},
    "linear": {"small": ((34.1, 0.12), (35.6, 0.10)), "big": ((27.9, 0.08), (29.2, 0.08))},
    "rfa": {"small": ((33.8, 0.11), (35.3, 0.11)), "big": ((26.7, 0.09), (28.0, 0.10))},
    "cosformer": {"small": ((32.8, 0.09), (34.2, 0.11)), "big": ((24.9, 0.05), (26.2, 0.06))},
    "hedgehog": {"small": ((31.7, 0.08), (33.2, 0.05)), "big": ((23.0, 0.06), (24.2, 0.07))},
    "polaformer": {"small": ((31.5, 0.08), (32.9, 0.08)), "big": ((23.1, 0.03), (24.3, 0.02))},
    "flexformer-s": {"small": ((31.1, 0.06), (32.7, 0.08)), "big": ((22.2, 0.02), (23.4, 0.04))},
    "flexformer-n": {"small": ((30.3, 0.06), (31.6, 0.07)), "big": ((21.2, 0.03), (22.3, 0.04))},
}
"""Attention -> size -> (development, test), each mean and standard deviation over three seeds, on WikiText-103."""

ADDED_PARAMETERS: dict[str, dict[Size, tuple[str, float]]] = {
    "softmax": {"small": ("41M", 0.0), "big": ("247M", 0.0)},
    "hedgehog": {"small": ("41M", 0.49), "big": ("248M", 0.43)},
    "polaformer": {"small": ("43M", 3.83), "big": ("262M", 6.74)},
    "flexformer-s": {"small": ("41M", 0.49), "big": ("248M", 0.43)},
    "flexformer-n": {"small": ("42M", 0.97), "big": ("249M", 0.86)},
}
"""Attention -> size -> (total, increase over softmax in per cent), as printed."""
