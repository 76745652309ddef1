"""`flexformer distill`, `finetune` and `convert` as a user meets them."""

from __future__ import annotations

import json

import pytest
import tiny
import torch
import transformers
import yaml

import flexformer
from flexformer.cli.main import main
from flexformer.experiments.conversion import lengths_for
from flexformer.experiments.presets import FOLDER
from flexformer.experiments.presets import pretrained as presets
from flexformer.inspection import load
from flexformer.tasks import glue
from flexformer.training.checkpoints import Marker, complete

SHORT = ["--preset", "smoke", "--training.steps", "4", "--training.evaluate_every", "2"]


@pytest.fixture
def command(tmp_path, monkeypatch, capsys):
    monkeypatch.setenv("COLUMNS", "160")
    monkeypatch.setenv("FLEXFORMER_DATA", tiny.glue(tmp_path / "data"))
    monkeypatch.chdir(tmp_path)
    tiny.save(tmp_path / "encoder")
    tiny.save(tmp_path / "decoder", "llama")
    tiny.corpus(tmp_path / "corpus.txt")
    capsys.readouterr()

    def run(*arguments: str) -> tuple[int, str, str]:
        status = main([str(argument) for argument in arguments])
        said = capsys.readouterr()
        return status, said.out, said.err

    return run


def test_distill_prints_every_layer_and_writes_adapter_and_report(command, tmp_path):
    status, out, err = command("distill", "encoder", "corpus.txt", *SHORT)
    assert (status, err) == (0, "")
    folder = tmp_path / "runs/distill-encoder-flexformer-c-smoke-0"
    report = json.loads((folder / "report.json").read_text())
    for layer in report["after"]["layers"]:
        assert f"{layer['kl']:.3f}" in out
    assert "embedding cosine" in out
    assert "--data.join true puts them together" not in out
    said = report["lengths"]["train"]
    assert f"Kernels learned from sequences of {said['median']} tokens (median; at most {said['longest']})" in out
    assert f"{folder.relative_to(tmp_path)}/adapter holds the kernels" in out
    flexformer.load("encoder", folder / "adapter")


def test_distill_as_json_holds_record_and_report(command):
    status, out, _ = command("distill", "decoder", "glue:cola", "--attention", "hedgehog", "--json", *SHORT)
    assert status == 0
    found = json.loads(out)
    assert found["status"] == "finished"
    assert found["report"]["after"]["outputs"]["perplexity"] > 1


def test_convert_is_for_one_process(command, monkeypatch):
    monkeypatch.setenv("WORLD_SIZE", "2")
    status, _, err = command("convert", "decoder", "corpus.txt", *SHORT)
    assert status == 2
    assert "runs on one process; distil on several with flexformer distill" in err


def test_convert_reports_layers_outputs_and_costs(command, tmp_path):
    status, out, err = command("convert", "decoder", "corpus.txt", "--output", "x", "--lengths", "[16,64]", *SHORT)
    assert (status, err) == (0, "")
    assert "Cost and outputs, softmax -> converted" in out
    costs = json.loads((tmp_path / "x/costs.json").read_text())
    assert [(row["length"], row["model"]) for row in costs] == [
        (16, "softmax"),
        (16, "converted"),
        (64, "softmax"),
        (64, "converted"),
    ]
    assert all(row["seconds"] > 0 and row["token_seconds"] > 0 and not row["note"] for row in costs)
    softmax, converted = ([row["cache_bytes"] for row in costs if row["model"] == m] for m in ("softmax", "converted"))
    assert converted[0] == converted[1]
    assert softmax[1] > 3 * softmax[0]
    outputs = [row["outputs"] for row in costs]
    assert outputs[0] is outputs[2] is None
    assert all(found["perplexity"] > 1 and 0 < found["embedding_cosine"] <= 1 for found in (outputs[1], outputs[3]))
    page = (tmp_path / "x/report.md").read_text()
    for part in (
        "# decoder with flexformer-c",
        "(median; at most 32) and were judged on held-out ones of",
        "| perplexity, softmax | perplexity | same token |",
        "| layer | entropy | KL before | KL after |",
        "| perplexity |",
        "| 64 |",
    ):
        assert part in page
    flexformer.load("decoder", tmp_path / "x/adapter")
    assert 'flexformer generate x --prompt "..."' in out
    written = [command("generate", where, "--prompt", "the", "--tokens", "6", "--json") for where in ("x", "x/adapter")]
    assert [status for status, _, _ in written] == [0, 0]
    first, second = (json.loads(out) for _, out, _ in written)
    assert first["text"] == second["text"]
    assert first["state_bytes"] == converted[0]


