"""What has no kernel form is refused with a reason, before anything is changed."""

from __future__ import annotations

import copy

import pytest
import torch
from families import GROUPED, TEXT, build, inputs, make, output
from torch import nn
from transformers import DynamicCache

import flexformer
from flexformer.convert.refusals import unsupported_visibility

GEMMA2 = GROUPED | {"head_dim": 8, "query_pre_attn_scalar": 8}
T5 = {"d_model": 32, "d_kv": 8, "d_ff": 48, "num_layers": 2, "num_heads": 4, "vocab_size": 61}
BART = {"d_model": 32, "encoder_layers": 1, "decoder_layers": 1, "vocab_size": 61, "max_position_embeddings": 64} | {
    f"{side}_{what}": 4 if what == "attention_heads" else 48
    for side in ("encoder", "decoder")
    for what in ("attention_heads", "ffn_dim")
}
MODERNBERT = TEXT | {"num_hidden_layers": 4, "global_attn_every_n_layers": 3, "local_attention": 8, "cls_token_id": 1}
MODERNBERT |= {"sep_token_id": 2}


@pytest.mark.parametrize(
    ("model", "config", "options", "reason"),
    [
        (
            "MistralForCausalLM",
            "MistralConfig",
            GROUPED | {"sliding_window": 8},
            r"sliding window of 8 tokens.*cannot be",
        ),
        ("Gemma2ForCausalLM", "Gemma2Config", GEMMA2, r"soft-caps its logits"),
        ("T5EncoderModel", "T5Config", T5, r"adds a position bias"),
        ("T5ForConditionalGeneration", "T5Config", T5, r"has cross attention"),
        ("BartModel", "BartConfig", BART, r"has cross attention.*get_encoder"),
        ("MPNetModel", "MPNetConfig", TEXT, r"by itself instead of through transformers' attention interface"),
        ("DebertaV2Model", "DebertaV2Config", TEXT, r"by itself instead of through"),
        ("LongformerModel", "LongformerConfig", TEXT | {"attention_window": 4}, r"does not leave attention to"),
        (
            "BertLMHeadModel",
            "BertConfig",
            TEXT | {"is_decoder": True, "add_cross_attention": True},
            r"has cross attention",
        ),
        (
            "GptOssForCausalLM",
            "GptOssConfig",
            GROUPED | {"head_dim": 8, "num_local_experts": 2, "num_experts_per_tok": 1},
            r"attention sinks",
        ),
        ("SplinterModel", "SplinterConfig", TEXT, r"does more in its attention than it tells .* differ by \d+% from"),
        ("BigBirdPegasusForCausalLM", "BigBirdPegasusConfig", BART, r"does more in its attention than it tells"),
        ("DiffLlamaForCausalLM", "DiffLlamaConfig", GROUPED, r"computes attention more than once for each token"),
        ("MllamaForCausalLM", "MllamaTextConfig", GROUPED | {"cross_attention_layers": [1]}, r"has cross attention"),
        (
            "SplinterModel",
            "SplinterConfig",
            TEXT | {"initializer_range": 0.02},
            r"does more in its attention than it tells",
        ),
    ],
    ids=[
        "window",
        "softcap",
        "bias",
        "t5",
        "bart",
        "mpnet",
        "deberta",
        "longformer",
        "cross",
        "sinks",
        "splinter",
        "pegasus",
        "twice",
        "pictures",
        "as initialised",
    ],
)
def test_model_without_a_kernel_form_is_refused_and_left_as_it_was(model, config, options, reason):
    made = make(model, config, **options)
    implementation, attributes = made.config._attn_implementation, copy.copy(vars(made))
    with pytest.raises(ValueError, match=reason):
        flexformer.convert(made)
    assert made.config._attn_implementation == implementation
    assert vars(made).keys() == attributes.keys()
    assert not any(isinstance(m, flexformer.kernels.Kernel) for m in made.modules())


@pytest.mark.parametrize("name", ["indices", "block_indices"])
def test_keys_that_are_chosen_for_every_query_are_refused(name):
    assert "chooses for every query" in unsupported_visibility(None, {name: torch.zeros(1)})
    assert unsupported_visibility(None, {name: None}) is None


def test_layers_with_a_window_stay_softmax_when_only_the_others_are_converted():
    model, arguments = make("ModernBertModel", "ModernBertConfig", **MODERNBERT), inputs("bert")
    with pytest.raises(ValueError, match=r"layers \[1, 2\].*sliding window.*layers=\[0, 3\]"):
        flexformer.convert(model)
    before = output(model, **arguments)
    flexformer.convert(model, "softmax", layers=[0, 3])
    torch.testing.assert_close(output(model, **arguments), before, rtol=0, atol=1e-5)
    flexformer.convert(flexformer.restore(model), layers=[0, 3])
    assert [i for i, _ in flexformer.convert.kernels(model)] == [0, 3]
    assert output(model, **arguments).isfinite().all()


