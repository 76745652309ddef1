"""Language models: losses, masks, files, and parameters counted without allocating any."""

from __future__ import annotations

import pytest
import torch
from small_language_models import ADAPTIVE, CAUSAL, config, language_model, prompts
from torch.utils.flop_counter import FlopCounterMode
from transformers import AutoConfig, AutoModelForCausalLM

import flexformer
from flexformer.models import CausalLM, CausalLMConfig
from flexformer.models.positions import sinusoid_at

WIKITEXT_103 = {"vocab_size": 267_744, "vocabulary": "adaptive", "cutoffs": [20_000, 60_000]}
SMALL = WIKITEXT_103 | {
    "hidden_size": 512,
    "intermediate_size": 2048,
    "num_hidden_layers": 6,
    "num_attention_heads": 8,
}
BIG = WIKITEXT_103 | {
    "hidden_size": 1024,
    "intermediate_size": 4096,
    "num_hidden_layers": 16,
    "num_attention_heads": 16,
}


def count(attention: str, settings: dict) -> int:
    with torch.device("meta"):
        model = CausalLM(CausalLMConfig(**settings, attention=attention))
    assert all(p.is_meta for p in model.parameters())
    return sum(p.numel() for p in model.parameters())


@pytest.mark.parametrize(("settings", "total"), [(SMALL, 41_267_200), (BIG, 246_933_504)], ids=["small", "big"])
def test_softmax_model_has_as_many_parameters_as_the_original(settings, total):
    assert count("softmax", settings) == total


@pytest.mark.parametrize(("settings", "layers", "heads"), [(SMALL, 6, 8), (BIG, 16, 16)], ids=["small", "big"])
@pytest.mark.parametrize("attention", CAUSAL)
def test_attention_adds_exactly_its_own_parameters(attention, settings, layers, heads):
    width = settings["hidden_size"]
    per_head = {
        "flexformer-s": 64 * 64 + 1,
        "flexformer-n": 2 * 64 * 64 + 1,
        "flexformer-c": 2 * 64 * 64 + 1,
        "hedgehog": 64 * 64,
        "rfa": 64,
        "polaformer": 2 * 64,
    }
    whole = {"polaformer": width * width}
    expected = layers * (heads * per_head.get(attention, 0) + whole.get(attention, 0))
    assert count(attention, settings) - count("softmax", settings) == expected


@pytest.mark.parametrize(("attention", "share"), [("flexformer-s", 12), ("flexformer-n", 6)])
@pytest.mark.parametrize("heads", [8, 16])
def test_share_of_a_layer_is_one_over_twelve_or_six_heads(attention, share, heads):
    """With n = d, of the matrices that a layer consists of: 12 (h d)^2 weights."""
    width = 64 * heads
    settings = {"hidden_size": width, "intermediate_size": 4 * width, "num_attention_heads": heads}
    layers = [count(name, settings | {"num_hidden_layers": n}) for name in ("softmax", attention) for n in (1, 2)]
    plain, ours = layers[1] - layers[0], layers[3] - layers[2]
    assert (ours - plain) / plain == pytest.approx(1 / (share * heads), rel=0.003)


def operations(length: int, dim: int, frequencies: int, is_causal: bool) -> int:
    kernel = flexformer.kernels.build("flexformer-n", 1, dim, num_frequencies=frequencies)
    q, k, v = torch.randn(3, 1, 1, length, dim)
    with FlopCounterMode(display=False) as counter, torch.no_grad():
        flexformer.linear_attention(q, k, v, kernel, is_causal=is_causal)
    return counter.get_total_flops()


def test_floating_point_operations_grow_as_length_times_both_widths():
    base = operations(4096, 32, 32, is_causal=False)
    assert operations(8192, 32, 32, is_causal=False) / base == pytest.approx(2, rel=0.01)
    assert operations(4096, 32, 64, is_causal=False) / base == pytest.approx(2, rel=0.05)
    assert operations(4096, 64, 64, is_causal=False) / base == pytest.approx(4, rel=0.05)


def test_floating_point_operations_of_the_causal_form_grow_as_the_length():
    # Pairs within a chunk add a term with one width alone.
    assert operations(8192, 32, 32, True) / operations(4096, 32, 32, True) == pytest.approx(2, rel=0.05)


@pytest.mark.parametrize("attention", CAUSAL)
def test_changing_a_token_changes_nothing_before_it(attention):
    model = language_model(attention, **ADAPTIVE)
    ids = prompts(padding=0)["input_ids"]
    other = ids.clone()
    other[:, 9] = (ids[:, 9] + 7) % 50 + 3
    with torch.no_grad():
        a, b = model(ids).logits, model(other).logits
    torch.testing.assert_close(a[:, :9], b[:, :9], rtol=1e-5, atol=1e-6)
    assert not torch.allclose(a[:, 9], b[:, 9])


@pytest.mark.parametrize("changes", [{}, ADAPTIVE], ids=["tied", "adaptive"])
def test_loss_is_the_mean_surprise_of_the_next_token(changes):
    model, ids = language_model(**changes), prompts(padding=0)["input_ids"]
    labels = ids.masked_fill(torch.rand(ids.shape) < 0.3, -100)
    with torch.no_grad():
        logs = model(ids).logits.log_softmax(-1)
        found = model(ids, labels=labels)
        again = model(ids[:, :-1], shift_labels=labels[:, 1:])
        surprise = again.surprise
        part = model(ids, labels=labels, num_items_in_batch=1000).loss
    scored = labels[:, 1:] != -100
    expected = -logs[:, :-1].gather(-1, labels[:, 1:].clamp(min=0)[..., None])[..., 0][scored]
    assert found.logits is None
    torch.testing.assert_close(found.loss, expected.mean())
    torch.testing.assert_close(again.loss, expected.mean())
    torch.testing.assert_close(surprise[scored], expected)
    assert surprise[~scored].eq(0).all()
    torch.testing.assert_close(part, expected.sum() / 1000)


