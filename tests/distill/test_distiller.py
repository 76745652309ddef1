"""Kernels that learn in a model: teacher-forced, each layer for itself, nothing else touched."""

from __future__ import annotations

import math

import pytest
import tiny
import torch
import transformers
from torch import nn

import flexformer
from flexformer.distill import Distiller, LossOptions, Report, fidelity
from flexformer.distill.fidelity import softmax_attention
from flexformer.distill.loss import SUMS, compare
from flexformer.distill.report import metrics

LEARNED = ("hedgehog", "flexformer-s", "flexformer-n", "flexformer-c")
KINDS = tuple(tiny.KINDS)


def batch(length: int = 24) -> dict[str, torch.Tensor]:
    generator = torch.Generator().manual_seed(1)
    ids = torch.randint(4, 44, (3, length), generator=generator)
    mask = torch.ones_like(ids)
    mask[0, -9:] = 0
    return {"input_ids": ids, "attention_mask": mask}


def distiller(kind="bert", attention="flexformer-n", loss=None, **options) -> Distiller:
    return Distiller(flexformer.convert(tiny.model(kind), attention, **options), loss)


def states(model: nn.Module, inputs) -> torch.Tensor:
    with torch.no_grad():
        return model.base_model(**inputs)[0] * inputs["attention_mask"][..., None]


@pytest.mark.parametrize("kind", KINDS)
def test_the_model_reads_with_its_own_attention(kind):
    inputs = batch()
    expected = states(tiny.model(kind), inputs)
    made = distiller(kind)
    seen = []
    hook = made.model.base_model.register_forward_hook(lambda module, args, out: seen.append(out[0].detach()))
    made.train()(**inputs)
    made.eval()(**inputs)
    hook.remove()
    for found in seen:
        torch.testing.assert_close(found * inputs["attention_mask"][..., None], expected, rtol=1e-4, atol=1e-5)
    with flexformer.convert.observation.observing(softmax_attention):
        torch.testing.assert_close(states(made.model, inputs), expected, rtol=1e-4, atol=1e-5)


@pytest.mark.parametrize("kind", KINDS)
def test_a_layers_kernel_changes_no_other_layers_loss(kind):
    made, inputs = distiller(kind), batch()
    before = Report.of(made.eval()(**inputs)["sums"].numpy(), made.layers)
    with torch.no_grad():
        for parameter in made.kernels[0].parameters():
            parameter.zero_()
    after = Report.of(made(**inputs)["sums"].numpy(), made.layers)
    assert after.layers[0] != before.layers[0]
    assert after.layers[1] == before.layers[1]


def test_kernels_alone_have_parameters_state_and_gradients():
    made = distiller()
    names = {name for name, _ in made.named_parameters()}
    assert names == {
        f"kernels.{i}.{name}" for i in (0, 1) for name in ("tau", "omega1", "omega2", "centre_q", "centre_k")
    }
    assert set(made.state_dict()) == names
    made.train()(**batch())["loss"].backward()
    assert all(parameter.grad is not None and parameter.grad.abs().sum() > 0 for parameter in made.parameters())
    kernels = {id(parameter) for parameter in made.parameters()}
    assert all(parameter.grad is None for parameter in made.model.parameters() if id(parameter) not in kernels)
    assert not made.model.training


def test_gradients_follow_the_factor_of_the_loss():
    made, inputs = distiller(), batch()
    made.train()(**inputs)["loss"].backward()
    once = [parameter.grad.clone() for parameter in made.parameters()]
    made.zero_grad()
    (made(**inputs)["loss"] * 3.0).backward()
    for parameter, gradient in zip(made.parameters(), once, strict=True):
        torch.testing.assert_close(parameter.grad, 3.0 * gradient)


@pytest.mark.parametrize("attention", LEARNED)
@pytest.mark.parametrize("kind", KINDS)
def test_learning_brings_weights_and_outputs_nearer_to_softmax(kind, attention):
    made, inputs = distiller(kind, attention), batch()
    made.initialise_from_data(**inputs)
    optimizer = torch.optim.Adam(made.parameters(), lr=2e-2)
    before = Report.of(made.eval()(**inputs)["sums"].numpy(), made.layers).mean()
    near = fidelity(made.model, [inputs])
    for _ in range(40):
        optimizer.zero_grad()
        made.train()(**inputs)["loss"].backward()
        optimizer.step()
    after = Report.of(made.eval()(**inputs)["sums"].numpy(), made.layers).mean()
    assert 0 <= after.kl < 0.7 * before.kl
    assert after.entropy == before.entropy
    assert after.output_error < before.output_error
    nearer = fidelity(made.model, [inputs])
    assert nearer["embedding_cosine"] > near["embedding_cosine"]
    assert nearer["hidden_error"] < near["hidden_error"]


def test_a_kernel_that_is_no_number_is_not_taken_for_a_good_one():
    made, inputs = distiller(), batch()
    with torch.no_grad():
        made.kernels[0].omega1[0] = torch.nan
    sums = made.eval()(**inputs)["sums"].numpy()
    found = Report.of(sums, made.layers)
    assert math.isnan(found.layers[0].kl)
    assert math.isnan(found.mean().kl)
    assert math.isnan(metrics(sums, made.layers)["loss"])
    assert len(found.heads[0]) == made.kernels[0].num_heads
    assert found.layers[1].kl > 0


