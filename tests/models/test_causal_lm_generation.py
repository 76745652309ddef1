"""`generate()` on language models of our own: the same tokens from a state of fixed size as without any cache."""

from __future__ import annotations

import pytest
import torch
from safetensors.torch import save_file
from small_language_models import ADAPTIVE, CAUSAL, language_model, prompts
from transformers import DynamicCache, StaticCache

from flexformer import kernels
from flexformer.models import snapshots
from flexformer.models.cache import RecurrentCache, RecurrentLayer

NEW = 9
MODES = {
    "greedy": {"do_sample": False},
    "sampling": {"do_sample": True, "temperature": 1.3, "top_k": 20},
    "nucleus": {"do_sample": True, "top_p": 0.8},
    "beam": {"num_beams": 3, "do_sample": False},
    "beams returned": {"num_beams": 3, "num_return_sequences": 2, "do_sample": False},
    "several samples": {"do_sample": True, "num_return_sequences": 3},
}


def generate(model, **options):
    torch.manual_seed(7)
    return model.generate(**options, max_new_tokens=NEW, min_new_tokens=NEW)


@pytest.mark.parametrize("mode", MODES)
@pytest.mark.parametrize("attention", CAUSAL)
def test_state_gives_the_tokens_that_no_cache_gives(attention, mode):
    model, prompt = language_model(attention, **ADAPTIVE), prompts()
    found = generate(model, **prompt, **MODES[mode])
    assert found.shape[1] == 14 + NEW
    assert torch.equal(found, generate(model, **prompt, **MODES[mode], use_cache=False))


@pytest.mark.parametrize("attention", CAUSAL)
def test_left_padding_changes_nothing(attention):
    model, prompt = language_model(attention), prompts()
    padded = generate(model, **prompt, do_sample=False)[-1, 5:]
    alone = generate(model, input_ids=prompt["input_ids"][-1:, 5:], do_sample=False)
    assert torch.equal(padded, alone[0])


@pytest.mark.parametrize("vocabulary", ["tied", "adaptive"])
@pytest.mark.parametrize("attention", CAUSAL)
def test_logits_step_by_step_and_in_pieces_are_those_of_one_forward(attention, vocabulary):
    model = language_model(attention, **(ADAPTIVE if vocabulary == "adaptive" else {}))
    ids, mask = prompts(length=40).values()
    with torch.no_grad():
        whole = model(ids, mask, use_cache=False).logits
        for pieces in ([1] * 40, [17, 1, 22], [39, 1]):
            cache, found = RecurrentCache(), []
            for piece in pieces:
                start = cache.get_seq_length()
                end = start + piece
                found.append(model(ids[:, start:end], mask[:, :end], past_key_values=cache).logits)
            visible = mask[..., None].bool()
            torch.testing.assert_close(
                torch.cat(found, 1).masked_fill(~visible, 0), whole.masked_fill(~visible, 0), rtol=1e-4, atol=1e-4
            )


@pytest.mark.parametrize("size", [1, 5, 13])
def test_prompt_may_be_read_in_chunks(size):
    model, prompt = language_model(), prompts()
    chunked = generate(model, **prompt, do_sample=False, prefill_chunk_size=size)
    assert torch.equal(chunked, generate(model, **prompt, do_sample=False))


@pytest.mark.parametrize("make", [RecurrentCache, DynamicCache], ids=["recurrent", "dynamic"])
def test_any_empty_cache_can_be_passed_in(make):
    model, prompt = language_model(), prompts()
    cache = make()
    found = generate(model, **prompt, do_sample=False, past_key_values=cache)
    assert torch.equal(found, generate(model, **prompt, do_sample=False))
    assert cache.get_seq_length() == 14 + NEW - 1
    assert all(isinstance(layer, RecurrentLayer) for layer in cache.layers)


def test_static_cache_gives_way_to_states():
    model, prompt = language_model(), prompts()
    cache = StaticCache(config=model.config, max_cache_len=64)
    found = generate(model, **prompt, do_sample=False, past_key_values=cache)
    assert torch.equal(found, generate(model, **prompt, do_sample=False))


