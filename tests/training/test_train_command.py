"""`flexformer train` and `flexformer evaluate` as a user meets them."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import time

import pytest
import yaml

from flexformer.cli.main import main

TINY = ["--training.steps", "6", "--training.evaluate_every", "3", "--training.tensorboard", "false"]


@pytest.fixture
def command(tmp_path, monkeypatch, capsys):
    monkeypatch.setenv("FLEXFORMER_DATA", str(tmp_path / "data"))
    monkeypatch.setenv("COLUMNS", "200")
    monkeypatch.chdir(tmp_path)

    def run(*arguments: str) -> tuple[int, str, str]:
        status = main([str(argument) for argument in arguments])
        said = capsys.readouterr()
        return status, said.out, said.err

    return run


def test_train_then_evaluate_say_the_same(command, tmp_path):
    status, out, err = command("train", "listops", "--preset", "smoke", "--attention", "linear", "--output", "x", *TINY)
    assert (status, err) == (0, "")
    record = json.loads((tmp_path / "x/run.json").read_text())
    assert record["status"] == "finished"
    assert f"{100 * record['metrics']['test_accuracy']:.2f} %" in out
    assert "listops, linear, smoke scale" in out
    status, out, err = command("evaluate", "x", "--json")
    assert status == 0
    found = json.loads(out)
    assert found["accuracy"] == record["metrics"]["test_accuracy"]
    assert (found["split"], found["scale"], found["attention"]) == ("test", "smoke", "linear")
    status, out, _ = command("evaluate", "x", "--split", "validation")
    assert status == 0
    assert f"{100 * record['metrics']['validation_accuracy']:.2f} %" in out


def test_json_is_the_record_alone(command, tmp_path):
    status, out, _ = command("train", "listops", "--preset", "smoke", "--json", "--seed", "4", *TINY)
    assert status == 0
    assert json.loads(out) == json.loads((tmp_path / "runs/listops-flexformer-n-smoke-4/run.json").read_text())


def test_print_config_shows_the_preset_under_what_is_given(command, tmp_path):
    (tmp_path / "mine.yaml").write_text("optimizer:\n  lr: 0.25\nmodel:\n  layers: 3\nschedule:\n  warmup: 7\n")
    given = ["--config", "mine.yaml", "--model.layers", "5", "--model.attention_options", "{num_frequencies: 4}"]
    status, out, err = command("train", "image", "--preset", "paper", *given, "--print_config")
    assert (status, err) == (0, "")
    shown = yaml.safe_load(out)
    assert shown["training"]["steps"] == 35000  # the preset's
    assert (shown["optimizer"]["lr"], shown["schedule"]["warmup"]) == (0.25, 7)  # the file's
    assert shown["model"]["layers"] == 5  # the command line's
    assert shown["model"]["heads"] == 8
    assert shown["model"]["attention_options"] == {"num_frequencies": 4}


@pytest.mark.parametrize("given", [["--data.options", "{train: 5000}"], ["--data.options={train: 5000}"]])
def test_a_mapping_changes_what_it_names_and_leaves_the_rest(command, given):
    status, out, _ = command("train", "listops", "--preset", "cpu", *given, "--print_config")
    assert status == 0
    shown = yaml.safe_load(out)["data"]["options"]
    assert (shown["train"], shown["min_length"]) == (5000, 100)


def test_config_of_a_run_can_be_used_again(command, tmp_path):
    assert command("train", "listops", "--preset", "smoke", "--output", "x", "--optimizer.lr", "0.02", *TINY)[0] == 0
    status, out, err = command("train", "listops", "--config", "x/config.yaml", "--print_config")
    assert (status, err) == (0, "")
    assert yaml.safe_load(out)["optimizer"]["lr"] == 0.02
    assert yaml.safe_load(out)["preset"] == "smoke"


@pytest.mark.parametrize(
    ("arguments", "status", "message"),
    [
        (["lisops"], 2, "task 'lisops' is unknown, did you mean 'listops'?"),
        (["listops", "--preset", "papr"], 2, "preset 'papr' is unknown to task listops, did you mean 'paper'?"),
        (["listops", "--optimizer.learning_rate", "1"], 2, "--optimizer.learning_rate"),
        (["listops", "--preset", "smoke", "--attention", "sofmax"], 1, "attention 'sofmax' is unknown"),
        (["listops", "--preset", "smoke", "--training.steps", "0"], 1, "training.steps 0 is too small"),
        (["listops", "--preset", "smoke", "--data.options.trian", "4"], 1, "listops has no option 'trian'"),
        (["text", "--preset", "smoke"], 1, "IMDb"),
    ],
)
def test_mistakes_are_one_line(command, tmp_path, arguments, status, message):
    found, out, err = command("train", *arguments, "--output", "x")
    assert (found, out) == (status, "")
    assert err.startswith("flexformer train: error: ")
    assert err.count("\n") == 1
    assert message in err
    assert not (tmp_path / "x").exists()


def test_other_options_in_the_same_folder_are_refused(command):
    assert command("train", "listops", "--preset", "smoke", "--output", "x", *TINY)[0] == 0
    status, _, err = command("train", "listops", "--preset", "smoke", "--output", "x", *TINY, "--seed", "1")
    assert status == 1
    assert "x holds a run with seed 0, not seed 1; choose another folder or remove this one" in err


def test_evaluating_nothing_is_one_line(command, tmp_path):
    assert command("evaluate", "nowhere") == (
        1,
        "",
        "flexformer evaluate: error: nowhere holds no run: there is no run.json\n",
    )


def test_help_explains_presets_and_options(command):
    status, out, _ = command("train", "--help")
    assert status == 0
    for part in (
        "--preset PRESET",
        "--optimizer.lr LR",
        "--model.layers LAYERS",
        "Steps of linear warm-up",
        "example:",
    ):
        assert part in out


def start(tmp_path, *options: str) -> subprocess.Popen[str]:
    environment = os.environ | {"FLEXFORMER_DATA": str(tmp_path / "data"), "OMP_NUM_THREADS": "1"}
    arguments = ["train", "listops", "--preset", "smoke", "--attention", "performer", *options]
    code = (
        "import signal, sys; from flexformer.cli.main import main\n"
        "signal.signal(signal.SIGINT, signal.default_int_handler)\n"
        f"sys.exit(main({arguments!r}))"
    )
    return subprocess.Popen(
        [sys.executable, "-c", code],
        env=environment,
        cwd=tmp_path,
        text=True,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
    )


@pytest.mark.slow
@pytest.mark.parametrize("number", [signal.SIGKILL, signal.SIGINT])
def test_killed_command_goes_on_by_itself_when_repeated(tmp_path, number):
    long = ["--training.steps", "400", "--training.evaluate_every", "40", "--training.log_every", "40"]
    cut = start(tmp_path, *long, "--output", "cut")
    while not list((tmp_path / "cut/checkpoints").glob("checkpoint-*/complete.json")):
        assert cut.poll() is None, cut.stderr.read()
        time.sleep(0.05)
    cut.send_signal(number)
    _, err = cut.communicate(timeout=120)
    assert cut.returncode == (-number if number == signal.SIGKILL else 128 + number)
    if number == signal.SIGINT:
        assert "the same command goes on from there" in err
    for name in ("cut", "whole"):
        process = start(tmp_path, *long, "--output", name)
        assert process.wait(timeout=300) == 0
    records = [json.loads((tmp_path / name / "run.json").read_text()) for name in ("cut", "whole")]
    assert records[0]["metrics"] == records[1]["metrics"]
    assert records[0]["tokens"] == records[1]["tokens"]
    weights = [(tmp_path / name / "model/model.safetensors").read_bytes() for name in ("cut", "whole")]
    assert weights[0] == weights[1]
