"""The commands for language models: train lm, evaluate, generate, reproduce params and the sweep."""

from __future__ import annotations

import json
import shutil
from pathlib import Path

import pytest
from transformers import AutoModelForCausalLM, AutoTokenizer

import flexformer
from flexformer.cli.bench_vocabulary import markdown
from flexformer.cli.main import main

RESULTS = Path(__file__).resolve().parents[2] / "results"


@pytest.fixture(scope="module")
def run(tmp_path_factory):
    folder = tmp_path_factory.mktemp("run") / "run"
    assert main(["train", "lm", "--preset", "smoke", *where(folder), "--training.steps", "20"]) == 0
    return folder


def where(folder):
    return ["--data.root", str(folder.parent / "data"), "--output", str(folder)]


def test_train_command_shows_the_result_and_how_to_use_it(run, capsys):
    assert main(["train", "lm", "--preset", "smoke", *where(run), "--training.steps", "20"]) == 0
    shown = " ".join(capsys.readouterr().out.split())
    record = json.loads((run / "run.json").read_text())
    assert f"{record['metrics']['test_bits_per_byte']:.3f}" in shown
    assert f"flexformer generate {run}" in shown
    assert main(["train", "lm", "--preset", "smoke", *where(run), "--training.steps", "20", "--json"]) == 0
    assert json.loads(capsys.readouterr().out) == record


def test_evaluate_command_knows_language_models(run, capsys):
    assert main(["evaluate", str(run), "--json"]) == 0
    found = json.loads(capsys.readouterr().out)
    record = json.loads((run / "run.json").read_text())
    assert found["bits_per_byte"] == pytest.approx(record["metrics"]["test_bits_per_byte"])
    assert main(["evaluate", str(run), "--split", "validation"]) == 0
    assert "bits per byte" in capsys.readouterr().out


def test_text_is_written_after_the_prompt_and_figures_elsewhere(run, capsys):
    assert main(["generate", str(run), "--prompt", "import ", "--tokens", "12", "--seed", "3"]) == 0
    shown = capsys.readouterr()
    assert shown.out.startswith("import ")
    assert "12 tokens," in shown.err
    assert "remember 18 tokens" in shown.err


@pytest.mark.parametrize(
    "how", [["--greedy"], ["--beams", "3"], ["--chunk", "2", "--greedy"], ["--top_k", "5"]], ids=str
)
def test_every_way_of_writing_works_and_repeats_itself(run, capsys, how):
    texts = []
    for _ in range(2):
        assert main(["generate", str(run), "--prompt", "import os", "--tokens", "10", "--json", *how]) == 0
        found = json.loads(capsys.readouterr().out)
        assert found["tokens"] == 10
        assert found["context"] == 18
        texts.append(found["text"])
    assert texts[0] == texts[1]


def test_prompt_may_be_empty(run, capsys):
    assert main(["generate", str(run), "--tokens", "5", "--json"]) == 0
    assert json.loads(capsys.readouterr().out)["context"] == 5


def test_comparison_shows_a_flat_state_beside_one_that_grows(run, capsys):
    assert main(["generate", str(run), "--tokens", "2", "--compare", "softmax", "--contexts", "[16,64]", "--json"]) == 0
    costs = json.loads(capsys.readouterr().out)["costs"]
    sizes = {(cost["attention"], cost["context"]): cost["state_bytes"] for cost in costs}
    assert sizes["flexformer-n", 16] == sizes["flexformer-n", 64]
    assert 4 * sizes["softmax", 16] == sizes["softmax", 64]
    assert all(cost["seconds"] > 0 for cost in costs)
    assert main(["generate", str(run), "--tokens", "2", "--compare", "linear", "--contexts", "[16]"]) == 0
    assert "One more token after a context" in capsys.readouterr().out


@pytest.mark.data
def test_other_causal_models_write_too_converted_or_not(data_folder, tmp_path, capsys):
    base = Path(data_folder, "models")
    if not (base / "config.json").is_file():
        base = base / "stories15M"
    if not (base / "config.json").is_file():
        pytest.skip("FLEXFORMER_DATA has no pretrained language model")
    assert main(["generate", str(base), "--prompt", "Once upon a", "--tokens", "8", "--greedy"]) == 0
    assert capsys.readouterr().out.startswith("Once upon a time")
    model = flexformer.convert(AutoModelForCausalLM.from_pretrained(base))
    model.save_pretrained(tmp_path)
    AutoTokenizer.from_pretrained(base).save_pretrained(tmp_path)
    sizes = []
    for tokens in ("4", "8"):
        assert main(["generate", str(tmp_path), "--prompt", "Once upon a", "--tokens", tokens, "--json"]) == 0
        sizes.append(json.loads(capsys.readouterr().out)["state_bytes"])
    assert sizes[0] == sizes[1]
    assert main(["generate", str(base), "--tokens", "1", "--compare", "softmax"]) == 1
    assert "is for models of flexformer train lm" in capsys.readouterr().err


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["nowhere"], "nowhere is not a folder; name a run, a checkpoint, an adapter or a model"),
        (["{empty}"], "holds no model and no adapter: no run.json, config.json or flexformer_adapter.json"),
        (["{run}", "--tokens", "0"], "tokens 0 is too small"),
        (["{run}", "--chunk", "-3"], "chunk -3 is too small"),
        (["{run}", "--temperature", "0"], "temperature 0.0 is too small"),
        (["{run}", "--top_p", "2"], "top_p 2.0 is no share of all tokens"),
        (["{run}", "--top_k=-1"], "top_k -1 is negative"),
        (["{run}", "--compare", "cosformer", "--tokens", "1"], "contexts 8192 is too long; with cosformer this model"),
        (["{run}", "--compare", "sofmax", "--tokens", "1"], "attention 'sofmax' is unknown"),
        (["{run}", "--compare", "softmax", "--contexts", "[0]", "--tokens", "1"], "contexts [0] must be"),
    ],
)
def test_mistakes_are_explained_in_one_line(run, tmp_path, capsys, arguments, message):
    arguments = [argument.format(empty=tmp_path, run=run) for argument in arguments]
    assert main(["generate", *arguments]) == 1
    error = capsys.readouterr().err.strip().splitlines()[-1]
    assert error.startswith("flexformer generate: error:")
    assert message in error


