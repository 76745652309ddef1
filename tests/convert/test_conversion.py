"""Converting models of every family: what is computed, and that it can be undone."""

from __future__ import annotations

import copy
import pickle
import threading

import pytest
import torch
from families import DECODERS, FAMILIES, TEXT, build, inputs, make, output
from transformers import LlamaForCausalLM
from transformers.masking_utils import AttentionMaskInterface
from transformers.modeling_utils import AttentionInterface

import flexformer
from flexformer.convert.interface import active_kernel
from flexformer.convert.observation import observing

CONVERTIBLE = [name for name in flexformer.kernels.names() if name != "polaformer"]


def by_definition(module, query, key, value, attention_mask, is_causal=None, **_):
    """The quadratic reference in the place where converted models call linear attention."""
    mask = None if attention_mask is None else attention_mask[:, -key.shape[2] :]
    out = flexformer.reference_attention(query, key, value, active_kernel(module), module.is_causal, mask)
    return out.transpose(1, 2), None


AttentionInterface.register("by-definition", by_definition)
AttentionMaskInterface.register("by-definition", lambda *, attention_mask=None, **_: attention_mask)


def converted(family, *args, **options):
    return flexformer.convert(build(family), *args, **options)


def assert_follows_the_definition(model, arguments):
    linear = output(model, **arguments)
    model.config._attn_implementation = "by-definition"
    torch.testing.assert_close(linear, output(model, **arguments), rtol=1e-4, atol=1e-5)


@pytest.mark.parametrize("padded", [False, True])
@pytest.mark.parametrize("family", FAMILIES)
def test_converted_model_computes_the_definition_of_its_kernel(family, padded):
    assert_follows_the_definition(converted(family), inputs(family, length=70, padded=padded))


@pytest.mark.parametrize("attention", CONVERTIBLE)
@pytest.mark.parametrize("family", ["bert", "llama"])
def test_every_kernel_attention_computes_its_definition(family, attention):
    assert_follows_the_definition(converted(family, attention), inputs(family))


@pytest.mark.parametrize("family", FAMILIES)
def test_softmax_conversion_reproduces_the_original(family):
    model = build(family)
    before = output(model, **inputs(family))
    flexformer.convert(model, "softmax")
    torch.testing.assert_close(output(model, **inputs(family)), before, rtol=0, atol=1e-5)


@pytest.mark.parametrize("family", FAMILIES)
def test_restored_model_is_bit_identical(family):
    model = build(family)
    arguments = inputs(family)
    before, weights, config = output(model, **arguments), copy.deepcopy(model.state_dict()), model.config.to_dict()
    attributes = {name: set(vars(module)) for name, module in model.named_modules()}
    flexformer.convert(model)
    assert not torch.equal(output(model, **arguments), before)
    assert flexformer.restore(model) is model
    assert torch.equal(output(model, **arguments), before)
    assert list(model.state_dict()) == list(weights)
    assert all(torch.equal(model.state_dict()[name], weight) for name, weight in weights.items())
    assert model.config.to_dict() == config
    assert {name: set(vars(module)) for name, module in model.named_modules()} == attributes
    hooks = [m for m in model.modules() if m._forward_hooks or m._forward_pre_hooks or m._forward_hooks_always_called]
    assert not hooks


@pytest.mark.parametrize("implementation", ["eager", "sdpa"])
def test_restoring_brings_back_the_implementation_that_was_set(implementation):
    model = build("bert")
    model.set_attn_implementation(implementation)
    flexformer.restore(flexformer.convert(model))
    assert model.config._attn_implementation == implementation


@pytest.mark.parametrize("family", ["bert", "llama"])
def test_switched_to_another_implementation_a_model_does_not_run_without_its_kernels(family):
    model, arguments = converted(family), inputs(family)
    before = output(model, **arguments)
    model.set_attn_implementation("sdpa")
    with pytest.raises(RuntimeError, match="switched to attention implementation 'sdpa'"):
        output(model, **arguments)
    model.set_attn_implementation("flexformer")
    assert torch.equal(output(model, **arguments), before)
    model.set_attn_implementation("sdpa")
    flexformer.restore(model)
    output(model, **arguments)