@pytest.mark.slow
def test_lengths_far_beyond_those_learned_from_are_warned_of(command, tmp_path):
    arguments = ["convert", "encoder", "corpus.txt", "--data.max_length", "64", "--lengths", "[32,64]", "--output"]
    for name, more, warned in (
        ("apart", ["--data.max_length", "16"], True),
        ("joined", ["--data.join", "true"], False),
    ):
        status, out, err = command(*arguments, name, *SHORT, *more)
        assert (status, err) == (0, "")
        said = "Warning: kernels learned from at most 16 tokens, and nothing about 64; for long inputs distil"
        assert (said in out, said in (tmp_path / name / "report.md").read_text()) == (warned, warned)
    report = json.loads((tmp_path / "joined/report.json").read_text())
    assert report["lengths"]["train"]["median"] > 48


@pytest.mark.slow
def test_convert_extends_positions_and_the_adapter_does_it_again(command, tmp_path):
    arguments = ["encoder", "corpus.txt", "--positions", "200", "--data.max_length", "100", "--data.join", "true"]
    status, _, err = command("convert", *arguments, "--output", "x", "--lengths", "[100,200]", *SHORT)
    assert (status, err) == (0, "")
    assert json.loads((tmp_path / "x/report.json").read_text())["lengths"]["train"]["longest"] > 64
    costs = json.loads((tmp_path / "x/costs.json").read_text())
    assert all(row["seconds"] > 0 and row["peak_bytes"] is not None and not row["note"] for row in costs)
    loaded = flexformer.load("encoder", tmp_path / "x/adapter")
    assert loaded(torch.full((1, 200), 5)).last_hidden_state.isfinite().all()
    given = ["--attention", "flexformer-c", "--adapter", "x/adapter", "--data.max_length", "200", "--output", "tuned"]
    assert command("finetune", "encoder", "rte", *given, *SHORT)[0] == 0
    assert flexformer.load(tmp_path / "tuned/model")(torch.full((1, 200), 5)).logits.isfinite().all()


def test_distill_says_where_paragraphs_are_much_shorter_than_asked_for(command, tmp_path):
    (tmp_path / "short.txt").write_text("\n\n".join("w1 w2 w3 w4 w5 w6 w7 w8" for _ in range(60)))
    status, out, _ = command("distill", "encoder", "short.txt", *SHORT)
    assert status == 0
    assert "paragraphs are much shorter than data.max_length 32; --data.join true puts them together" in out
    assert "Warning: kernels learned from at most 10 tokens, and nothing about 64" in out


def test_costs_are_measured_up_to_the_models_positions(command):
    assert lengths_for("encoder", None) == [64]
    assert lengths_for("encoder", [8, 64, 8]) == [8, 64]
    assert lengths_for("encoder", None, 600) == [128, 256, 512]
    assert lengths_for("encoder", [65], 600) == [65]
    with pytest.raises(ValueError, match="lengths has 65; encoder has positions for 1 to 64 tokens"):
        lengths_for("encoder", [65])


@pytest.mark.slow
def test_encoders_have_no_cost_per_token(command):
    status, out, _ = command("convert", "encoder", "corpus.txt", "--json", *SHORT)
    assert status == 0
    costs = json.loads(out)["costs"]
    assert {row["length"] for row in costs} == {64}
    assert all(row["token_seconds"] is None for row in costs)


