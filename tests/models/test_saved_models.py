"""The models are Hugging Face's: they save, load, and are found by AutoModel."""

from __future__ import annotations

import json

import pytest
import torch
from small_models import classifier, config, dual_encoder
from torch import nn
from transformers import AutoConfig, AutoModel, AutoModelForSequenceClassification

from flexformer import ATTENTIONS
from flexformer.models import Classifier, DualEncoder, Encoder, EncoderConfig

IDS = torch.arange(36).reshape(2, 18) % 17


def assert_same_weights(one: nn.Module, other: nn.Module) -> None:
    a, b = one.state_dict(), other.state_dict()
    assert a.keys() == b.keys()
    assert all(torch.equal(a[name], b[name]) for name in a)


def logits(model: nn.Module, *inputs: torch.Tensor) -> torch.Tensor:
    torch.manual_seed(3)  # Reformer draws its hashes in the forward pass
    return model.eval()(*inputs).logits


@pytest.mark.parametrize("attention", ATTENTIONS)
def test_classifier_is_the_same_after_saving_and_loading(attention, tmp_path):
    model = classifier(attention, positions="learned")
    model.save_pretrained(tmp_path)
    assert {path.name for path in tmp_path.iterdir()} == {"config.json", "model.safetensors"}
    loaded = AutoModelForSequenceClassification.from_pretrained(tmp_path)
    assert type(loaded) is Classifier
    assert_same_weights(model, loaded)
    assert torch.equal(logits(model, IDS), logits(loaded, IDS))


@pytest.mark.parametrize(
    ("attention", "more"),
    [
        ("flexformer-n", {"centres": True}),
        ("flexformer-c", {"centres": True}),
        ("flexformer-s", {"phase_bias": True}),
        ("hedgehog", {"tied": False}),
    ],
)
def test_what_is_in_a_file_is_kept_where_an_option_adds_to_it(attention, more, tmp_path):
    model = classifier(attention)
    with torch.no_grad():
        for parameter in model.parameters():
            parameter.add_(0.25)
    model.save_pretrained(tmp_path)
    loaded = Classifier.from_pretrained(tmp_path, attention_options=more)
    found = loaded.state_dict()
    assert len(found) > len(model.state_dict())
    for name, value in model.state_dict().items():
        assert torch.equal(found[name], value), name


def test_texts_without_a_token_pool_to_zeros_or_are_refused():
    nothing = torch.zeros(2, 0, dtype=torch.long)
    assert torch.equal(Encoder(config(pooling="mean"))(nothing).pooled, torch.zeros(2, 32))
    with pytest.raises(ValueError, match=r"input_ids has shape \(2, 0\); 'first' needs a token to pool"):
        Encoder(config(pooling="first"))(nothing)


def test_dual_encoder_is_the_same_after_saving_and_loading(tmp_path):
    model = dual_encoder(interaction="concatenation", pooling="first")
    model.save_pretrained(tmp_path)
    loaded = AutoModelForSequenceClassification.from_pretrained(tmp_path)
    assert type(loaded) is DualEncoder
    assert loaded.config.interaction == "concatenation"
    assert_same_weights(model, loaded)
    assert torch.equal(logits(model, IDS, IDS.flip(1)), logits(loaded, IDS, IDS.flip(1)))


def test_encoder_is_found_by_automodel_and_in_a_classifiers_files(tmp_path):
    model = classifier()
    model.save_pretrained(tmp_path)
    encoder = AutoModel.from_pretrained(tmp_path)
    assert type(encoder) is Encoder
    assert_same_weights(model.encoder, encoder)


def test_options_of_the_attention_are_kept_in_the_configuration(tmp_path):
    model = classifier("flexformer-s", attention_options={"num_frequencies": 3, "floor": 0.05})
    model.save_pretrained(tmp_path)
    kept = AutoConfig.from_pretrained(tmp_path)
    assert isinstance(kept, EncoderConfig)
    assert kept.attention_options == {"num_frequencies": 3, "floor": 0.05}
    kernel = AutoModelForSequenceClassification.from_pretrained(tmp_path).encoder.blocks[0].attention.mechanism.kernel
    assert (kernel.num_frequencies, kernel.floor) == (3, 0.05)


def test_saved_configuration_names_what_it_is_for(tmp_path):
    classifier().save_pretrained(tmp_path)
    kept = json.loads((tmp_path / "config.json").read_text())
    assert kept["model_type"] == "flexformer-encoder"
    assert kept["architectures"] == ["Classifier"]


def test_weights_that_a_file_lacks_start_as_in_a_new_model(tmp_path):
    classifier("performer").encoder.save_pretrained(tmp_path)
    model = Classifier.from_pretrained(tmp_path, num_labels=3)
    assert model.head.layers[-1].out_features == 3
    for linear in model.head.layers:
        bound = (6 / sum(linear.weight.shape)) ** 0.5
        assert linear.weight.abs().max() <= bound
        assert linear.weight.std() > bound / 3
        assert torch.equal(linear.bias, torch.zeros_like(linear.bias))


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"attention": "sofmax"}, "attention 'sofmax' is unknown"),
        ({"attention_options": {"frequencies": 3}}, "option 'frequencies' is unknown to attention 'flexformer-n'"),
        ({"pooling": "max"}, "pooling"),
        ({"hidden_size": 31}, "embed_dim 31 is not divisible by 2"),
    ],
)
def test_impossible_settings_are_refused_when_the_model_is_built(change, message):
    with pytest.raises(Exception, match=message):
        Classifier(config(**change))


def test_cosformer_knows_the_longest_input():
    kernel = classifier("cosformer").encoder.blocks[0].attention.mechanism.kernel
    assert kernel.max_length == 41  # 40 tokens behind the class token
    assert classifier("cosformer", pooling="mean").encoder.blocks[0].attention.mechanism.kernel.max_length == 40
