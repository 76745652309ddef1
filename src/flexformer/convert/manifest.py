"""The JSON file of an adapter: what is in it, and reading it without trusting it."""

from __future__ import annotations

import hashlib
import json
import re
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

FILE = "flexformer_adapter.json"
FORMAT = "flexformer-adapter"
VERSION = 1
CHECKSUM = "checksum"
"""Of all other fields; files without one are read too, as people may write them."""
LARGEST_FILE = 64 * 2**20
MOST_POSITIONS = 2**20

POSITIONS = "positions"
_INTEGER, _NUMBER, _TEXT, _FLAG = (int,), (int, float), (str,), (bool,)


@dataclass(frozen=True)
class Base:
    """The model that the kernels were made for."""

    name: str | None
    """As `from_pretrained` got it, a folder by its whole path; None if the model was not loaded."""
    revision: str | None
    """The commit on the hub."""
    model_type: str
    geometry: list[dict[str, int | float | bool]]
    """Of all attention modules, see `Site.geometry`."""
    sample: list[dict[str, list[float]]]
    """A few weights of each attention module by parameter, to know the model by."""
    positions: int | None = None
    """Tokens that its positions were extended to; not in the file where they were not."""


@dataclass(frozen=True)
class Manifest:
    """How a model was converted, and which file holds the kernels."""

    attention: str
    options: dict[str, Any]
    layers: list[int]
    base: Base
    sha256: str
    """Of the safetensors file, which is named after it."""
    size: int
    """Of the safetensors file, in bytes."""
    flexformer_version: str

    @property
    def tensor_file(self) -> str:
        return f"flexformer_adapter-{self.sha256[:16]}.safetensors"

    def to_json(self) -> str:
        content = {"format": FORMAT, "format_version": VERSION, **asdict(self)}
        if self.base.positions is None:
            del content["base"]["positions"]
        content[CHECKSUM] = _checksum(content)
        return json.dumps(content, indent=1, allow_nan=False) + "\n"


def read(folder: Path) -> Manifest:
    """The manifest in a folder, every field checked.

    Raises:
        ValueError: it is not what `Manifest.to_json` writes; the message says what is wrong with which file.
    """
    path = folder / FILE
    if not path.is_file():
        raise FileNotFoundError(f"{folder} is not an adapter: it has no {FILE}; flexformer.save_adapter writes one")
    if path.stat().st_size > LARGEST_FILE:
        raise ValueError(f"{path} has {path.stat().st_size} bytes, more than any adapter needs ({LARGEST_FILE})")
    try:
        content = json.loads(path.read_text(encoding="utf-8"))
    except (ValueError, RecursionError) as error:
        raise ValueError(f"{path} is damaged: it is not JSON ({error})") from None
    try:
        return _parse(content)
    except _ManifestError as fault:
        raise ValueError(f"{path} {fault}") from None


class _ManifestError(Exception):
    """What is wrong with a manifest."""


def _parse(content: Any) -> Manifest:
    if not isinstance(content, dict) or content.get("format") != FORMAT:
        raise _ManifestError(f"is not a manifest of an adapter: its format is not {FORMAT!r}")
    version = content.get("format_version")
    if version != VERSION or isinstance(version, bool):
        made = content.get("flexformer_version")
        raise _ManifestError(
            f"has format version {version!r}, written by flexformer {made!r}; this one reads version {VERSION}, so use "
            "the flexformer that wrote it or a newer one"
        )
    checksum = content.pop(CHECKSUM, None)
    _keys(content, {"format", "format_version", *Manifest.__dataclass_fields__}, "")
    base = _field(content, "base", (dict,))
    _keys({POSITIONS: None, **base}, set(Base.__dataclass_fields__), "base.")
    digest = _field(content, "sha256", _TEXT)
    if not re.fullmatch(r"[0-9a-f]{64}", digest):
        raise _ManifestError("is damaged: sha256 is not 64 hexadecimal digits")
    layers = _items(content, "layers", _INTEGER)
    if sorted(set(layers)) != layers or any(i < 0 for i in layers):
        raise _ManifestError(f"is damaged: layers {layers} are not rising indices")
    if len(_items(base, "sample", (dict,))) != len(_items(base, "geometry", (dict,))):
        raise _ManifestError("is damaged: base.sample and base.geometry are not of as many layers")
    found = Manifest(
        attention=_field(content, "attention", _TEXT),
        options=_field(content, "options", (dict,)),
        layers=layers,
        base=Base(
            name=_field(base, "name", (str, type(None))),
            revision=_field(base, "revision", (str, type(None))),
            model_type=_field(base, "model_type", _TEXT),
            geometry=[_geometry(entry) for entry in _items(base, "geometry", (dict,))],
            sample=[_sample(entry) for entry in _items(base, "sample", (dict,))],
            positions=_positions(base[POSITIONS]) if POSITIONS in base else None,
        ),
        sha256=digest,
        size=_field(content, "size", _INTEGER),
        flexformer_version=_field(content, "flexformer_version", _TEXT),
    )
    if checksum is not None and checksum != _checksum(content):
        raise _ManifestError("is damaged: its fields do not have the checksum they were written with")
    return found


def _checksum(content: dict[str, Any]) -> str:
    return hashlib.sha256(json.dumps(content, sort_keys=True).encode()).hexdigest()


def _positions(value: Any) -> int:
    if not 0 < _checked(value, _INTEGER, "base.positions") <= MOST_POSITIONS:
        raise _ManifestError(f"is damaged: base.positions {value} is not in 1..{MOST_POSITIONS}")
    return int(value)


def _geometry(entry: dict[str, Any]) -> dict[str, int | float | bool]:
    kinds = {
        "num_heads": _INTEGER,
        "num_kv_heads": _INTEGER,
        "head_dim": _INTEGER,
        "scaling": _NUMBER,
        "is_causal": _FLAG,
    }
    _keys(entry, set(kinds), "base.geometry.")
    return {name: _field(entry, name, kind) for name, kind in kinds.items()}


def _sample(entry: dict[str, Any]) -> dict[str, list[float]]:
    try:
        return {name: [float(x) for x in _items(entry, name, _NUMBER)] for name in entry}
    except OverflowError:
        raise _ManifestError("is damaged: base.sample has a number that no weight can be") from None


def _keys(mapping: dict[str, Any], right: set[str], where: str) -> None:
    for name in sorted(right - mapping.keys()):
        raise _ManifestError(f"is damaged: {where}{name} is missing")
    for name in sorted(mapping.keys() - right):
        raise _ManifestError(f"is damaged: {where}{name} is unknown")


def _field(mapping: dict[str, Any], name: str, kinds: tuple[type, ...]) -> Any:
    return _checked(mapping[name], kinds, name)


def _items(mapping: dict[str, Any], name: str, kinds: tuple[type, ...]) -> list[Any]:
    return [_checked(item, kinds, f"an entry of {name}") for item in _field(mapping, name, (list,))]


def _checked(value: Any, kinds: tuple[type, ...], what: str) -> Any:
    if not isinstance(value, kinds) or (isinstance(value, bool) and bool not in kinds):
        raise _ManifestError(f"is damaged: {what} is a {type(value).__name__}")
    return value