def test_finetune_recovers_in_one_command(command, tmp_path):
    given = ["--attention", "flexformer-s", "--procedure", "recover", "--distill.training.steps", "4"]
    status, out, err = command("finetune", "encoder", "rte", "--output", "x", *given, *SHORT)
    assert (status, err) == (0, "")
    assert "RTE, accuracy in per cent, smoke scale" in out
    for name in ("reference", "distilled", "recovered"):
        assert name in out
    records = [
        json.loads((tmp_path / f"x/{name}/run.json").read_text()) for name in ("reference", "distill", "finetune")
    ]
    assert [record["attention"] for record in records] == ["softmax", "flexformer-s", "flexformer-s"]
    assert records[1]["options"]["training"]["steps"] == 4
    assert records[1]["options"]["text"] == "glue:rte"


def test_adapter_of_text_is_used_on_a_task(command, tmp_path):
    assert command("distill", "encoder", "corpus.txt", "--attention", "hedgehog", "--output", "d", *SHORT)[0] == 0
    given = ["--attention", "hedgehog", "--adapter", "d/adapter", "--output", "f", "--json"]
    status, out, err = command("finetune", "encoder", "cola", *given, *SHORT)
    assert status == 0, err
    assert json.loads(out)["finetuned"]["options"]["adapter"] == "d/adapter"


def test_finetune_on_text_shows_perplexity(command, tmp_path):
    given = ["--attention", "hedgehog", "--procedure", "recover", "--distill.training.steps", "2"]
    status, out, err = command("finetune", "decoder", "text:corpus.txt", *given, *SHORT)
    assert (status, err) == (0, "")
    record = json.loads((tmp_path / "runs/text-hedgehog-smoke-0/finetune/run.json").read_text())
    assert f"{record['metrics']['test_perplexity']:.2f}" in out
    assert command("generate", "runs/text-hedgehog-smoke-0/finetune", "--prompt", "the", "--tokens", "4")[0] == 0
    status, _, err = command("evaluate", "runs/text-hedgehog-smoke-0/finetune")
    assert status == 1
    assert "was tested when it ended" in err


@pytest.mark.parametrize(
    ("arguments", "status", "message"),
    [
        (["distill", "encoder", "corpus.txt", "--preset", "cpuu"], 2, "preset 'cpuu' is unknown, did you mean 'cpu'?"),
        (["distill", "encoder", "gone.txt", *SHORT], 1, "text gone.txt is not there"),
        (["distill", "encoder", "corpus.txt", "--attention", "performer", *SHORT], 1, "no parameters to learn"),
        (["distill", "encoder", "corpus.txt", "--loss.name", "kl", *SHORT], 2, "loss.name"),
        (["distill", "nowhere", "corpus.txt", *SHORT], 1, "base nowhere cannot be loaded"),
        (["generate", "encoder", "--tokens", "1"], 1, "encoder holds no whole language model"),
        (["finetune", "encoder", "colla", *SHORT], 2, "GLUE task 'colla' is unknown, did you mean 'cola'?"),
        (["finetune", "encoder", "mrpc", *SHORT], 1, "MRPC is not in"),
        (["finetune", "encoder", "cola", "--reference", "x", *SHORT], 2, "of use with --procedure recover only"),
        (["finetune", "encoder", "cola", "--distill.training.steps", "3", *SHORT], 2, "--distill.* is of use with"),
        (["finetune", "decoder", "text:corpus.txt", "--data.select", "dev", *SHORT], 1, "data.select dev is for GLUE"),
        (["convert", "encoder", "corpus.txt", "--lengths", "[0]", *SHORT], 1, "lengths has 0"),
        (["distill", "encoder", "corpus.txt", "--positions", "64", *SHORT], 1, "length 64 is not above the 64 tokens"),
        (["distill", "decoder", "corpus.txt", "--positions", "96", *SHORT], 1, "has rotary positions, which have no"),
        (["distill", "encoder", "glue:rte", "--data.join", "true", *SHORT], 1, "data.join true does not fit text glue"),
    ],
)
def test_mistakes_are_one_line(command, arguments, status, message):
    found, _, err = command(*arguments)
    assert found == status
    assert err.startswith(f"flexformer {arguments[0]}: error: ")
    assert err.count("\n") == 1
    assert message in err


@pytest.mark.parametrize("name", ["distill", "finetune", "convert"])
def test_help_explains_with_an_example(command, name):
    status, out, _ = command(name, "--help")
    assert status == 0
    for part in ("--preset PRESET", "--optimizer.lr LR", "--training.steps STEPS", "example:"):
        assert part in out


