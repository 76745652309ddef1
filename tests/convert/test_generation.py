"""Stock `generate()` on converted models: the same tokens with a state of fixed size as without any cache."""

from __future__ import annotations

import pytest
import torch
from families import DECODERS, build, inputs
from transformers import DynamicCache, GenerationConfig, StaticCache

import flexformer
from flexformer.models.cache import RecurrentCache, RecurrentLayer

NEW = 10
MODES = {
    "greedy": {"do_sample": False},
    "sampling": {"do_sample": True, "temperature": 1.3, "top_k": 20},
    "beam": {"num_beams": 3, "do_sample": False},
    "beams returned": {"num_beams": 3, "num_return_sequences": 2, "do_sample": False},
    "several samples": {"do_sample": True, "num_return_sequences": 3},
}


def converted(family, attention="flexformer-n", **options):
    torch.manual_seed(5)
    return flexformer.convert(build(family), attention, **options)


def generate(model, **options):
    torch.manual_seed(7)
    return model.generate(**options, max_new_tokens=NEW, min_new_tokens=NEW)


@pytest.mark.parametrize("mode", MODES)
@pytest.mark.parametrize("family", DECODERS)
def test_state_gives_the_tokens_that_no_cache_gives(family, mode):
    model, prompt = converted(family), inputs(family)
    with_state = generate(model, **prompt, **MODES[mode])
    assert with_state.shape[1] == 20 + NEW
    assert torch.equal(with_state, generate(model, **prompt, **MODES[mode], use_cache=False))


@pytest.mark.parametrize(
    "attention", [n for n in flexformer.kernels.names() if n not in ("polaformer", "flexformer-n")]
)
def test_every_kernel_attention_generates_from_its_state(attention):
    model, prompt = converted("llama", attention), inputs("llama")
    assert torch.equal(
        generate(model, **prompt, **MODES["beam"]), generate(model, **prompt, **MODES["beam"], use_cache=False)
    )


def test_a_cache_of_a_model_converted_otherwise_is_refused():
    model, prompt = converted("llama"), inputs("llama")
    cache = model(**prompt, use_cache=True).past_key_values
    model = flexformer.convert(flexformer.restore(model), layers=[0])
    with pytest.raises(ValueError, match="cache holds a state at layer 1, which attends with softmax here"):
        model(prompt["input_ids"][:, :1], past_key_values=cache)


@pytest.mark.parametrize("layers", [[0], [1]])
@pytest.mark.parametrize("mode", ["greedy", "beam"])
@pytest.mark.parametrize("family", ["gpt2", "llama"])
def test_hybrid_keeps_states_and_keys_side_by_side(family, mode, layers):
    model, prompt = converted(family, layers=layers), inputs(family)
    assert torch.equal(
        generate(model, **prompt, **MODES[mode]), generate(model, **prompt, **MODES[mode], use_cache=False)
    )
    cache = model(**prompt, use_cache=True).past_key_values
    assert [isinstance(layer, RecurrentLayer) for layer in cache.layers] == [i in layers for i in range(2)]


def test_softmax_conversion_generates_what_the_original_does():
    model, prompt = build("llama"), inputs("llama")
    before = generate(model, **prompt, **MODES["beam"])
    assert torch.equal(generate(flexformer.convert(model, "softmax"), **prompt, **MODES["beam"]), before)


STATIC = {"all": {}, "first": {"layers": [0]}, "second": {"layers": [1]}, "none": {"attention": "softmax"}}


@pytest.mark.parametrize("padded", [False, True])
@pytest.mark.parametrize("which", STATIC)
@pytest.mark.parametrize("family", ["gpt2", "llama"])
def test_static_cache_gives_way_to_states(family, which, padded):
    model, prompt = converted(family, **STATIC[which]), inputs(family, padded=padded)
    expected = generate(model, **prompt, do_sample=False, use_cache=False)
    given = [{"cache_implementation": "static"}, {"cache_implementation": "static", "prefill_chunk_size": 7}]
    given += [{"past_key_values": StaticCache(config=model.config, max_cache_len=64)}]
    for how in given:
        assert torch.equal(generate(model, **prompt, do_sample=False, **how), expected), how


@pytest.mark.parametrize("which", STATIC)
def test_a_mask_may_have_room_for_tokens_to_come(which):
    model, prompt = converted("llama", **STATIC[which]), inputs("llama")
    cache = StaticCache(config=model.config, max_cache_len=32)
    mask = torch.cat((prompt["attention_mask"], torch.zeros(2, 12, dtype=torch.long)), dim=1)
    with torch.no_grad():
        expected = model(**prompt).logits
        without_cache = model(prompt["input_ids"], attention_mask=mask, use_cache=False).logits
        found = []
        for start, end in ((0, 13), (13, 20)):
            mask[:, 13:20] = int(end == 20)
            ids = prompt["input_ids"][:, start:end]
            found.append(model(ids, attention_mask=mask, past_key_values=cache, use_cache=True).logits)
    visible = prompt["attention_mask"][..., None]
    torch.testing.assert_close(torch.cat(found, 1) * visible, expected * visible)
    torch.testing.assert_close(without_cache * visible, expected * visible)


