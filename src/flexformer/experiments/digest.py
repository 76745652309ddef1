"""What decides a result, in a form that is the same on every machine."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Mapping
from pathlib import PurePath
from typing import Any

from flexformer.distill.options import TEXT_PREFIX
from flexformer.training.record import IRRELEVANT, flat

# A preset's name says where values came from, not what they are.
LABELS = IRRELEVANT | {"preset"}
PLACES = ("base", "text", "adapter")
OWN_OPTIONS = ("kernel.options.", "model.attention_options.")
LENGTH = 16


def essentials(options: Mapping[str, Any]) -> dict[str, Any]:
    """Options by dotted name, without what does not change a result.

    What is off (None, False or empty) is left out: an option that is new, and off unless it is asked for, leaves old
    results valid. A kernel's own options are kept whatever they are, for their defaults may be on. Of places the last
    two parts are kept, because folders differ from machine to machine.
    """
    kept: dict[str, Any] = {}
    for name, value in flat(options).items():
        is_off = value is None or value is False or value in ("", [], {})
        if name in LABELS or (is_off and not name.startswith(OWN_OPTIONS)):
            continue
        is_place = name in PLACES or (name == "task" and value.startswith(TEXT_PREFIX))
        kept[name] = place(value) if is_place else value
    return kept


def digest(value: Any) -> str:
    """A short name for plain data."""
    text = json.dumps(value, sort_keys=True, separators=(",", ":"))
    return hashlib.sha256(text.encode()).hexdigest()[:LENGTH]


def place(path: str) -> str:
    """The last two parts of a path, or of a name on a hub; "text:" before it is kept."""
    prefix = TEXT_PREFIX if path.startswith(TEXT_PREFIX) else ""
    return prefix + "/".join(PurePath(path.removeprefix(prefix)).parts[-2:])