def test_decoder_with_windows_generates_from_states_and_windows_together():
    options = GROUPED | {"head_dim": 8, "sliding_window": 8, "num_hidden_layers": 6}
    model, prompt = make("Gemma3ForCausalLM", "Gemma3TextConfig", **options), inputs("llama")
    with pytest.raises(ValueError, match=r"layers \[0, 1, 2, 3, 4\].*sliding window of 8.*layers=\[5\]"):
        flexformer.convert(model)
    flexformer.convert(model, layers=[5])
    settings = {"max_new_tokens": 8, "do_sample": False}
    assert torch.equal(model.generate(**prompt, **settings), model.generate(**prompt, **settings, use_cache=False))


def test_encoder_of_an_encoder_decoder_model_can_be_converted_alone():
    model, arguments = make("BartModel", "BartConfig", **BART, init_std=0.2), inputs("bert")
    encoder, before = model.get_encoder(), output(model, **arguments)
    flexformer.convert(encoder)
    assert output(encoder, **arguments).isfinite().all()
    assert not torch.allclose(output(model, **arguments), before)  # with the decoder as it was
    flexformer.restore(encoder)
    assert torch.equal(output(model, **arguments), before)
    with pytest.raises(ValueError, match="BartDecoder has cross attention"):
        flexformer.convert(model.get_decoder())


def test_encoder_of_t5_says_what_keeps_it_from_being_converted():
    with pytest.raises(ValueError, match="adds a position bias"):
        flexformer.convert(make("T5ForConditionalGeneration", "T5Config", **T5).get_encoder())


def test_model_without_weights_is_refused():
    with torch.device("meta"):
        model = make("BertModel", "BertConfig", **TEXT)
    with pytest.raises(ValueError, match="BertModel is on the meta device and has no weights"):
        flexformer.convert(model)


@pytest.mark.parametrize("family", ["Gemma3n", "Gemma4"])
def test_layers_that_share_keys_stay_softmax_and_generate_what_they_did(family):
    own = {"layer_types": ["full_attention"] * 5, "num_kv_shared_layers": 2, "hidden_size_per_layer_input": 8}
    own |= {"num_hidden_layers": 5, "head_dim": 8, "sliding_window": 8, "vocab_size_per_layer_input": 61}
    if family == "Gemma3n":
        own |= {"laurel_rank": 4, "activation_sparsity_pattern": [0.0] * 5, "altup_num_inputs": 2}
    model, prompt = make(f"{family}ForCausalLM", f"{family}TextConfig", **GROUPED | own), inputs("llama")
    settings = {"max_new_tokens": 8, "do_sample": False}
    before = {cache: model.generate(**prompt, **settings, **cache_named(cache)) for cache in ("dynamic", "static")}
    with pytest.raises(ValueError, match=r"layers \[2, 3, 4\].*shares keys and values.*layers=\[0, 1\]"):
        flexformer.convert(model)
    flexformer.convert(model, "softmax", layers=[0, 1])
    for cache, tokens in before.items():
        assert torch.equal(model.generate(**prompt, **settings, **cache_named(cache)), tokens)
    flexformer.convert(flexformer.restore(model), layers=[0, 1])
    for cache in before:
        tokens = model.generate(**prompt, **settings, **cache_named(cache))
        assert torch.equal(tokens, model.generate(**prompt, **settings, use_cache=False))


def cache_named(name):
    return {} if name == "dynamic" else {"cache_implementation": name}


def test_cache_that_keeps_more_than_keys_is_refused():
    options = GROUPED | {"head_dim": 8, "mamba_d_ssm": 32, "mamba_n_heads": 4, "mamba_d_head": 8, "mamba_d_state": 8}
    model = flexformer.convert(make("FalconH1ForCausalLM", "FalconH1Config", **options))
    prompt = inputs("llama", padded=False)
    assert model.generate(**prompt, max_new_tokens=2, use_cache=False).shape == (2, 22)
    with pytest.raises(ValueError, match="keeps more than keys and values at layer 0"):
        model.generate(**prompt, max_new_tokens=2)


@pytest.mark.parametrize("attention", ["polaformer", "reformer", "longformer", "bigbird", "skyformer"])
def test_attention_that_cannot_replace_a_pretrained_one_is_refused(attention):
    with pytest.raises(ValueError, match=f"attention '{attention}' cannot replace"):
        flexformer.convert(build("bert"), attention)


