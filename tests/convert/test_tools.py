"""Converted models in the tools users already have: compiler, checkpointing, Trainer, PEFT."""

from __future__ import annotations

import copy
import itertools

import pytest
import torch
from families import build, inputs, output, trained
from torch.utils.data import Dataset
from transformers import Trainer, TrainingArguments

import flexformer


class Tokens(Dataset):
    """Sequences to memorise."""

    def __init__(self, count=16, length=24):
        self.ids = torch.randint(3, 61, (count, length), generator=torch.Generator().manual_seed(0))

    def __len__(self):
        return len(self.ids)

    def __getitem__(self, i):
        return {"input_ids": self.ids[i], "attention_mask": torch.ones_like(self.ids[i]), "labels": self.ids[i]}


def training(folder, steps, **options):
    return TrainingArguments(
        str(folder),
        max_steps=steps,
        per_device_train_batch_size=4,
        learning_rate=1e-3,
        save_steps=2,
        report_to=[],
        use_cpu=True,
        disable_tqdm=True,
        seed=0,
        **options,
    )


@pytest.mark.parametrize(
    ("family", "layers"),
    [("bert", None), ("llama", [1]), pytest.param("llama", None, marks=pytest.mark.slow)],
)
def test_forward_compiles_as_one_graph(family, layers):
    torch.compiler.reset()
    model, arguments = flexformer.convert(build(family), layers=layers), inputs(family)
    if family == "llama":
        arguments["use_cache"] = False
    compiled = torch.compile(model, fullgraph=True, backend="eager")
    torch.testing.assert_close(output(compiled, **arguments), output(model, **arguments), rtol=1e-4, atol=1e-5)


@pytest.mark.slow
def test_compiled_training_step_has_the_same_gradients():
    torch.compiler.reset()
    model, arguments = flexformer.convert(build("llama")), inputs("llama")
    twin = copy.deepcopy(model)
    call = {**arguments, "labels": arguments["input_ids"], "use_cache": False}
    torch.compile(model, fullgraph=True, backend="aot_eager")(**call).loss.backward()
    twin(**call).loss.backward()
    for a, b in zip(model.parameters(), twin.parameters(), strict=True):
        torch.testing.assert_close(a.grad, b.grad, rtol=1e-3, atol=1e-5)


def test_compiler_is_told_to_pass_a_mask():
    torch.compiler.reset()
    model = torch.compile(flexformer.convert(build("llama")), fullgraph=True, backend="eager")
    with pytest.raises(Exception, match=r"under torch\.compile without attention_mask"):
        model(input_ids=torch.randint(3, 61, (1, 9)), use_cache=False)


@pytest.mark.parametrize("attention", ["flexformer-n", "performer", "rfa"])
@pytest.mark.parametrize("family", ["bert", "llama"])
def test_gradient_checkpointing_changes_no_gradient(family, attention):
    arguments = inputs(family)
    gradients = []
    for checkpointing in (False, True):
        torch.manual_seed(0)
        model = flexformer.convert(build(family), attention).train()
        for module in model.modules():
            if isinstance(module, torch.nn.Dropout):
                module.p = 0.0
        if checkpointing:
            model.gradient_checkpointing_enable({"use_reentrant": False})
        torch.manual_seed(1)
        model(**arguments)[0].square().mean().backward()
        gradients.append({name: p.grad for name, p in model.named_parameters() if p.grad is not None})
    assert any(".kernel." in name for name in gradients[0]) or attention == "performer"
    for name, gradient in gradients[0].items():
        torch.testing.assert_close(gradients[1][name], gradient, rtol=1e-4, atol=1e-6)


def test_autocast_leaves_states_and_features_in_float32():
    model, arguments = flexformer.convert(build("llama")), inputs("llama")
    with torch.autocast("cpu", torch.bfloat16):
        out = model(**arguments, use_cache=True)
    assert {layer.state.S.dtype for layer in out.past_key_values.layers} == {torch.float32}
    expected = output(model, **arguments)
    mixed = out.logits.detach().float() * arguments["attention_mask"][..., None]
    assert (mixed - expected).norm() < 0.05 * expected.norm()