@pytest.mark.parametrize("name", ["labels", "shift_labels", "position_ids"])
def test_what_does_not_fit_the_tokens_is_named(name):
    ids = torch.randint(3, 61, (2, 9))
    with pytest.raises(ValueError, match=rf"{name} has shape \(2, 8\); input_ids has \(2, 9\)"):
        language_model()(ids, **{name: ids[:, :8]})


@pytest.mark.parametrize("vocabulary", [{}, ADAPTIVE], ids=["tied", "adaptive"])
def test_tokens_that_are_not_in_the_vocabulary_are_named(vocabulary):
    with pytest.raises(IndexError, match=r"ids 3 to 61 are not all in 0\.\.60"):
        language_model(**vocabulary)(torch.tensor([[3, 61]]))


def test_a_text_without_labels_costs_nothing():
    ids = torch.randint(3, 61, (2, 9))
    model = language_model()
    loss = model(ids, labels=torch.full_like(ids, -100)).loss
    loss.backward()
    assert loss.item() == 0
    assert all(p.grad is None or torch.isfinite(p.grad).all() for p in model.parameters())


def test_labels_cannot_be_given_twice():
    ids = prompts()["input_ids"]
    with pytest.raises(ValueError, match="labels and shift_labels both given"):
        language_model()(ids, labels=ids, shift_labels=ids)


def test_mask_must_cover_what_the_cache_has_seen():
    model, ids = language_model(), prompts()["input_ids"]
    cache = model(ids).past_key_values
    with pytest.raises(ValueError, match=r"attention_mask has shape \(3, 1\); pass \(B, seen \+ T\) = \(3, 15\)"):
        model(ids[:, :1], torch.ones(3, 1), past_key_values=cache)


def test_padding_on_the_right_changes_no_loss():
    model, ids = language_model(**ADAPTIVE), prompts(padding=0)["input_ids"]
    longer = torch.cat((ids, torch.ones(3, 4, dtype=torch.long)), 1)
    labels = torch.cat((ids, torch.full((3, 4), -100)), 1)
    mask = torch.cat((torch.ones(3, 14), torch.zeros(3, 4)), 1).bool()
    with torch.no_grad():
        torch.testing.assert_close(
            model(longer, labels=labels, key_mask=mask).loss, model(ids, labels=ids).loss, rtol=1e-5, atol=1e-6
        )


def test_positions_are_sines_in_one_half_and_cosines_in_the_other_from_two_on():
    found = sinusoid_at(torch.arange(5), 8)
    rates = 10_000.0 ** (-torch.arange(4) / 3)
    angles = torch.arange(2, 7)[:, None] * rates
    torch.testing.assert_close(found, torch.cat((angles.sin(), angles.cos()), -1))
    assert sinusoid_at(torch.arange(5), 7)[:, -1].eq(0).all()


@pytest.mark.parametrize("attention", CAUSAL)
@pytest.mark.parametrize(
    "changes", [{}, ADAPTIVE | {"positions": "learned", "final_norm": True}], ids=["tied", "adaptive"]
)
def test_saved_model_comes_back_by_its_auto_class(attention, changes, tmp_path):
    model, ids = language_model(attention, **changes), prompts()["input_ids"]
    model.save_pretrained(tmp_path)
    loaded = AutoModelForCausalLM.from_pretrained(tmp_path)
    assert isinstance(loaded, CausalLM)
    assert AutoConfig.from_pretrained(tmp_path).attention == attention
    with torch.no_grad():
        assert torch.equal(loaded.eval()(ids).logits, model(ids).logits)


def test_every_parameter_gets_a_gradient_and_checkpointing_changes_none():
    gradients = []
    for checkpointing in (False, True):
        model = language_model(**ADAPTIVE, hidden_dropout=0.0, activation_dropout=0.0).train()
        if checkpointing:
            model.gradient_checkpointing_enable()
        ids = torch.arange(61).repeat(2, 1)
        model(ids, labels=ids).loss.backward()
        gradients.append([p.grad for p in model.parameters()])
        assert all(g is not None and g.abs().sum() > 0 for g in gradients[-1])
    for a, b in zip(*gradients, strict=True):
        torch.testing.assert_close(a, b)


@pytest.mark.parametrize("attention", ["reformer", "longformer", "bigbird", "skyformer"])
def test_attention_without_a_causal_form_is_refused(attention):
    with pytest.raises(ValueError, match=f"attention '{attention}' has no causal form"):
        CausalLM(config(attention))


def test_vocabulary_is_not_resized_and_not_replaced_by_something_else():
    model = language_model()
    with pytest.raises(NotImplementedError, match="vocabulary cannot be resized"):
        model.resize_token_embeddings(70)
    with pytest.raises(TypeError, match=r"value is a Linear; pass a flexformer\.models\.Vocabulary"):
        model.set_input_embeddings(torch.nn.Linear(2, 2))
    assert model.get_input_embeddings()(torch.tensor([[3]])).shape == (1, 1, 32)


def test_bfloat16_computes_the_same_loss_roughly():
    model, ids = language_model(**ADAPTIVE), prompts(padding=0)["input_ids"]
    with torch.no_grad():
        full = model(ids, labels=ids).loss
        with torch.autocast("cpu", torch.bfloat16):
            half = model(ids, labels=ids).loss
    assert half.dtype == torch.float32
    torch.testing.assert_close(half, full, rtol=2e-2, atol=0)
