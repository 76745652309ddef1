"""Adapter files: what comes back, and what happens to those that are wrong."""

from __future__ import annotations

import json
import os
import shutil

import pytest
import torch
from families import FAMILIES, build, inputs, make, output, trained
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from safetensors.torch import load_file

import flexformer
from flexformer.convert import adapter, manifest

CONVERTIBLE = [name for name in flexformer.kernels.names() if name != "polaformer"]


@pytest.fixture
def saved(tmp_path):
    flexformer.save_adapter(trained(), tmp_path / "adapter")
    return tmp_path / "adapter"


def tensor_file(folder):
    (path,) = folder.glob("*.safetensors")
    return path


def change(folder, **fields):
    """As somebody would who means harm, and so leaves the checksum out."""
    path = folder / manifest.FILE
    content = json.loads(path.read_text()) | fields
    content.pop(manifest.CHECKSUM)
    path.write_text(json.dumps(content))


def assert_untouched(model, family="bert"):
    assert model.config._attn_implementation == "sdpa"
    assert not any(isinstance(module, flexformer.kernels.Kernel) for module in model.modules())
    assert torch.equal(output(model, **inputs(family)), output(build(family), **inputs(family)))


@pytest.mark.parametrize("family", FAMILIES)
def test_adapter_comes_back_bit_for_bit_in_every_family(family, tmp_path):
    model = trained(family)
    flexformer.save_adapter(model, tmp_path)
    twin = build(family)
    assert flexformer.load_adapter(twin, tmp_path) is twin
    assert torch.equal(output(twin, **inputs(family)), output(model, **inputs(family)))
    flexformer.restore(twin)
    assert torch.equal(output(twin, **inputs(family)), output(build(family), **inputs(family)))


@pytest.mark.parametrize("attention", [*CONVERTIBLE, "softmax"])
def test_adapter_comes_back_bit_for_bit_for_every_attention(attention, tmp_path):
    model, twin = trained("llama", attention, layers=[1]), build("llama")
    flexformer.save_adapter(model, tmp_path)
    flexformer.load_adapter(twin, tmp_path)
    assert torch.equal(output(twin, **inputs("llama")), output(model, **inputs("llama")))
    pairs = zip(flexformer.convert.kernels(model), flexformer.convert.kernels(twin), strict=True)
    for (i, kernel), (j, other) in pairs:
        assert i == j == 1
        assert all(
            torch.equal(a, b) for a, b in zip(kernel.state_dict().values(), other.state_dict().values(), strict=True)
        )


def test_adapter_holds_kernels_alone_and_says_what_it_is_for(saved):
    tensors = load_file(tensor_file(saved))
    names = ("centre_k", "centre_q", "omega1", "omega2", "tau")
    assert sorted(tensors) == [f"layers.{i}.{name}" for i in range(2) for name in names]
    content = json.loads((saved / manifest.FILE).read_text())
    assert content["attention"] == "flexformer-n"
    assert content["layers"] == [0, 1]
    assert content["flexformer_version"] == flexformer.__version__
    assert content["base"]["model_type"] == "bert"
    assert content["options"]["floor"] == 0.01  # what was a default then stays in effect
    assert sorted(p.name for p in saved.iterdir()) == sorted([manifest.FILE, tensor_file(saved).name])


def test_loading_draws_no_random_numbers(saved):
    model = build("bert")
    torch.manual_seed(9)
    before = torch.get_rng_state()
    flexformer.load_adapter(model, saved)
    assert torch.equal(torch.get_rng_state(), before)


def test_loading_onto_a_converted_model_replaces_its_kernels(saved):
    model = flexformer.convert(build("bert"), "hedgehog", layers=[0])
    flexformer.load_adapter(model, saved)
    assert torch.equal(
        output(model, **inputs("bert")), output(flexformer.load_adapter(build("bert"), saved), **inputs("bert"))
    )
    assert_untouched(flexformer.restore(model))


def test_saving_again_replaces_what_was_there(saved):
    model = trained("bert", "hedgehog")
    flexformer.save_adapter(model, saved)
    assert len(list(saved.iterdir())) == 2
    twin = flexformer.load_adapter(build("bert"), saved)
    assert torch.equal(output(twin, **inputs("bert")), output(model, **inputs("bert")))


