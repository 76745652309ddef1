"""Language models trained from text to record: learning, scoring every token once, and resuming exactly."""

from __future__ import annotations

import json
import math
import signal
import subprocess
import sys
from dataclasses import replace
from pathlib import Path

import pytest
import torch
import toy_language_run
from rich.console import Console
from transformers import AutoModelForCausalLM, AutoTokenizer

from flexformer import kernels
from flexformer.experiments import presets
from flexformer.tasks.paper_language import WIKITEXT_103_WORDS
from flexformer.training import LanguageJob, build_language_model, evaluate, factor, run_job
from flexformer.training.callbacks import read_log
from flexformer.training.language import LanguageTrainer

CAUSAL = ("softmax", *kernels.names())
QUIET = Console(quiet=True)


@pytest.fixture(scope="module")
def root(tmp_path_factory):
    return tmp_path_factory.mktemp("data")


def train(output, root, attention, unit="word", **training):
    return run_job(LanguageJob(toy_language_run.options(attention, root, unit, **training)), output, QUIET)


@pytest.fixture(scope="module")
def finished(root, tmp_path_factory):
    folder = tmp_path_factory.mktemp("run") / "run"
    return folder, train(folder, root, "flexformer-n", steps=40)


@pytest.mark.parametrize("attention", CAUSAL)
def test_every_causal_attention_learns_with_the_smoke_preset(attention, root, tmp_path):
    options = presets.load_language("smoke", attention=attention, data={"root": str(root)})
    record = run_job(LanguageJob(options), tmp_path / "run", QUIET)
    assert (record.status, record.task, record.scale) == ("finished", "lm", "smoke")
    losses = [entry["loss"] for entry in read_log(tmp_path / "run/log.jsonl") if "loss" in entry]
    assert max(losses[-3:]) < min(losses[0], 4.0)
    assert record.metrics["test_bits_per_byte"] == pytest.approx(record.metrics["test_loss"] / math.log(2))


def test_perplexity_is_over_every_token_of_the_split_once(finished, root):
    folder, record = finished
    job = LanguageJob(toy_language_run.options("flexformer-n", root))
    model = AutoModelForCausalLM.from_pretrained(folder / "model").eval()
    total = count = 0.0
    tokens = torch.from_numpy(job.text.tokens.read("test").astype("int64"))
    for start in range(0, len(tokens), 32):
        block = tokens[start : start + 32]
        before = tokens[start - 1] if start else torch.tensor(job.text.start_token)
        with torch.no_grad():
            logits = model(torch.cat((before[None], block[:-1]))[None]).logits[0]
        total -= logits.gather(1, block[:, None]).double().sum().item()
        count += len(block)
    assert count == len(tokens) == sum(len(item["labels"]) for item in job.dataset("test"))
    assert record.metrics["test_perplexity"] == pytest.approx(math.exp(total / count), rel=1e-5)


def test_best_weights_by_validation_are_kept(finished):
    folder, record = finished
    validated = {e["step"]: e["eval_perplexity"] for e in read_log(folder / "log.jsonl") if "eval_perplexity" in e}
    assert record.selected_step == min(validated, key=validated.get)
    assert record.metrics["validation_perplexity"] == min(validated.values())
    _, found = evaluate(folder, QUIET, "validation")
    assert found.metrics["perplexity"] == pytest.approx(min(validated.values()), rel=1e-6)
    assert evaluate(folder, QUIET, limit=3)[1].examples == 3


def test_run_keeps_its_tokenizer_beside_the_weights(finished):
    folder, _ = finished
    tokenizer = AutoTokenizer.from_pretrained(folder / "model")
    assert tokenizer.decode(tokenizer("said the cat\n").input_ids) == " said the cat\n"


def test_portions_of_a_batch_count_by_tokens(root, tmp_path):
    """A batch with a short block in portions gives the gradient of the whole batch."""
    gradients = []
    for accumulation in (1, 3):
        options = toy_language_run.options("flexformer-s", root, accumulation=accumulation)
        off = dict.fromkeys(("dropout", "attention_dropout", "activation_dropout", "softmax_dropout"), 0.0)
        job = LanguageJob(replace(options, model=replace(options.model, **off)))
        job.prepare(QUIET)
        torch.manual_seed(0)
        blocks = job.text.dataset("validation")
        items = [blocks[i] for i in (0, 1, 2, 3, 4, len(blocks) - 1)]
        assert len(items[-1]["labels"]) < 32
        trainer = LanguageTrainer(job.model(), job, job.options, tmp_path, items, items)
        size = 6 // accumulation
        portions = [job.collate(items[i : i + size]) for i in range(0, 6, size)]
        count = trainer._get_num_items_in_batch(portions, torch.device("cpu"))
        assert count == sum(len(item["labels"]) for item in items)
        trainer.current_gradient_accumulation_steps = accumulation
        for portion in portions:
            trainer.training_step(trainer.model, portion, count)
        gradients.append([p.grad for p in trainer.model.parameters()])
    for a, b in zip(*gradients, strict=True):
        torch.testing.assert_close(a, b, rtol=1e-4, atol=1e-6)