def test_next_turn_goes_on_from_the_cache_of_the_last():
    model, prompt = language_model(), prompts(batch=1, padding=0)
    first = generate(model, **prompt, do_sample=False, return_dict_in_generate=True)
    longer = torch.cat((first.sequences, torch.randint(3, 61, (1, 6))), dim=1)
    again = generate(model, input_ids=longer, do_sample=False, past_key_values=first.past_key_values)
    assert torch.equal(again, generate(model, input_ids=longer, do_sample=False, use_cache=False))


@pytest.mark.parametrize("attention", kernels.names())
def test_state_has_the_same_size_whatever_the_context(attention):
    model = language_model(attention)
    sizes = set()
    for length in (1, 17, 60):
        cache = model(torch.randint(3, 61, (2, length)), use_cache=True).past_key_values
        sizes.add(snapshots.take(cache).nbytes)
    assert len(sizes) == 1


def test_keys_and_values_of_softmax_grow():
    model = language_model("softmax")
    sizes = [snapshots.take(model(torch.randint(3, 61, (1, n))).past_key_values).nbytes for n in (10, 20)]
    assert sizes[1] == 2 * sizes[0]


@pytest.mark.parametrize("attention", CAUSAL)
def test_snapshot_takes_a_cache_back_in_memory_and_from_a_file(attention, tmp_path):
    model, ids = language_model(attention), prompts(padding=0)["input_ids"]
    cache = RecurrentCache()
    with torch.no_grad():
        model(ids[:, :8], past_key_values=cache)
        before = snapshots.take(cache)
        snapshots.save(before, tmp_path / "state.safetensors")
        expected = model(ids[:, 8:], past_key_values=cache).logits
        snapshots.restore(before, cache)
        assert cache.get_seq_length() == 8
        assert torch.equal(model(ids[:, 8:], past_key_values=cache).logits, expected)
        loaded = snapshots.restore(snapshots.load(tmp_path / "state.safetensors"))
        assert torch.equal(model(ids[:, 8:], past_key_values=loaded).logits, expected)
    assert [path.name for path in tmp_path.iterdir()] == ["state.safetensors"]


@pytest.mark.parametrize("attention", ["softmax", "flexformer-n"])
def test_snapshot_of_padded_texts_is_saved_too(attention, tmp_path):
    model, prompt = language_model(attention), prompts()
    with torch.no_grad():
        cache = model(**prompt, use_cache=True).past_key_values
        taken = snapshots.take(cache)
        snapshots.save(taken, tmp_path / "state.safetensors")
    for state, loaded in zip(taken.states, snapshots.load(tmp_path / "state.safetensors").states, strict=True):
        assert all(torch.equal(torch.as_tensor(x), torch.as_tensor(y)) for x, y in zip(state, loaded, strict=True))


def test_what_is_no_snapshot_is_refused(tmp_path):
    with pytest.raises(ValueError, match="states in 0 of 0 layers"):
        snapshots.take(RecurrentCache())
    save_file({"a": torch.zeros(1)}, tmp_path / "other.safetensors")
    with pytest.raises(ValueError, match="holds no attention states"):
        snapshots.load(tmp_path / "other.safetensors")
    (tmp_path / "half.safetensors").write_bytes(b"\x10\0\0")
    with pytest.raises(ValueError, match="not a whole safetensors file"):
        snapshots.load(tmp_path / "half.safetensors")


def test_assisted_decoding_is_refused():
    model, prompt = language_model(), prompts(batch=1, padding=0)
    with pytest.raises(ValueError, match="assisted generation is not supported with stateful models"):
        model.generate(**prompt, prompt_lookup_num_tokens=2, max_new_tokens=4)


@pytest.mark.parametrize("attention", ["flexformer-n", "softmax", "linear"])
def test_model_goes_on_beyond_the_length_it_was_trained_on(attention):
    model, prompt = language_model(attention), prompts(batch=1, length=60, padding=0)
    assert generate(model, **prompt, do_sample=False).shape[1] == 69


def test_what_has_a_longest_length_says_so():
    prompt = prompts(batch=1, length=60, padding=0)
    with pytest.raises(ValueError, match="max_length"):
        generate(language_model("cosformer"), **prompt, do_sample=False)
    with pytest.raises(ValueError, match=r"position 64 is beyond the 64 that were learned"):
        generate(language_model(positions="learned"), **prompt, do_sample=False)