@pytest.mark.parametrize(
    ("arguments", "error", "reason"),
    [
        ({"attention": "flexformer"}, ValueError, r"attention 'flexformer' is unknown; use one of softmax"),
        ({"attention": "linear", "num_frequencies": 3}, TypeError, r"option 'num_frequencies' is unknown"),
        ({"attention": "softmax", "floor": 3}, TypeError, r"option 'floor' is unknown to attention 'softmax'"),
        ({"num_frequencies": 0}, ValueError, r"num_frequencies 0 is too small"),
        ({"num_frequencies": torch.tensor(3)}, TypeError, r"cannot be saved as JSON"),
        ({"layers": [2]}, ValueError, r"layers has 2; BertModel has 2, so use numbers from 0 to 1"),
        ({"layers": [-1]}, ValueError, r"layers has -1"),
        ({"layers": [0, 0]}, ValueError, r"names a layer twice"),
        ({"layers": []}, ValueError, r"is empty"),
        ({"layers": ["0"]}, TypeError, r"'0', which is not an index"),
        ({"layers": 1}, TypeError, r"layers is 1; use a list of numbers from 0 to 1"),
    ],
)
def test_wrong_argument_is_named_and_the_model_left_as_it_was(arguments, error, reason):
    model = build("bert")
    before = output(model, **inputs("bert"))
    with pytest.raises(error, match=reason):
        flexformer.convert(model, **arguments)
    assert torch.equal(output(model, **inputs("bert")), before)
    flexformer.convert(model)


def test_converting_twice_asks_to_restore_first():
    model = flexformer.convert(build("bert"))
    with pytest.raises(ValueError, match=r"converted already, or .* call flexformer\.restore"):
        flexformer.convert(model)


def test_restoring_what_is_not_converted_says_so():
    with pytest.raises(ValueError, match="BertModel is not converted"):
        flexformer.restore(build("bert"))


def test_part_of_a_converted_model_is_not_the_converted_model():
    model = flexformer.convert(build("llama"))
    with pytest.raises(ValueError, match="is part of the converted model"):
        flexformer.restore(model.model)


def test_other_modules_are_refused_with_a_hint():
    with pytest.raises(TypeError, match="model is a Linear; pass a transformers PreTrainedModel"):
        flexformer.convert(nn.Linear(2, 2))


def test_attribute_of_the_same_name_is_not_overwritten():
    model = build("bert")
    model.encoder.layer[0].attention.self.kernel = nn.Identity()
    with pytest.raises(ValueError, match="has an attribute 'kernel' of its own"):
        flexformer.convert(model)
    assert model.config._attn_implementation == "sdpa"


def test_model_whose_input_cannot_be_made_up_asks_for_an_example(tmp_path):
    small = {"hidden_size": 32, "num_hidden_layers": 1, "num_attention_heads": 4, "intermediate_size": 48}
    convolutions = {"conv_dim": (8,), "conv_kernel": (4,), "conv_stride": (4,), "num_feat_extract_layers": 1}
    convolutions |= {"num_conv_pos_embeddings": 4, "num_conv_pos_embedding_groups": 2}
    model = make("Wav2Vec2Model", "Wav2Vec2Config", **small, **convolutions)
    with pytest.raises(ValueError, match="'input_values', which cannot be made up; pass example_inputs"):
        flexformer.convert(model)
    example = {"input_values": torch.zeros(1, 64)}
    flexformer.convert(model, example_inputs=example)
    sound = torch.randn(2, 64)
    expected = output(model, input_values=sound)
    assert expected.isfinite().all()
    flexformer.save_adapter(model, tmp_path / "adapter")
    model.save_pretrained(tmp_path / "whole")
    loaded = flexformer.load(tmp_path / "whole", example_inputs=example)
    assert torch.equal(output(loaded, input_values=sound), expected)
    flexformer.load_adapter(flexformer.restore(model), tmp_path / "adapter", example_inputs=example)
    assert torch.equal(output(model, input_values=sound), expected)


def test_four_dimensional_mask_is_refused():
    model, arguments = flexformer.convert(build("llama")), inputs("llama", padded=False)
    arguments["attention_mask"] = torch.ones(2, 1, 20, 20, dtype=torch.bool).tril()
    with pytest.raises(ValueError, match=r"mask of shape \(2, 1, 20, 20\), a choice of keys for every query"):
        model(**arguments)


def test_packed_sequences_are_refused():
    model = flexformer.convert(build("llama"))
    ids = torch.randint(3, 61, (1, 12))
    with pytest.raises(ValueError, match=r"packed sequences \(position_ids that start anew\)"):
        model(input_ids=ids, position_ids=torch.arange(12)[None] % 5, use_cache=False)


def test_cache_that_holds_keys_and_values_is_refused():
    model, arguments = build("llama"), inputs("llama", padded=False)
    cache = model(**arguments, use_cache=True).past_key_values
    flexformer.convert(model)
    with pytest.raises(ValueError, match="cache holds keys and values of 20 tokens at layer 0"):
        model(input_ids=arguments["input_ids"][:, :1], past_key_values=cache)


def test_attentions_of_a_later_call_cannot_be_had():
    model, arguments = flexformer.convert(build("llama")), inputs("llama", padded=False)
    cache = DynamicCache(config=model.config)
    assert model(**arguments, past_key_values=cache, output_attentions=True).attentions[0].shape == (2, 4, 20, 20)
    with pytest.raises(ValueError, match="output_attentions needs all keys"):
        model(input_ids=arguments["input_ids"][:, :1], past_key_values=cache, output_attentions=True)
