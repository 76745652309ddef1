"""Attention states set aside: to go back to, to try several continuations of one text, to go on another day.

A state cannot forget its last tokens, as a cache of keys can. A snapshot taken before them does the same. Taking one
costs nothing: states are replaced, never changed.
"""

from __future__ import annotations

import json
from os import PathLike
from pathlib import Path
from typing import Any, NamedTuple

import torch
from safetensors import SafetensorError, safe_open
from safetensors.torch import save as serialise
from torch import Tensor
from transformers.cache_utils import Cache

from ..attention import SoftmaxState
from ..files import write_bytes
from ..ops import State
from .cache import RecurrentCache, RecurrentLayer, recurrent_layer

FORMAT = "flexformer-states-1"
_KINDS: dict[str, type[Any]] = {"State": State, "SoftmaxState": SoftmaxState}


class Snapshot(NamedTuple):
    """What a cache held after some tokens."""

    states: tuple[Any, ...]
    """one for each layer"""
    length: int
    """positions seen, masked ones included"""

    @property
    def nbytes(self) -> int:
        """Memory of the states."""
        return sum(x.nbytes for state in self.states for x in state if isinstance(x, Tensor))


def take(cache: Cache) -> Snapshot:
    """The states that a cache holds now.

    Args:
        cache: of a `CausalLM`, or of a model converted as a whole.
    """
    if not isinstance(cache, Cache):
        raise TypeError(f"cache is a {type(cache).__name__}; pass a transformers Cache")
    layers = [layer for layer in cache.layers if isinstance(layer, RecurrentLayer) and layer.state is not None]
    if not layers or len(layers) != len(cache.layers):
        raise ValueError(f"cache has states in {len(layers)} of {len(cache.layers)} layers; snapshots need them in all")
    return Snapshot(tuple(layer.state for layer in layers), layers[0].length)


def restore(snapshot: Snapshot, cache: Cache | None = None) -> Cache:
    """A cache that goes on from a snapshot.

    Args:
        snapshot: stays as it is and can be used again.
        cache: takes it over; a new one by default.
    """
    cache = RecurrentCache() if cache is None else cache
    if len(cache.layers) > len(snapshot.states):
        raise ValueError(f"cache has {len(cache.layers)} layers and the snapshot {len(snapshot.states)}")
    for index, state in enumerate(snapshot.states):
        layer = recurrent_layer(cache, index)
        layer.reset()
        layer.advance(snapshot.length)
        layer.state = state
    return cache


def save(snapshot: Snapshot, path: str | PathLike[str]) -> None:
    """Write a snapshot as safetensors, whole or not at all."""
    tensors: dict[str, Tensor] = {}
    kinds: list[str] = []
    for index, state in enumerate(snapshot.states):
        kinds.append(type(state).__name__)
        if kinds[-1] not in _KINDS:
            raise TypeError(f"a state of type {kinds[-1]} cannot be saved; known are {', '.join(_KINDS)}")
        fields = state._asdict() | ({"length": None} if kinds[-1] == "State" else {})
        # Copies: layers may share a mask, and no two tensors in a file may share memory.
        tensors |= {
            f"{index}.{name}": x.clone(memory_format=torch.contiguous_format)
            for name, x in fields.items()
            if x is not None
        }
    facts = {"format": FORMAT, "length": str(snapshot.length), "kinds": json.dumps(kinds)}
    write_bytes(Path(path), serialise(tensors, facts))


def load(path: str | PathLike[str], device: str = "cpu") -> Snapshot:
    """Read what `save` wrote.

    Args:
        path: the file.
        device: where the states go; the model's.
    """
    try:
        with safe_open(str(path), "pt", device=device) as file:
            facts = file.metadata() or {}
            tensors = {name: file.get_tensor(name) for name in file.keys()}  # noqa: SIM118  (no mapping)
    except SafetensorError as error:
        raise ValueError(f"{path} is not a whole safetensors file: {error}") from error
    if facts.get("format") != FORMAT:
        raise ValueError(f"{path} holds no attention states: its format is {facts.get('format')}, not {FORMAT}")
    states, length = [], int(facts["length"])
    for index, kind in enumerate(json.loads(facts["kinds"])):
        fields = dict.fromkeys(_KINDS[kind]._fields)
        fields |= {name.partition(".")[2]: x for name, x in tensors.items() if name.partition(".")[0] == str(index)}
        if kind == "State":
            fields["length"] = tensors[f"{index}.z"].new_tensor(length).long()
        states.append(_KINDS[kind](**fields))
    return Snapshot(tuple(states), length)