def test_damaged_weights_and_a_model_without_words_are_explained(run, tmp_path, capsys):
    folder = tmp_path / "model"
    shutil.copytree(run / "model", folder)
    weights = folder / "model.safetensors"
    weights.write_bytes(weights.read_bytes()[:-100])
    assert main(["generate", str(folder)]) == 1
    assert "holds weights that are damaged" in capsys.readouterr().err


def test_a_vocabulary_that_does_not_fit_is_refused_before_anything_is_written(tmp_path, capsys):
    command = ["train", "lm", "--preset", "smoke", "--model.vocabulary", "adaptive", *where(tmp_path / "run")]
    assert main(command) == 1
    assert "cutoffs" in capsys.readouterr().err
    assert not (tmp_path / "run" / "run.json").exists()


def test_wrong_text_is_explained_and_nothing_written(tmp_path, capsys):
    command = ["train", "lm", "--preset", "smoke", "--data.source", str(tmp_path / "no.txt"), *where(tmp_path / "run")]
    assert main(command) == 1
    assert "is neither a file nor a folder" in capsys.readouterr().err
    assert not (tmp_path / "run" / "run.json").exists()
    assert main(["train", "--preset", "smoke", "lm"]) == 2
    assert "put it first: flexformer train lm" in capsys.readouterr().err
    assert main(["train", "lm", "--preset", "paper"]) == 2
    assert "use one of cpu, paper-big, paper-small, smoke" in capsys.readouterr().err


def test_parameters_stand_beside_the_papers(capsys, tmp_path):
    assert main(["reproduce", "params", "--json", "--results", str(tmp_path)]) == 0
    rows = {(row["size"], row["attention"]): row for row in json.loads(capsys.readouterr().out)}
    assert rows["small", "softmax"]["total"] == 41_267_200
    assert rows["big", "softmax"]["total"] == 246_933_504
    assert rows["small", "flexformer-s"]["added"] == 196_656
    assert rows["big", "flexformer-n"]["added"] == 2_097_408
    assert rows["small", "flexformer-n"]["added_percent"] == pytest.approx(0.953, abs=5e-4)
    assert rows["small", "flexformer-n"]["paper_percent"] == 0.97
    assert rows["small", "flexformer-s"]["layer_percent"] == pytest.approx(100 / 96, rel=3e-3)
    assert rows["big", "flexformer-n"]["layer_percent"] == pytest.approx(100 / 96, rel=3e-3)
    assert main(["reproduce", "params", "--results", str(tmp_path)]) == 0
    assert "246,933,504" in capsys.readouterr().out
    for written in (tmp_path / "params").iterdir():
        kept = (RESULTS / "params" / written.name).read_bytes()
        assert written.read_bytes() == kept, "run flexformer reproduce params"


@pytest.mark.slow
def test_sweep_over_frequencies_takes_language_models(tmp_path, capfd):
    pytest.importorskip("matplotlib")
    command = ["reproduce", "n-sweep", "--tasks", "lm", "--preset", "smoke", "--multiples", "0.5", "--json"]
    folders = {"--root": "data", "--output": "out", "--results": "results"}
    command += [part for option, name in folders.items() for part in (option, str(tmp_path / name))]
    assert main(command) == 0
    cell, steps = json.loads(capfd.readouterr().out)
    assert (cell["labels"]["task"], cell["labels"]["n"]) == ("lm", 8)
    assert steps["details"]["measurements"][0]["seconds"]["median"] > 0
    assert cell["metrics"]["test_perplexity"] > 1
    assert (tmp_path / "results/n-sweep/n-sweep-smoke.png").read_bytes().startswith(b"\x89PNG")


@pytest.mark.slow
def test_vocabularies_are_compared_by_time_and_memory(tmp_path, capsys):
    assert main(["bench", "vocabulary", "--smoke", "--output", str(tmp_path), "--json"]) == 0
    record = json.loads(capsys.readouterr().out)
    assert record == json.loads((tmp_path / "vocabulary-1-thread-smoke.json").read_text())
    assert markdown(record) == (tmp_path / "vocabulary-1-thread-smoke.md").read_text()
    assert "| adaptive |" in markdown(record)
    rows = {row["row"]: row for row in record["measurements"]}
    assert all(row["note"] is None and row["seconds"]["median"] > 0 for row in rows.values())
    assert rows["adaptive"]["parameters"] == rows["adaptive-in-full"]["parameters"] < rows["tied"]["parameters"]
    assert main(["bench", "vocabulary", "--smoke", "--output", str(tmp_path)]) == 0
    assert "adaptive-in-full" in capsys.readouterr().out