def test_cache_of_states_alone_can_be_passed_in():
    model, prompt = converted("llama"), inputs("llama")
    cache = RecurrentCache()
    assert torch.equal(
        generate(model, **prompt, do_sample=False, past_key_values=cache), generate(model, **prompt, do_sample=False)
    )
    assert cache.get_seq_length() == 20 + NEW - 1


@pytest.mark.parametrize("family", ["gpt2", "llama"])
def test_left_padding_changes_nothing(family):
    model, prompt = converted(family), inputs(family)
    padded = generate(model, **prompt, do_sample=False)[-1, 6:]
    alone = generate(model, input_ids=prompt["input_ids"][-1:, 6:], attention_mask=torch.ones(1, 14), do_sample=False)
    assert torch.equal(padded, alone[0])


@pytest.mark.parametrize("layers", [None, [0]])
@pytest.mark.parametrize("size", [1, 7, 16])
def test_prompt_may_be_read_in_chunks(size, layers):
    model, prompt = converted("llama", layers=layers), inputs("llama")
    chunked = generate(model, **prompt, do_sample=False, prefill_chunk_size=size)
    assert torch.equal(chunked, generate(model, **prompt, do_sample=False))


@pytest.mark.parametrize("layers", [None, [1]])
def test_next_turn_goes_on_from_the_cache_of_the_last(layers):
    model, prompt = converted("gpt2", layers=layers), inputs("gpt2", batch=1, padded=False)
    first = generate(model, **prompt, do_sample=False, return_dict_in_generate=True)
    longer = torch.cat((first.sequences, torch.randint(3, 61, (1, 6))), dim=1)
    turn = {"input_ids": longer, "attention_mask": torch.ones_like(longer), "do_sample": False}
    again = generate(model, **turn, past_key_values=first.past_key_values)
    assert torch.equal(again, generate(model, **turn, use_cache=False))


@pytest.mark.parametrize("family", DECODERS)
def test_one_token_at_a_time_equals_one_forward(family):
    model, prompt = converted(family), inputs(family)
    positions = (prompt["attention_mask"].cumsum(-1) - 1).clamp_min(0)
    cache, steps = DynamicCache(config=model.config), []
    with torch.no_grad():
        whole = model(**prompt, position_ids=positions, use_cache=False).logits
        for i in range(20):
            step = model(
                input_ids=prompt["input_ids"][:, i : i + 1],
                attention_mask=prompt["attention_mask"][:, : i + 1],
                position_ids=positions[:, i : i + 1],
                past_key_values=cache,
            )
            steps.append(step.logits)
    visible = prompt["attention_mask"][..., None]
    torch.testing.assert_close(torch.cat(steps, dim=1) * visible, whole * visible, rtol=1e-4, atol=1e-4)


def test_state_has_the_same_size_whatever_the_context():
    model = converted("llama")
    sizes = set()
    for length in (1, 17, 100):
        ids = torch.randint(3, 61, (1, length))
        cache = model(input_ids=ids, attention_mask=torch.ones_like(ids), use_cache=True).past_key_values
        sizes.add(sum(layer.nbytes for layer in cache.layers))
        assert cache.get_seq_length() == length
    # Two layers, two key heads of width 8, 16 features: S, z, w and m in float32, the length in int64.
    assert sizes == {2 * (2 * (16 * 8 + 16 + 1 + 1) * 4 + 8)}


def test_assisted_decoding_is_refused():
    model, prompt = converted("llama"), inputs("llama", batch=1, padded=False)
    with pytest.raises(ValueError, match="assisted generation is not supported with stateful models"):
        model.generate(**prompt, assistant_model=build("llama"), max_new_tokens=4)
    with pytest.raises(ValueError, match="assisted generation is not supported"):
        model.generate(**prompt, prompt_lookup_num_tokens=2, max_new_tokens=4)
    flexformer.restore(model).generate(**prompt, prompt_lookup_num_tokens=2, max_new_tokens=4)


def test_converted_model_cannot_take_back_tokens_as_an_assistant():
    helper, prompt = converted("llama"), inputs("llama", batch=1, padded=False)
    with pytest.raises(NotImplementedError, match="cannot forget its last"):
        build("llama", seed=1).generate(**prompt, assistant_model=helper, max_new_tokens=20, do_sample=False)


def test_model_keeps_no_cache_alive():
    model, prompt = converted("llama"), inputs("llama")
    generate(model, **prompt, do_sample=False)
    with pytest.raises(IndexError):
        model(input_ids=torch.tensor([[99]]), use_cache=True)
    assert not any(m._flexformer.running for m in model.modules() if hasattr(m, "_flexformer"))


def test_training_with_the_default_cache_gives_the_same_gradients():
    arguments = inputs("gpt2")
    gradients = []
    for use_cache in (True, False):
        model = converted("gpt2")
        model(**arguments, labels=arguments["input_ids"], use_cache=use_cache).loss.backward()
        gradients.append([p.grad for p in model.parameters()])
    for a, b in zip(*gradients, strict=True):
        torch.testing.assert_close(a, b, rtol=1e-4, atol=1e-6)


def test_generation_settings_of_the_model_are_kept():
    model = converted("llama")
    model.generation_config = GenerationConfig(max_new_tokens=3, do_sample=False, pad_token_id=0)
    assert model.generate(**inputs("llama")).shape[1] == 23