def test_print_config_shows_the_presets_settings(command):
    status, out, err = command("finetune", "x", "qqp", "--preset", "paper", "--print_config")
    assert (status, err) == (0, "")
    shown = yaml.safe_load(out)
    assert shown["schedule"] == {"name": "linear", "warmup": 28318}
    assert shown["distill"]["training"]["steps"] == 20000


@pytest.mark.parametrize(
    ("task", "batch", "rate", "warmup", "steps"),
    [
        ("cola", 16, 1e-5, 320, 5336),
        ("sst2", 32, 1e-5, 1256, 20935),
        ("mrpc", 16, 1e-5, 137, 2296),
        ("stsb", 16, 2e-5, 214, 3598),
        ("qqp", 32, 1e-5, 28318, 113272),
        ("mnli", 32, 1e-5, 7432, 123873),
        ("qnli", 32, 1e-5, 1986, 33112),
        ("rte", 16, 2e-5, 122, 2036),
    ],
)
def test_paper_preset_fine_tunes_with_fairseqs_settings(task, batch, rate, warmup, steps):
    given, stage = presets.load_finetune("paper", "base", task)
    assert (given.training.batch_size, given.optimizer.lr) == (batch, rate)
    assert (given.schedule.name, given.schedule.warmup, given.training.steps) == ("linear", warmup, steps)
    optimizer = given.optimizer
    assert (optimizer.beta1, optimizer.beta2, optimizer.eps, optimizer.weight_decay) == (0.9, 0.98, 1e-6, 0.1)
    assert (stage.training.steps, stage.training.batch_size, stage.optimizer.lr) == (20000, 32, 1e-3)


def test_a_preset_may_have_settings_for_some_attentions(command):
    assert presets.load_distill("cpu", "base", "text", attention="flexformer-n").optimizer.lr == 3e-2
    assert presets.load_distill("cpu", "base", "text", attention="flexformer-c").optimizer.lr == 1e-1
    assert presets.load_finetune("cpu", "base", "cola", attention="hedgehog")[1].optimizer.lr == 1e-1
    for given, rate in (((), 1e-1), (("--attention", "flexformer-n"), 3e-2), (("--optimizer.lr", "0.5"), 0.5)):
        status, out, _ = command("distill", "x", "y", *given, "--print_config")
        assert (status, yaml.safe_load(out)["optimizer"]["lr"]) == (0, rate)


def test_options_of_a_kernel_are_given_together_or_one_by_one(command):
    wanted = {"num_real": "half", "floor": 1e-6, "orthogonal": True}
    together = ("--kernel.options", '{"num_real": "half", "floor": 1e-6, "orthogonal": true}')
    apart = [f"--kernel.options.{word}" for word in ("num_real=half", "floor=1e-6", "orthogonal=true")]
    for given in (together, apart):
        status, out, _ = command("distill", "x", "y", *given, "--print_config")
        assert (status, yaml.safe_load(out)["kernel"]["options"]) == (0, wanted)


def test_every_preset_is_read_and_says_what_it_is():
    for path in (*FOLDER.glob("distill/*.yaml"), *FOLDER.glob("finetune/*.yaml")):
        assert path.read_text().startswith("# ")
    for preset in presets.names("distill"):
        assert presets.load_distill(preset, "base", "text").preset == preset
    for task in glue.TASKS:
        assert presets.names("finetune", task) == ("cpu", "paper", "smoke")
        for preset in presets.names("finetune", task):
            given, stage = presets.load_finetune(preset, "base", task, attention="hedgehog", data={"max_length": 17})
            assert (given.attention, given.data.max_length) == ("hedgehog", 17)
            assert stage.training.select == "best"


