"""Packages that only parts of this one need, and how new they have to be."""

from __future__ import annotations

import re
from importlib.metadata import PackageNotFoundError, version

OLDEST = {"transformers": "5.20", "safetensors": "0.4.3", "accelerate": "1.1", "datasets": "3"}
"""Versions that work, as in the package's extras."""


def too_old(package: str) -> str | None:
    """What to tell a user whose version of a package does not do; None if it does, or is not installed."""
    try:
        found = version(package)
    except PackageNotFoundError:
        return None
    if package not in OLDEST or _numbers(found) >= _numbers(OLDEST[package]):
        return None
    return f"{package} {found} is too old; {OLDEST[package]} or newer is needed"


def _numbers(text: str) -> tuple[int, ...]:
    return tuple(int(part) for part in re.findall(r"\d+", text)[:3])