def test_trainer_trains_kernels_and_resumes_with_them(tmp_path):
    data = Tokens()
    whole = Trainer(trained("gpt2"), training(tmp_path / "whole", 4), train_dataset=data)
    before = {name: p.detach().clone() for name, p in whole.model.named_parameters()}
    whole.train()
    moved = [
        name for name, p in whole.model.named_parameters() if ".kernel." in name and not torch.equal(p, before[name])
    ]
    assert len(moved) == 10

    first = Trainer(trained("gpt2"), training(tmp_path / "halves", 4), train_dataset=data)
    first.train(resume_from_checkpoint=str(tmp_path / "whole" / "checkpoint-2"))
    for (name, a), b in zip(whole.model.named_parameters(), first.model.parameters(), strict=True):
        assert torch.equal(a, b), name

    loaded = flexformer.load(tmp_path / "whole" / "checkpoint-4")
    assert torch.equal(output(loaded, **inputs("gpt2")), output(whole.model.eval(), **inputs("gpt2")))


def test_adapter_lives_beside_a_lora(tmp_path):
    peft = pytest.importorskip("peft")
    config = peft.LoraConfig(r=2, target_modules=["q_proj", "v_proj"], init_lora_weights=False)
    model = peft.get_peft_model(build("llama"), config)
    flexformer.convert(model)
    assert [i for i, _ in flexformer.convert.kernels(model)] == [0, 1]
    model.save_pretrained(tmp_path)
    flexformer.save_adapter(model, tmp_path)
    assert not any("kernel" in name for name in peft.load_peft_weights(str(tmp_path)))

    twin = peft.PeftModel.from_pretrained(build("llama"), tmp_path)
    flexformer.load_adapter(twin, tmp_path)
    prompt = inputs("llama")
    assert torch.equal(output(twin, **prompt), output(model, **prompt))
    tokens = [m.generate(**prompt, max_new_tokens=6, do_sample=False) for m in (model, twin)]
    assert torch.equal(*tokens)
    flexformer.restore(twin)
    assert torch.equal(
        output(twin, **prompt), output(peft.PeftModel.from_pretrained(build("llama"), tmp_path), **prompt)
    )


def test_lora_may_come_after_conversion_and_hold_the_kernels(tmp_path):
    peft = pytest.importorskip("peft")
    config = peft.LoraConfig(r=2, target_modules=["q_proj"], modules_to_save=["kernel"], init_lora_weights=False)
    model = peft.get_peft_model(trained("llama"), config)
    prompt = inputs("llama")
    optimizer = torch.optim.Adam(flexformer.parameter_groups(model), lr=1e-2)
    for _ in itertools.repeat(None, 2):
        model(**prompt, labels=prompt["input_ids"]).loss.backward()
        optimizer.step()
        optimizer.zero_grad()
    kernels = [kernel for _, kernel in flexformer.convert.kernels(model)]
    originals = [m.original_module for m in model.modules() if isinstance(m, peft.utils.ModulesToSaveWrapper)]
    assert not any(torch.equal(a.tau, b.tau) for a, b in zip(kernels, originals, strict=True))
    with model.disable_adapter():
        assert torch.equal(output(model, **prompt), output(trained("llama"), **prompt))

    flexformer.save_adapter(model, tmp_path / "kernels")
    model.save_pretrained(tmp_path / "lora")
    twin = peft.PeftModel.from_pretrained(trained("llama"), tmp_path / "lora")
    assert torch.equal(output(twin, **prompt), output(model, **prompt))
    merged = flexformer.load_adapter(build("llama"), tmp_path / "kernels")
    assert all(torch.equal(a.tau, b.tau) for a, (_, b) in zip(kernels, flexformer.convert.kernels(merged), strict=True))