@pytest.mark.parametrize("name", ["eager", "flash_attention_2", "paged|sdpa", "kernels-community/flash-attn2"])
def test_no_softmax_of_transformers_or_of_the_hub_passes_kernels_over(name):
    model = converted("bert")
    for module in model.modules():
        if hasattr(module, "config"):
            module.config._attn_implementation_internal = name  # without the check for what is installed
    with pytest.raises(RuntimeError, match="would pass its kernels over"):
        model(**inputs("bert"))


@pytest.mark.parametrize("family", ["bert", "gpt2"])
def test_what_padding_holds_changes_nothing(family):
    model, arguments = converted(family), inputs(family)
    before = output(model, **arguments)
    arguments["input_ids"] = arguments["input_ids"].masked_fill(arguments["attention_mask"] == 0, 7)
    torch.testing.assert_close(output(model, **arguments), before, rtol=1e-5, atol=1e-6)


@pytest.mark.parametrize("family", ["bert", "llama"])
def test_padded_and_unpadded_agree(family):
    model, arguments = converted(family), inputs(family)
    visible = arguments["attention_mask"][-1].bool()
    if family in DECODERS:  # as generate() does
        arguments["position_ids"] = (arguments["attention_mask"].cumsum(-1) - 1).clamp_min(0)
    padded = output(model, **arguments)[-1:][:, visible]
    alone = {"input_ids": arguments["input_ids"][-1:][:, visible]}
    torch.testing.assert_close(padded, output(model, **alone), rtol=1e-4, atol=1e-5)


def test_each_kernel_belongs_to_an_attention_module_and_has_its_geometry():
    model = converted("llama", num_frequencies=5)
    names = [name for name, module in model.named_modules() if isinstance(module, flexformer.kernels.Kernel)]
    assert names == ["model.layers.0.self_attn.kernel", "model.layers.1.self_attn.kernel"]
    assert [i for i, _ in flexformer.convert.kernels(model)] == [0, 1]
    for _, kernel in flexformer.convert.kernels(model):
        assert (kernel.num_heads, kernel.head_dim, kernel.num_frequencies) == (2, 8, 5)


def test_kernels_start_from_the_scaling_of_their_own_layer_with_matched_tau():
    model = build("gpt2", scale_attn_by_inverse_layer_idx=True)
    flexformer.convert(model, "flexformer-s", num_frequencies=4000)
    for i, kernel in flexformer.convert.kernels(model):
        scaling = 8**-0.5 / (i + 1)
        assert kernel.omega.std().item() == pytest.approx(0.25 * scaling**0.5, rel=0.02)
        assert kernel.tau.exp().tolist() == pytest.approx([2 / (scaling * 0.25**2)] * 4)


def test_options_of_the_user_go_before_those_of_conversion():
    (_, kernel), *_ = flexformer.convert.kernels(converted("bert", "flexformer-n", scaling=0.5, match_tau=False))
    assert kernel.tau.exp().tolist() == pytest.approx([2 / 0.5] * 4)


def test_a_tau_of_the_users_own_is_not_matched(tmp_path):
    model = converted("bert", "flexformer-n", tau=3.0)
    (_, kernel), *_ = flexformer.convert.kernels(model)
    assert kernel.tau.tolist() == [3.0] * 4
    flexformer.save_adapter(model, tmp_path / "adapter")
    again = flexformer.load_adapter(build("bert"), tmp_path / "adapter")
    torch.testing.assert_close(output(again, **inputs("bert")), output(model, **inputs("bert")))


@pytest.mark.parametrize("family", ["bert", "llama"])
def test_layers_left_out_stay_softmax(family):
    model, arguments = build(family), inputs(family)
    seen = []
    first = next(m for m in model.modules() if type(m).__name__ in ("BertSelfAttention", "LlamaAttention"))
    first.register_forward_hook(lambda module, args, out: seen.append(out[0]))
    output(model, **arguments)
    flexformer.convert(model, layers=[1])
    output(model, **arguments)
    visible = arguments["attention_mask"][..., None]
    torch.testing.assert_close(seen[0] * visible, seen[-1] * visible, rtol=0, atol=1e-5)
    assert [i for i, _ in flexformer.convert.kernels(model)] == [1]


