"""Attention states as layers of a transformers cache, so that stock `generate()` carries them.

A key-value cache grows with every token. A layer here holds what attention returned as its state instead: for
kernel attentions a few sums of fixed size, however long the context.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from torch import Tensor
from transformers.cache_utils import Cache, CacheLayerMixin


class RecurrentLayer(CacheLayerMixin):
    """One attention layer's state between calls, and how many positions it has seen.

    `update` only counts: keys and values come back as they went in, and attention folds them into `state`.
    """

    is_compileable = False
    is_croppable = False
    is_sliding = False
    supports_early_init = False

    def __init__(self, **_: Any) -> None:
        super().__init__()
        self.state: Any = None
        """A tuple of tensors with the batch first, such as `flexformer.State`; None before the first call."""
        self.length = 0
        """Positions seen, masked ones included."""

    def lazy_initialization(self, key_states: Tensor, value_states: Tensor) -> None:
        self.is_initialized = True

    def update(self, key_states: Tensor, value_states: Tensor, *args: Any, **kwargs: Any) -> tuple[Tensor, Tensor]:
        self.advance(key_states.shape[-2])
        return key_states, value_states

    def advance(self, positions: int) -> None:
        """Count positions that attention is about to fold into the state."""
        self.is_initialized = True
        self.length += positions

    def get_seq_length(self) -> int:
        return self.length

    def get_mask_sizes(self, query_length: int) -> tuple[int, int]:
        # As of a cache that holds everything: the two-dimensional mask covers all positions seen.
        return self.length + query_length, 0

    def get_max_length(self) -> int:
        return -1

    get_max_cache_shape = get_max_length  # its name in earlier releases of transformers

    def reset(self) -> None:
        self.state, self.length, self.is_initialized = None, 0, False

    def crop(self, tokens_to_remove: int) -> None:
        if tokens_to_remove != 0:
            raise NotImplementedError(
                f"a recurrent state cannot forget its last {abs(tokens_to_remove)} tokens, which assisted decoding and "
                "prompt lookup need; use greedy decoding, sampling or beam search"
            )

    def reorder_cache(self, beam_idx: Tensor) -> None:
        self._map(lambda x: x.index_select(0, beam_idx.to(x.device)))

    def batch_repeat_interleave(self, repeats: int) -> None:
        self._map(lambda x: x.repeat_interleave(repeats, dim=0))

    def batch_select_indices(self, indices: Tensor) -> None:
        self._map(lambda x: x[indices.to(x.device)])

    def offload(self) -> None:
        """Nothing to do: a state is small."""

    def prefetch(self) -> None:
        """Nothing to do: a state is not offloaded."""

    @property
    def nbytes(self) -> int:
        """Memory of the state."""
        return sum(x.numel() * x.element_size() for x in self.state or () if isinstance(x, Tensor))

    def _map(self, change: Callable[[Tensor], Tensor]) -> None:
        """Change all that has a batch; what has no dimension, such as a length, is common to it."""
        if self.state is not None:
            fields = (change(x) if isinstance(x, Tensor) and x.dim() else x for x in self.state)
            self.state = type(self.state)(*fields)


class RecurrentCache(Cache):
    """A cache of `RecurrentLayer`s alone, made as layers ask for them."""

    def __init__(self) -> None:
        super().__init__(layer_class_to_replicate=RecurrentLayer)


def recurrent_layer(cache: Cache, index: int) -> RecurrentLayer:
    """The recurrent layer at `index` of any cache; a layer that holds nothing yet gives way to one.

    `generate()` and models make caches for keys and values. Replaced layer by layer, at first use, they keep the
    layers of attentions that do need keys and values.
    """
    if not isinstance(cache, Cache):
        raise TypeError(f"cache is a {type(cache).__name__}; pass a transformers Cache")
    if not hasattr(cache, "layers"):
        raise TypeError(f"cache {type(cache).__name__} has no layers; an encoder-decoder cache holds two that have")
    while len(cache.layers) <= index and cache.layer_class_to_replicate is not None:
        cache.layers.append(cache.layer_class_to_replicate())
    if index >= len(cache.layers):
        raise ValueError(
            f"cache has {len(cache.layers)} layers, none at index {index}; make it from the model's config"
        )
    layer = cache.layers[index]
    if not isinstance(layer, RecurrentLayer):
        if any(hasattr(layer, name) for name in ("update_conv_state", "update_indexer")):
            raise ValueError(
                f"cache keeps more than keys and values at layer {index} ({type(layer).__name__}), which a state "
                "cannot stand in for; convert the other layers, or use_cache=False"
            )
        seen = int(layer.get_seq_length()) if isinstance(layer, CacheLayerMixin) and layer.is_initialized else 0
        if seen:
            raise ValueError(
                f"cache holds keys and values of {seen} tokens at layer {index}, which attention with a state of fixed "
                "size cannot use; start with an empty cache"
            )
        layer = cache.layers[index] = RecurrentLayer()
    return layer


def state_bytes(cache: Cache) -> int:
    """Memory of what a cache holds: states, or keys and values."""
    total = 0
    for layer in cache.layers:
        held = (getattr(layer, "keys", None), getattr(layer, "values", None))
        total += getattr(layer, "nbytes", None) or sum(x.nbytes for x in held if x is not None)
    return total
