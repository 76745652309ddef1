"""What the groups of options have in common.

Dataclasses like those that take them over: the command line shows options of pure dataclasses one by one.
"""

from __future__ import annotations

from dataclasses import asdict, dataclass, is_dataclass
from typing import Any, TypeVar, get_type_hints

Own = TypeVar("Own", bound="Plain")


@dataclass(frozen=True)
class Plain:
    """A dataclass of options, some of them groups that are dataclasses themselves, from and to plain values."""

    def as_dict(self) -> dict[str, Any]:
        """Plain values, for JSON and YAML."""
        return asdict(self)

    @classmethod
    def from_dict(cls: type[Own], values: dict[str, Any]) -> Own:
        """The inverse of `as_dict`; unknown keys raise."""
        groups: dict[str, Any] = {name: hint for name, hint in get_type_hints(cls).items() if is_dataclass(hint)}
        return cls(**{key: groups[key](**value) if key in groups else value for key, value in values.items()})


@dataclass(frozen=True)
class Limited:
    """Options with a `train_limit`, a `validation_limit` and perhaps a `test_limit`."""

    def limit(self, split: str) -> int | None:
        """How many examples of a split are read; None for all."""
        limit: int | None = getattr(self, f"{split}_limit")
        return limit