def test_conversion_leaves_modes_and_random_numbers_alone():
    model = build("bert").train()
    model.encoder.layer[0].eval()
    modes = [module.training for module in model.modules()]
    torch.manual_seed(3)
    expected = torch.get_rng_state()
    flexformer.convert(model, "linear")
    assert torch.equal(torch.get_rng_state(), expected)
    flexformer.restore(model)
    assert [module.training for module in model.modules()] == modes


def test_same_seed_gives_the_same_kernels():
    models = []
    for _ in range(2):
        model = build("bert")
        torch.manual_seed(11)
        models.append(flexformer.convert(model))
    a, b = (output(model, **inputs("bert")) for model in models)
    assert torch.equal(a, b)


@pytest.mark.parametrize("copied", [copy.deepcopy, lambda model: pickle.loads(pickle.dumps(model))])
def test_copy_of_a_converted_model_lives_on_its_own(copied):
    model = converted("llama")
    arguments = inputs("llama")
    twin = copied(model)
    before = output(model, **arguments)
    assert torch.equal(output(twin, **arguments), before)
    flexformer.restore(twin)
    assert torch.equal(output(model, **arguments), before)
    assert torch.equal(output(twin, **arguments), output(build("llama"), **arguments))


@pytest.mark.parametrize("dtype", [torch.float64, torch.bfloat16, torch.float16])
@pytest.mark.parametrize("attention", ["flexformer-n", "flexformer-c"])
def test_dtype_of_the_model_may_change_before_and_after(dtype, attention):
    arguments = inputs("llama")
    expected = output(converted("llama", attention), **arguments)
    limit = {torch.float64: 1e-5, torch.bfloat16: 3e-2, torch.float16: 5e-3}[dtype]
    torch.manual_seed(0)
    before = flexformer.convert(build("llama").to(dtype), attention)
    before.load_state_dict(converted("llama", attention).state_dict())
    after = converted("llama", attention).to(dtype)
    for model in (before, after):
        out = output(model, **arguments)
        assert out.dtype == dtype
        assert (out.double() - expected.double()).norm() < limit * expected.double().norm()
    kept = {p.dtype for _, kernel in flexformer.convert.kernels(before) for p in kernel.parameters()}
    assert kept <= {torch.float32, torch.float64}


def test_weights_are_returned_where_the_model_asks_for_attentions():
    model, arguments = converted("bert"), inputs("bert")
    attentions = model(**arguments, output_attentions=True).attentions
    assert [a.shape for a in attentions] == [(2, 4, 20, 20)] * 2
    torch.testing.assert_close(attentions[0].sum(-1), torch.ones(2, 4, 20))
    assert not attentions[0][-1, :, :, -6:].any()


@pytest.mark.parametrize("family", ["bert", "llama"])
@pytest.mark.parametrize("options", [{"attention": "softmax"}, {"layers": [1]}, {}])
def test_weights_are_returned_of_layers_without_a_kernel_too(family, options):
    arguments = inputs(family)
    eager, model = build(family, attn_implementation="eager"), build(family)
    with torch.no_grad():
        expected = eager(**arguments, output_attentions=True).attentions
        torch.manual_seed(0)
        found = flexformer.convert(model, **options)(**arguments, output_attentions=True).attentions
        eager.config.output_attentions = True
        torch.manual_seed(0)
        again = flexformer.convert(eager, **options)(**arguments).attentions
    assert len(found) == len(again) == 2
    assert all(torch.equal(a, b) for a, b in zip(found, again, strict=True))
    visible = arguments["attention_mask"][:, None, :, None].bool()
    for i in range(2):
        torch.testing.assert_close((found[i] * visible).sum(-1), visible[..., 0].expand(2, 4, 20).float())
        if options and i not in options.get("layers", []):
            torch.testing.assert_close(found[i] * visible, expected[i] * visible)