def test_every_module_keeps_its_mode():
    made = distiller().train()
    made.model.train()
    made.model.base_model.embeddings.eval()
    before = {name: module.training for name, module in made.model.named_modules()}
    made(**batch())
    fidelity(made.model, [batch()])
    assert {name: module.training for name, module in made.model.named_modules()} == before


def test_loss_is_the_same_in_training_and_in_evaluation():
    made, inputs = distiller(loss=LossOptions("paper", outputs=0.5)), batch()
    learned, measured = made.train()(**inputs)["loss"], made.eval()(**inputs)
    torch.testing.assert_close(learned.detach(), measured["loss"])
    sums = measured["sums"].sum((0, 2))
    torch.testing.assert_close(
        (sums[:, SUMS.index("loss")] / sums[:, SUMS.index("rows")]).mean().float(), measured["loss"]
    )


def test_centres_start_from_the_data():
    made, inputs = distiller(attention="flexformer-s"), batch()
    assert all(kernel.centre_k.abs().sum() == 0 for kernel in made.kernels)
    before = [kernel.omega.clone() for kernel in made.kernels]
    made.initialise_from_data(**inputs)
    assert all(kernel.centre_k.abs().sum() > 0 for kernel in made.kernels)
    assert all(torch.equal(kernel.omega, omega) for kernel, omega in zip(made.kernels, before, strict=True))


def test_hybrids_learn_where_they_have_kernels():
    made, inputs = distiller(attention="hedgehog", layers=[1]), batch()
    assert made.layers == [1]
    assert made.eval()(**inputs)["sums"].shape == (3, 1, 4, len(SUMS))
    made.train()(**inputs)["loss"].backward()
    assert made.kernels[0].map.grad.abs().sum() > 0


@pytest.mark.parametrize("attention", ["linear", "performer", "softmax"])
def test_nothing_to_learn_is_said(attention):
    with pytest.raises(ValueError, match="no parameters to learn; use hedgehog or a flexformer attention"):
        distiller(attention=attention)


def test_model_moves_with_its_kernels():
    made = distiller().double()
    assert all(p.dtype == torch.float64 for p in (*made.parameters(), *made.model.parameters()))
    assert made.eval()(**batch())["loss"].dtype == torch.float64


def test_fidelity_of_the_original_is_perfect_and_words_are_counted():
    inputs = batch()
    llama = flexformer.convert(tiny.model("llama"), "softmax")
    found = fidelity(llama, [inputs, inputs])
    assert found["embedding_cosine"] == pytest.approx(1.0)
    assert found["hidden_error"] == pytest.approx(0.0, abs=1e-5)
    assert found["same_token"] == 1.0
    with torch.no_grad():
        labels = inputs["input_ids"].masked_fill(inputs["attention_mask"] == 0, -100)
        loss = tiny.model("llama")(**inputs, labels=labels).loss
    assert found["softmax_perplexity"] == pytest.approx(math.exp(loss), rel=1e-4)
    assert found["perplexity"] == pytest.approx(found["softmax_perplexity"], rel=1e-5)
    with pytest.raises(ValueError, match="batches is empty"):
        fidelity(llama, [])


def test_fidelity_takes_the_logits_that_the_model_makes():
    sizes = {**tiny.SIZES, "num_key_value_heads": 2, "logits_scaling": 4.0}
    torch.manual_seed(0)
    granite = transformers.GraniteForCausalLM(transformers.GraniteConfig(**sizes)).eval()
    inputs = batch()
    labels = inputs["input_ids"].masked_fill(inputs["attention_mask"] == 0, -100)
    with torch.no_grad():
        loss = granite(**inputs, labels=labels).loss
    found = fidelity(flexformer.convert(granite, "softmax"), [inputs])
    assert found["softmax_perplexity"] == pytest.approx(math.exp(loss), rel=1e-4)


def test_fidelity_knows_models_that_call_what_is_inside_their_body():
    sizes = {
        "ffn_dim": 48,
        "word_embed_proj_dim": 32,
        "hidden_size": 32,
        "num_attention_heads": 4,
        "num_hidden_layers": 2,
    }
    sizes |= {"vocab_size": tiny.SIZES["vocab_size"], "max_position_embeddings": 64}
    opt = transformers.OPTForCausalLM(transformers.OPTConfig(**sizes)).eval()
    found = fidelity(flexformer.convert(opt, "softmax"), [batch()])
    assert found["hidden_error"] == pytest.approx(0.0, abs=1e-5)
    assert found["same_token"] == 1.0


def test_a_module_that_is_run_several_times_learns_from_all_of_them():
    sizes = {**tiny.SIZES, **tiny.NO_DROPOUT, "embedding_size": 16}
    torch.manual_seed(0)
    albert = transformers.AlbertModel(transformers.AlbertConfig(**sizes)).eval()
    made = Distiller(flexformer.convert(albert, "hedgehog"))
    made.train()(**batch())["loss"].backward()
    (learned,) = (p.grad.clone() for p in made.parameters())
    both = made.eval()(**batch())
    calls = []

    def one(which):
        def observe(call):
            calls.append(call)
            return softmax_attention(call)

        made._read(observe, **batch(), token_type_ids=None)
        return compare(calls[which], made.loss_options, learn=True, measure=True)

    first, second = one(0), one(1)
    torch.testing.assert_close(both["loss"], (first.loss + second.loss) / 2)
    torch.testing.assert_close(learned, (first.gradients[0] + second.gradients[0]) / 2)
    torch.testing.assert_close(both["sums"][:, 0], first.sums + second.sums, rtol=1e-5, atol=1e-5)
