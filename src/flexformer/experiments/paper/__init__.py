"""Numbers that the paper prints, as data with their source; those of tasks stand in `flexformer.tasks.paper`."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import yaml

FOLDER = Path(__file__).parent


def printed(name: str) -> dict[str, Any]:
    """The numbers of a table or figure, as in its YAML file."""
    values: dict[str, Any] = yaml.safe_load((FOLDER / f"{name}.yaml").read_text(encoding="utf-8"))
    return values


def source(name: str) -> str:
    """Where the numbers stand, as a sentence."""
    return f"The paper's numbers: {printed(name)['source']}."
