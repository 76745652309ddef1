"""A model and its kernels from files in one call."""

from __future__ import annotations

import json
from pathlib import Path

import numpy as np
import pytest
import torch
from families import build, inputs, output, trained
from transformers import AutoModel, BertModel, LlamaForCausalLM

import flexformer
from flexformer.cli import generate
from flexformer.distill.pretrained import load_config, load_tokenizer
from flexformer.inspection import load as load_checkpoint


def test_base_and_adapter_make_the_converted_model(tmp_path):
    model = trained("llama")
    flexformer.save_adapter(model, tmp_path / "adapter")
    build("llama").save_pretrained(tmp_path / "base")
    loaded = flexformer.load(tmp_path / "base", tmp_path / "adapter", dtype=torch.float32)
    assert isinstance(loaded, LlamaForCausalLM)
    assert not loaded.training
    assert torch.equal(output(loaded, **inputs("llama")), output(model, **inputs("llama")))


def test_adapter_alone_finds_its_base(tmp_path):
    build("bert").save_pretrained(tmp_path / "base")
    model = flexformer.convert(BertModel.from_pretrained(tmp_path / "base"))
    flexformer.save_adapter(model, tmp_path / "adapter")
    loaded = flexformer.load(tmp_path / "adapter")
    assert torch.equal(output(loaded, **inputs("bert")), output(model, **inputs("bert")))


def test_adapter_finds_its_base_from_another_folder_or_asks_for_it(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    build("bert").save_pretrained("base")
    model = flexformer.convert(BertModel.from_pretrained("base"), layers=np.array([1]))
    flexformer.save_adapter(model, "adapter")
    monkeypatch.chdir(tmp_path.parent)
    loaded = flexformer.load(tmp_path / "adapter")
    assert torch.equal(output(loaded, **inputs("bert")), output(model, **inputs("bert")))
    (tmp_path / "base").rename(tmp_path / "moved")
    with pytest.raises(ValueError, match=r"was made for .*base, which is not found from here; .*load\(base, adapter\)"):
        flexformer.load(tmp_path / "adapter")
    flexformer.load(tmp_path / "moved", tmp_path / "adapter")


def test_adapter_of_a_nameless_base_asks_for_it(tmp_path):
    flexformer.save_adapter(trained(), tmp_path)
    with pytest.raises(ValueError, match=r"does not say what its base model is called; use flexformer\.load\(base"):
        flexformer.load(tmp_path)


@pytest.mark.parametrize("family", ["bert", "vit", "gpt2"])
@pytest.mark.parametrize("attention", ["flexformer-n", "performer"])
def test_model_saved_whole_comes_back_converted(family, attention, tmp_path):
    model = trained(family, attention, layers=[1])
    model.save_pretrained(tmp_path)
    loaded = flexformer.load(tmp_path)
    assert type(loaded) is type(model)
    assert torch.equal(output(loaded, **inputs(family)), output(model, **inputs(family)))
    assert torch.equal(
        output(flexformer.restore(loaded), **inputs(family)), output(flexformer.restore(model), **inputs(family))
    )


def test_model_saved_in_shards_comes_back_converted(tmp_path):
    model = trained("llama")
    model.save_pretrained(tmp_path, max_shard_size="20KB")
    assert len(list(tmp_path.glob("*.safetensors"))) > 2
    assert torch.equal(output(flexformer.load(tmp_path), **inputs("llama")), output(model, **inputs("llama")))


def test_plain_from_pretrained_gives_the_softmax_model(tmp_path):
    trained("bert").save_pretrained(tmp_path)
    plain = AutoModel.from_pretrained(tmp_path).eval()
    assert torch.equal(output(plain, **inputs("bert")), output(build("bert"), **inputs("bert")))


def test_model_without_conversion_or_adapter_says_so(tmp_path):
    build("bert").save_pretrained(tmp_path)
    with pytest.raises(ValueError, match="was not converted, or of which only a part was; name an adapter"):
        flexformer.load(tmp_path)


def test_saved_model_that_lost_its_kernels_says_so(tmp_path):
    model = trained("bert")
    model.save_pretrained(tmp_path, state_dict=build("bert").state_dict())
    with pytest.raises(ValueError, match=r"lacks the tensor .*kernel\.centre_k"):
        flexformer.load(tmp_path)


@pytest.mark.parametrize(
    "entry", [True, {"attention": "linear"}, {"attention": "linear", "options": {}, "layers": [9]}]
)
def test_config_that_was_tampered_with_is_refused(tmp_path, entry):
    trained("bert", "linear").save_pretrained(tmp_path)
    config = json.loads((tmp_path / "config.json").read_text())
    (tmp_path / "config.json").write_text(json.dumps(config | {"flexformer": entry}))
    with pytest.raises(ValueError, match=r"flexformer did not write|layers has 9"):
        flexformer.load(tmp_path)


def test_pickled_weights_are_not_loaded(tmp_path):
    model = trained("bert")
    flexformer.save_adapter(model, tmp_path / "adapter")
    build("bert").save_pretrained(tmp_path / "base")
    torch.save(build("bert").state_dict(), tmp_path / "base" / "pytorch_model.bin")
    (tmp_path / "base" / "model.safetensors").unlink()
    with pytest.raises(OSError, match="safetensors"):
        flexformer.load(tmp_path / "base", tmp_path / "adapter")


def test_code_from_the_hub_is_not_run(tmp_path):
    with pytest.raises(TypeError, match="trust_remote_code is not taken here"):
        flexformer.load(tmp_path, trust_remote_code=True)
    with pytest.raises(TypeError, match="output_loading_info is not taken here"):
        flexformer.load(tmp_path, output_loading_info=True)


def test_code_in_a_model_s_folder_is_not_run_nor_asked_for(tmp_path, monkeypatch):
    config = {"model_type": "own", "auto_map": {"AutoConfig": "own.OwnConfig"}}
    (tmp_path / "config.json").write_text(json.dumps(config))
    (tmp_path / "own.py").write_text(f"open({str(tmp_path / 'ran')!r}, 'w')\nclass OwnConfig: pass\n")
    monkeypatch.setattr("builtins.input", lambda *_: "y")
    monkeypatch.setattr("signal.alarm", lambda *_: 0)
    for load in (flexformer.load, load_config, load_tokenizer, load_checkpoint, generate.load):
        with pytest.raises((ValueError, OSError)):
            load(Path(tmp_path))
    assert not (tmp_path / "ran").exists()


def test_damaged_adapter_is_noticed_before_the_base_is_loaded(tmp_path):
    flexformer.save_adapter(trained(), tmp_path)
    (tmp_path / "flexformer_adapter.json").write_text("{")
    with pytest.raises(ValueError, match="is damaged: it is not JSON"):
        flexformer.load("no/such-model", tmp_path)