def test_models_of_one_config_are_converted_one_by_one():
    config, arguments = build("llama").config, inputs("llama")
    first, second = (LlamaForCausalLM(config).eval() for _ in range(2))
    before = [output(model, **arguments) for model in (first, second)]
    flexformer.convert(first)
    assert torch.equal(output(second, **arguments), before[1])
    after = output(flexformer.convert(second, "hedgehog"), **arguments)
    flexformer.restore(first)
    assert torch.equal(output(first, **arguments), before[0])
    assert torch.equal(output(second, **arguments), after)
    flexformer.restore(second)
    assert torch.equal(output(second, **arguments), before[1])


def test_restoring_keeps_what_was_changed_in_the_config_meanwhile():
    model = converted("bert")
    model.resize_token_embeddings(70)
    assert flexformer.restore(model).config.vocab_size == 70


def test_a_thread_that_looks_at_one_model_leaves_others_alone():
    watched, other = converted("bert"), converted("gpt2")
    arguments = inputs("gpt2")
    before, expected = output(watched, **inputs("bert")), output(other, **arguments)
    found = []
    with observing(lambda call: torch.zeros_like(call.query)):
        thread = threading.Thread(target=lambda: found.append(output(other, **arguments)))
        thread.start()
        thread.join()
        assert not torch.allclose(output(watched, **inputs("bert")), before)
    assert torch.equal(found[0], expected)


def test_statistics_cover_each_converted_layer():
    found = flexformer.convert.statistics(converted("gpt2", layers=[1]), **inputs("gpt2"))
    assert list(found) == [1]
    assert 0 <= found[1].negative_weights < 1
    assert found[1].smallest_denominator == found[1].smallest_denominator


@pytest.mark.parametrize(("attention", "count"), [("flexformer-n", 5), ("flexformer-c", 4)])
def test_gradients_reach_kernels_and_weights(attention, count):
    model, arguments = converted("gpt2", attention).train(), inputs("gpt2")
    model(**arguments, labels=arguments["input_ids"]).loss.backward()
    assert all(p.grad is not None and p.grad.isfinite().all() for p in model.parameters())
    groups = flexformer.parameter_groups(model, weight_decay=0.1)
    assert len(groups[1]["params"]) == 2 * count


def test_module_not_seen_in_the_trial_run_says_so():
    model = converted("bert")
    del model.encoder.layer[1].attention.self._flexformer
    with pytest.raises(RuntimeError, match=r"BertSelfAttention runs as 'flexformer' but has no kernel"):
        output(model, **inputs("bert"))


def test_unconverted_model_under_the_name_says_how_to_convert():
    model = make("BertModel", "BertConfig", **TEXT, attn_implementation="flexformer")
    with pytest.raises(RuntimeError, match=r"flexformer\.convert"):
        output(model, **inputs("bert"))


def test_the_room_is_the_function():
    assert flexformer.convert(model := build("bert"), "linear") is model
    assert flexformer.convert.restore is flexformer.restore


@pytest.mark.parametrize("family", ["gpt2"])
def test_threads_share_a_model_without_mixing_their_states(family):
    model = converted(family)
    prompts = [torch.randint(3, 61, (1, 5 + i), generator=torch.Generator().manual_seed(i)) for i in range(3)]

    def run(prompt):
        return model.generate(prompt, attention_mask=torch.ones_like(prompt), max_new_tokens=12, do_sample=False)

    alone = [run(prompt) for prompt in prompts]
    together = [None] * len(prompts)
    threads = [
        threading.Thread(target=lambda i=i: together.__setitem__(i, run(prompts[i]))) for i in range(len(prompts))
    ]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert all(torch.equal(a, b) for a, b in zip(alone, together, strict=True))


@pytest.mark.parametrize("family", DECODERS)
def test_later_tokens_change_no_earlier_output(family):
    model, arguments = converted(family), inputs(family)
    before = output(model, **arguments)
    arguments["input_ids"][:, 12:] = 5
    assert torch.equal(output(model, **arguments)[:, :12], before[:, :12])