@pytest.mark.parametrize("step", [1, 2])
def test_saving_that_is_cut_off_leaves_the_adapter_that_was_there(saved, monkeypatch, step):
    expected = output(flexformer.load_adapter(build("bert"), saved), **inputs("bert"))
    replace, calls = os.replace, []

    def fail(*args):
        calls.append(args)
        if len(calls) == step:
            raise OSError(28, "No space left on device")
        replace(*args)

    monkeypatch.setattr(os, "replace", fail)
    with pytest.raises(OSError, match="No space left"):
        flexformer.save_adapter(trained("bert", "hedgehog"), saved)
    assert not [p for p in saved.iterdir() if p.name.startswith(".")]
    assert torch.equal(output(flexformer.load_adapter(build("bert"), saved), **inputs("bert")), expected)


def test_adapter_of_a_bare_model_fits_one_with_a_head(saved):
    torch.manual_seed(0)
    headed = make("BertForSequenceClassification", "BertConfig", **FAMILIES["bert"][2])
    headed.bert.load_state_dict(build("bert").state_dict(), strict=False)
    flexformer.load_adapter(headed, saved)
    expected = flexformer.load_adapter(build("bert"), saved)(**inputs("bert")).last_hidden_state
    assert torch.equal(headed.bert(**inputs("bert")).last_hidden_state, expected)


def test_adapter_fits_a_descendant_and_another_precision(saved):
    tuned = build("bert")
    with torch.no_grad():
        for parameter in tuned.parameters():
            parameter.add_(0.01 * torch.randn_like(parameter))
    flexformer.load_adapter(tuned, saved)
    flexformer.load_adapter(build("bert").to(torch.bfloat16), saved)


def test_adapter_is_refused_by_other_weights_unless_asked(saved):
    stranger = build("bert", seed=1)
    with pytest.raises(ValueError, match=r"made for a model \(bert\) with other weights.*check_weights=False"):
        flexformer.load_adapter(stranger, saved)
    assert stranger.config._attn_implementation == "sdpa"
    flexformer.load_adapter(stranger, saved, check_weights=False)


@pytest.mark.parametrize(
    ("family", "changes", "reason"),
    [
        ("roberta", {}, r"but this model is a roberta"),
        ("bert", {"num_hidden_layers": 3}, r"with 2 attention layers, but this model has 3"),
        ("bert", {"num_attention_heads": 8}, r"attention layer 0 has num_heads 4; here it is 8"),
        ("bert", {"hidden_size": 64}, r"has head_dim 8; here it is 16"),
        ("bert", {"is_decoder": True}, r"has is_causal False; here it is True"),
    ],
)
def test_adapter_is_refused_by_a_model_of_another_shape(saved, family, changes, reason):
    model = build(family, **changes)
    with pytest.raises(ValueError, match=reason):
        flexformer.load_adapter(model, saved)
    assert model.config._attn_implementation == "sdpa"


@pytest.mark.parametrize(
    ("fields", "reason"),
    [
        ({"format": "peft"}, r"is not a manifest of an adapter"),
        ({"format_version": 2}, r"has format version 2, written by flexformer '.*'; this one reads version 1"),
        ({"format_version": True}, r"has format version True"),
        ({"attention": 3}, r"attention is a int"),
        ({"attention": "eval"}, r"attention 'eval' is unknown"),
        ({"attention": "longformer"}, r"cannot replace that of a pretrained model"),
        ({"attention": "hedgehog"}, r"options that do not work: option 'num_frequencies' is unknown"),
        ({"options": {"num_frequencies": 10**15}}, r"of shape .*; the kernels have"),
        ({"options": {"num_frequencies": 10**40}}, r"options that do not work"),
        ({"options": {"num_frequencies": -1}}, r"options that do not work: num_frequencies -1"),
        ({"options": {"map_location": "cpu"}}, r"option 'map_location' is unknown"),
        ({"layers": [0, 7]}, r"names layer 7 of 2"),
        ({"layers": [1, 0]}, r"are not rising indices"),
        ({"layers": [0]}, r"holds a tensor layers\.1\.centre_k that the kernels do not have"),
        ({"layers": "01"}, r"layers is a str"),
        ({"sha256": "../../../etc/passwd"}, r"sha256 is not 64 hexadecimal digits"),
        ({"sha256": "0" * 64}, r"is missing; the adapter is not complete"),
        ({"size": 10**9}, r"bytes instead of 1000000000"),
        ({"base": {}}, r"base\.\w+ is missing"),
        ({"extra": 1}, r"extra is unknown"),
    ],
)
def test_manifest_with_a_wrong_field_is_refused(saved, fields, reason):
    change(saved, **fields)
    model = build("bert")
    with pytest.raises(ValueError, match=reason):
        flexformer.load_adapter(model, saved)
    assert_untouched(model)