def test_an_interrupted_distillation_writes_with_what_it_has_learned(command, tmp_path):
    assert command("distill", "decoder", "corpus.txt", "--output", "run", *SHORT)[0] == 0
    record = json.loads((tmp_path / "run/run.json").read_text())
    (tmp_path / "run/run.json").write_text(json.dumps(record | {"status": "interrupted"}))
    folder = tmp_path / "run/checkpoints/checkpoint-2"
    folder.mkdir(parents=True)
    (folder / "model.safetensors").write_bytes(b"")
    complete(folder, Marker(2))
    status, out, _ = command("generate", "run", "--prompt", "w1 w2", "--tokens", "3", "--json")
    assert status == 0
    assert json.loads(out)["context"] == 1 + 2 + 3 - 1  # with a start token, and the last one not read
    # Gone on with and killed: what was written at the interruption is not what has been learned.
    (tmp_path / "run/run.json").write_text(json.dumps(record | {"status": "running", "steps": 1}))
    status, _, err = command("generate", "run", "--prompt", "w1 w2", "--tokens", "3")
    assert status == 1
    assert "let it finish or interrupt it with Ctrl-C" in err


def test_a_base_that_was_moved_can_be_named(command, tmp_path):
    assert command("distill", "decoder", "corpus.txt", "--output", "run", *SHORT)[0] == 0
    (tmp_path / "decoder").rename(tmp_path / "elsewhere")
    status, _, err = command("generate", "run", "--prompt", "w1", "--tokens", "2")
    assert status == 1
    assert "say where it is" in err
    assert command("generate", "run", "--prompt", "w1", "--tokens", "2", "--base", "elsewhere")[0] == 0
    assert command("inspect", "run", "--text", "w1 w2 w3", "--base", "elsewhere")[0] == 0


@pytest.mark.slow
def test_a_fine_tuned_model_is_inspected_with_its_own_weights(command, tmp_path):
    assert command("distill", "decoder", "corpus.txt", "--output", "run", *SHORT)[0] == 0
    rates = ["--optimizer.lr", "0.05", "--adapter", "run/adapter"]
    arguments = ["finetune", "decoder", "text:corpus.txt", "--attention", "flexformer-c", "--output", "tuned"]
    assert command(*arguments, *rates, *SHORT)[0] == 0
    assert command("inspect", "tuned", "--text", "w1 w2 w3 w4", "--output", "found")[0] == 0
    assert command("inspect", "tuned/model", "--text", "w1 w2 w3 w4", "--output", "whole")[0] == 0
    found, whole = (
        json.loads((tmp_path / name / "inspection.json").read_text())["heads"] for name in ("found", "whole")
    )
    assert [head["attended"] for head in found] == [head["attended"] for head in whole]
    checkpoint = load(tmp_path / "tuned")
    assert "run/adapter" in checkpoint.start_note
    (tmp_path / "tuned" / "model").rename(tmp_path / "renamed")
    assert command("inspect", "renamed", "--text", "w1 w2 w3 w4", "--output", "again")[0] == 0
    again = json.loads((tmp_path / "again" / "inspection.json").read_text())["heads"]
    assert [head["attended"] for head in again] == [head["attended"] for head in found]
    (tmp_path / "renamed").rename(tmp_path / "tuned" / "model")
    assert command("inspect", "tuned", "--base", "decoder")[0] == 1  # it holds its own weights


def test_more_tokens_than_positions_are_refused_in_one_line(command, tmp_path):
    config = transformers.GPT2Config(
        vocab_size=tiny.SIZES["vocab_size"], n_positions=16, n_embd=32, n_layer=1, n_head=2, bos_token_id=1
    )
    flexformer.convert(transformers.GPT2LMHeadModel(config)).save_pretrained(tmp_path / "short")
    tiny.tokenizer("llama").save_pretrained(tmp_path / "short")
    status, _, err = command("generate", "short", "--prompt", "w1", "--tokens", "20")
    assert status == 1
    assert "prompt and tokens make 22; this model reads 16 tokens at most" in err
    assert command("inspect", "short", "--text", "w1 " * 30)[0] == 0


def test_rotary_models_may_be_measured_beyond_what_they_were_made_for(command, tmp_path):
    assert lengths_for(str(tmp_path / "decoder"), [128]) == [128]
    with pytest.raises(ValueError, match=r"lengths has 128; .* has positions for 1 to 64 tokens"):
        lengths_for(str(tmp_path / "encoder"), [128])
