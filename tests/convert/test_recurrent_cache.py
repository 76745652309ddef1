"""The cache layer that holds a state."""

from __future__ import annotations

import pytest
import torch
from transformers import DynamicCache, EncoderDecoderCache

from flexformer import State
from flexformer.attention import SoftmaxState
from flexformer.models.cache import RecurrentCache, RecurrentLayer, recurrent_layer


def layer_with_state(batch=3):
    layer = RecurrentLayer()
    layer.update(torch.zeros(batch, 2, 5, 4), torch.zeros(batch, 2, 5, 4))
    layer.state = State(
        S=torch.randn(batch, 2, 6, 4),
        z=torch.randn(batch, 2, 6),
        w=torch.rand(batch, 2),
        m=torch.randn(batch, 2),
        length=torch.tensor(5),
    )
    return layer


def test_update_counts_and_returns_what_it_got():
    layer, k = RecurrentLayer(), torch.randn(1, 2, 3, 4)
    assert layer.update(k, k)[0] is k
    assert (layer.get_seq_length(), layer.get_mask_sizes(4), layer.get_max_length()) == (3, (7, 0), -1)


@pytest.mark.parametrize(
    ("change", "rows"),
    [
        (lambda layer: layer.reorder_cache(torch.tensor([2, 0, 0])), [2, 0, 0]),
        (lambda layer: layer.batch_repeat_interleave(2), [0, 0, 1, 1, 2, 2]),
        (lambda layer: layer.batch_select_indices(torch.tensor([1])), [1]),
    ],
    ids=["reorder", "repeat", "select"],
)
def test_batch_of_a_state_is_rearranged(change, rows):
    layer = layer_with_state()
    before = layer.state
    change(layer)
    for name in ("S", "z", "w", "m"):
        assert torch.equal(getattr(layer.state, name), getattr(before, name)[rows])
    assert layer.state.length == 5
    assert layer.get_seq_length() == 5


def test_states_with_missing_fields_are_rearranged_too():
    layer = RecurrentLayer()
    layer.state = SoftmaxState(torch.randn(2, 1, 3, 4), torch.randn(2, 1, 3, 4), None)
    layer.reorder_cache(torch.tensor([1, 1]))
    assert layer.state.key_mask is None


def test_empty_layer_can_be_rearranged_and_reset():
    layer = RecurrentLayer()
    layer.reorder_cache(torch.tensor([0]))
    layer = layer_with_state()
    layer.reset()
    assert (layer.state, layer.get_seq_length(), layer.is_initialized, layer.nbytes) == (None, 0, False, 0)


def test_state_cannot_forget():
    layer = layer_with_state()
    layer.crop(0)
    with pytest.raises(NotImplementedError, match="cannot forget its last 2 tokens"):
        layer.crop(-2)


def test_empty_layers_of_any_cache_give_way():
    for cache in (DynamicCache(), RecurrentCache()):
        layer = recurrent_layer(cache, 1)
        assert len(cache.layers) == 2
        assert cache.layers[1] is layer is recurrent_layer(cache, 1)


def test_filled_layers_do_not_give_way():
    cache = DynamicCache()
    cache.update(torch.zeros(1, 2, 3, 4), torch.zeros(1, 2, 3, 4), 0)
    with pytest.raises(ValueError, match="keys and values of 3 tokens at layer 0"):
        recurrent_layer(cache, 0)


def test_what_is_no_cache_of_layers_is_refused():
    with pytest.raises(TypeError, match="cache is a tuple"):
        recurrent_layer((), 0)
    with pytest.raises(TypeError, match="encoder-decoder cache"):
        recurrent_layer(EncoderDecoderCache(DynamicCache(), DynamicCache()), 0)