@pytest.mark.parametrize(
    ("sample", "reason"),
    [([], r"sample and base\.geometry are not of as many"), ([{"w": [10**400]}] * 2, r"no weight can be")],
)
def test_sample_of_weights_that_tells_nothing_is_refused(saved, sample, reason):
    base = json.loads((saved / "flexformer_adapter.json").read_text())["base"]
    change(saved, base=base | {"sample": sample})
    with pytest.raises(ValueError, match=reason):
        flexformer.load_adapter(build("bert"), saved)


def test_an_adapter_that_is_replaced_while_it_is_read_is_read_again(saved, monkeypatch):
    other = trained("bert", "hedgehog")

    def find_sites(*arguments):
        monkeypatch.undo()
        flexformer.save_adapter(other, saved)
        return adapter.find_sites(*arguments)

    monkeypatch.setattr(adapter, "find_sites", find_sites)
    loaded = flexformer.load_adapter(build("bert"), saved)
    assert torch.equal(output(loaded, **inputs("bert")), output(other, **inputs("bert")))


def test_folder_without_an_adapter_says_so(tmp_path):
    with pytest.raises(FileNotFoundError, match=r"is not an adapter: it has no flexformer_adapter\.json"):
        flexformer.load_adapter(build("bert"), tmp_path)


@pytest.mark.parametrize("kept", [0, 1, 100, -1])
def test_truncated_tensors_are_refused(saved, kept):
    path = tensor_file(saved)
    path.write_bytes(path.read_bytes()[:kept])
    model = build("bert")
    with pytest.raises(ValueError, match=r"is damaged: it has \d+ bytes instead of"):
        flexformer.load_adapter(model, saved)
    assert_untouched(model)


@settings(max_examples=25, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(data=st.data())
def test_any_flipped_bit_of_the_tensors_is_noticed(saved, data):
    path = tensor_file(saved)
    good = path.read_bytes()
    place, bit = data.draw(st.integers(0, len(good) - 1)), data.draw(st.integers(0, 7))
    try:
        path.write_bytes(good[:place] + bytes([good[place] ^ (1 << bit)]) + good[place + 1 :])
        found = manifest.read(saved)
        with pytest.raises(ValueError, match="checksum"):
            adapter.read_tensors(path, found, {})
    finally:
        path.write_bytes(good)


@settings(max_examples=40, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(data=st.data())
def test_damaged_manifest_never_gives_anything_but_a_clear_error(saved, data):
    path = saved / manifest.FILE
    good = path.read_bytes()
    cut = data.draw(st.integers(0, len(good)))
    junk = data.draw(st.binary(max_size=8))
    try:
        path.write_bytes(good[:cut] + junk + good[cut + data.draw(st.integers(0, 20)) :])
        try:
            manifest.read(saved)
        except ValueError as error:
            assert str(path) in str(error)  # noqa: PT017  (both outcomes are right)
    finally:
        path.write_bytes(good)


def test_tensors_of_another_shape_are_refused_before_they_are_read(saved, tmp_path):
    flexformer.save_adapter(trained(num_frequencies=3), tmp_path / "other")
    other = tensor_file(tmp_path / "other")
    found = json.loads((tmp_path / "other" / manifest.FILE).read_text())
    shutil.copy(other, saved)
    change(saved, sha256=found["sha256"], size=found["size"])
    model = build("bert")
    with pytest.raises(ValueError, match=r"of shape \(4, 3, 8\); the kernels have \(4, 8, 8\)"):
        flexformer.load_adapter(model, saved)
    assert_untouched(model)


def test_unconverted_model_has_no_adapter_to_save(tmp_path):
    with pytest.raises(ValueError, match="is not converted"):
        flexformer.save_adapter(build("bert"), tmp_path / "adapter")
    assert not (tmp_path / "adapter").exists()


def test_half_precision_kernels_come_back_exactly(tmp_path):
    model = trained("llama").to(torch.bfloat16)
    flexformer.save_adapter(model, tmp_path)
    twin = flexformer.load_adapter(build("llama").to(torch.bfloat16), tmp_path)
    assert torch.equal(output(twin, **inputs("llama")), output(model, **inputs("llama")))


@pytest.mark.parametrize("attention", ["softmax", "linear"])
def test_adapter_is_refused_where_an_inner_model_is_converted(attention, tmp_path):
    outer = build("gpt2")
    assert outer.base_model is not outer
    flexformer.save_adapter(flexformer.convert(build("gpt2"), "linear"), tmp_path)
    flexformer.convert(outer.base_model, attention)
    with pytest.raises(ValueError, match="contains one that is"):
        flexformer.load_adapter(outer, tmp_path)