def outcome(folder):
    record = json.loads((folder / "run.json").read_text())
    kept = {key: record[key] for key in ("status", "metrics", "steps", "selected_step", "tokens", "parameters")}
    return kept, (folder / "log.jsonl").read_text(), (folder / "model" / "model.safetensors").read_bytes()


def killed_and_resumed(tmp_path, root, attention, unit, *death):
    toy_language_run.options(attention, root)  # writes the text
    arguments = [tmp_path / "cut", root, attention, unit, *death]
    command = [sys.executable, toy_language_run.__file__, *map(str, arguments)]
    cut = subprocess.run(command, capture_output=True, text=True, timeout=300)
    assert cut.returncode == -signal.SIGKILL, cut.stderr
    train(tmp_path / "cut", root, attention, unit)
    train(tmp_path / "whole", root, attention, unit)
    assert outcome(tmp_path / "cut") == outcome(tmp_path / "whole")


@pytest.mark.slow
def test_killed_run_resumes_to_the_same_metrics_log_and_weights(tmp_path, root):
    killed_and_resumed(tmp_path, root, "performer", "word", "at", 13)


@pytest.mark.slow
@pytest.mark.parametrize("death", [("at", 3), ("at", 12), ("saving", 15), ("testing",)], ids=str)
@pytest.mark.parametrize("unit", ["word", "byte"])
@pytest.mark.parametrize("attention", CAUSAL)
def test_any_causal_attention_resumes_exactly_wherever_it_was_killed(tmp_path, root, attention, unit, death):
    killed_and_resumed(tmp_path, root, attention, unit, *death)


def test_bfloat16_trains(root, tmp_path):
    record = train(tmp_path / "run", root, "flexformer-n", bf16=True)
    assert math.isfinite(record.metrics["test_loss"])


def test_attention_without_a_causal_form_is_refused_before_anything_is_read(tmp_path):
    with pytest.raises(ValueError, match="attention 'longformer' has no causal form"):
        train(tmp_path / "run", tmp_path / "data", "longformer")
    assert not (tmp_path / "data" / "lm").exists()
    assert not (tmp_path / "run" / "run.json").exists()


@pytest.mark.parametrize("preset", presets.names("lm"))
def test_preset_builds_its_model(preset):
    options = presets.load_language(preset)
    with torch.device("meta"):
        model = build_language_model(options, WIKITEXT_103_WORDS)
    assert model.config.vocabulary == "adaptive"
    assert build_meta(options, 256).config.vocabulary == ("adaptive" if "paper" in preset else "tied")


def build_meta(options, vocab_size):
    if options.model.vocabulary == "adaptive":
        vocab_size = WIKITEXT_103_WORDS
    with torch.device("meta"):
        return build_language_model(options, vocab_size)


@pytest.mark.parametrize(
    ("preset", "total", "dropout"), [("paper-small", 41_267_200, 0.1), ("paper-big", 246_933_504, 0.2)]
)
def test_paper_presets_are_the_papers(preset, total, dropout):
    options = presets.load_language(preset, attention="softmax")
    assert sum(p.numel() for p in build_meta(options, WIKITEXT_103_WORDS).parameters()) == total
    model, optimizer, training = options.model, options.optimizer, options.training
    assert model.width // model.heads == 64
    assert (model.dropout, model.attention_dropout, model.activation_dropout) == (dropout, 0.1, 0.1)
    assert (options.data.source, options.data.length) == ("wikitext103", 512)
    assert (optimizer.lr, optimizer.beta1, optimizer.beta2, optimizer.clip) == (5e-4, 0.9, 0.98, 0.1)
    assert (training.steps, training.batch_size, training.select) == (100_000, 128, "best")
    schedule = options.schedule
    rates = {t: optimizer.lr * factor(schedule.name, t, schedule.warmup, training.steps) for t in (1, 4000, 100_000)}
    assert rates == {1: pytest.approx(1.25e-7), 4000: pytest.approx(5e-4), 100_000: pytest.approx(1e-4)}


@pytest.mark.data
def test_wikitext2_learns(data_folder, tmp_path):
    if not Path(data_folder, "wikitext2").is_dir():
        pytest.skip("FLEXFORMER_DATA has no wikitext2")
    changes = {"source": str(Path(data_folder, "wikitext2")), "root": str(tmp_path / "root")}
    options = presets.load_language("smoke", data=changes)
    record = run_job(LanguageJob(options), tmp_path / "run", QUIET)
    losses = [entry["loss"] for entry in read_log(tmp_path / "run/log.jsonl") if "loss" in entry]
    assert losses[-1] < losses[0]
    assert record.metrics["test_perplexity"] < 33_280
