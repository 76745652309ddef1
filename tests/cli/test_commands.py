"""What every command does alike: help, configuration, wrong usage, and things that cannot be read or written."""

from __future__ import annotations

import functools
import inspect
import json
import os
import re
import signal
import subprocess
import sys
from importlib import import_module
from pathlib import Path

import pytest
import yaml

from flexformer.cli import main as frame

COMMANDS = list(frame.COMMANDS)

# Values of positional arguments that presets are looked up by; any word does for the others.
WORDS = {"train": {"task": "listops"}, "finetune": {"task": "rte"}, "data check": {"task": "listops"},
         "data prepare": {"task": "listops"}}  # fmt: skip


def function_of(name: str):
    module, _, attribute = frame.COMMANDS[name][0].partition(":")
    return getattr(import_module(module), attribute)


def needed(name: str) -> list[str]:
    parameters = inspect.signature(function_of(name)).parameters.values()
    return [p.name for p in parameters if p.default is p.empty and p.kind is not p.VAR_KEYWORD]


def positionals(name: str) -> list[str]:
    return [WORDS.get(name, {}).get(argument, "word") for argument in needed(name)]


@pytest.fixture
def run(capsys):
    def run(*arguments: str) -> tuple[int, str, str]:
        status = frame.main([str(argument) for argument in arguments])
        out, err = capsys.readouterr()
        return status, out, err

    return run


def assert_one_line(name: str, err: str) -> None:
    assert err.startswith(f"flexformer {name}: error: "), err
    assert err.count("\n") == 1, err


@pytest.mark.parametrize("name", COMMANDS)
def test_an_unknown_option_is_one_line_and_status_2(run, name):
    status, out, err = run(*name.split(), *positionals(name), "--no-such-option", "1")
    assert (status, out) == (2, "")
    assert_one_line(name, err)
    assert "--no_such_option" in err


@pytest.mark.parametrize("name", COMMANDS)
def test_print_config_is_yaml_that_config_takes_back(run, tmp_path, name):
    words = positionals(name)
    status, out, err = run(*name.split(), *words, "--print_config")
    assert (status, err) == (0, "")
    options = yaml.safe_load(out)
    config = tmp_path / "options.yaml"
    given = {key: value for key, value in (options or {}).items() if key not in needed(name)}
    config.write_text(yaml.safe_dump(given))
    status, again, err = run(*name.split(), *words, "--config", config, "--print_config")
    assert (status, err) == (0, "")
    assert yaml.safe_load(again) == options


@pytest.mark.parametrize("name", COMMANDS)
def test_help_shows_the_settings_of_the_preset(run, name):
    status, bare, err = run(*name.split(), "--help")
    assert (status, err) == (0, "")
    assert "<class" not in bare
    if not hasattr(function_of(name), "find_preset"):
        assert "efaults below" not in bare
        return
    needs_words = bool(WORDS.get(name))  # without them no preset is found
    assert ("A preset's settings replace the defaults below." in bare) is needs_words
    status, shown, err = run(*name.split(), *positionals(name), "--preset", "smoke", "--help")
    assert (status, err) == (0, "")
    assert "Defaults below are those of the preset smoke." in shown
    _, out, _ = run(*name.split(), *positionals(name), "--preset", "smoke", "--print_config")
    steps = yaml.safe_load(out)["training"]["steps"]
    assert re.search(rf"--training.steps STEPS\s+Optimiser steps\. \(type: int, default: {steps}\)", shown)


@pytest.mark.parametrize("name", COMMANDS)
def test_a_config_file_that_is_none_is_one_line_and_status_2(run, tmp_path, name):
    broken = tmp_path / "broken.yaml"
    broken.write_text("a: [1\n")
    for config in (tmp_path / "nowhere.yaml", broken, tmp_path):
        status, out, err = run(*name.split(), *positionals(name), "--config", config)
        assert (status, out) == (2, "")
        assert_one_line(name, err)


@pytest.mark.parametrize("name", COMMANDS)
def test_a_bad_value_is_one_line_that_names_the_option(run, name):
    _, out, _ = run(*name.split(), *positionals(name), "--print_config")
    numbers = [option for option, value in (yaml.safe_load(out) or {}).items() if isinstance(value, int | float)]
    if not numbers:
        pytest.skip("this command takes no numbers and has no flags")
    status, out, err = run(*name.split(), *positionals(name), f"--{numbers[0]}=many")
    assert (status, out) == (2, "")
    assert_one_line(name, err)
    assert numbers[0] in err
    assert "many" in err


WRITERS = {
    "train": ["listops", "--preset", "smoke", "--training.steps", "1"],
    "train lm": ["--preset", "smoke", "--training.steps", "1"],
    "demo": ["--minutes", "1"],
    "report": ["RUN"],
    "inspect": ["MODEL"],
    "bench attention": ["--smoke", "--lengths", "[32]", "--rows", "[softmax]", "--memory", "false"],
}


@pytest.fixture(scope="module")
def places(tmp_path_factory):
    """A run to report on and a model to look at."""
    from flexformer.models import CausalLM, CausalLMConfig

    folder = tmp_path_factory.mktemp("places")
    run = folder / "run"
    run.mkdir()
    record = {"task": "text", "attention": "softmax", "scale": "cpu", "seed": 0, "options": {}, "metrics": {}}
    (run / "run.json").write_text(json.dumps(record))
    config = CausalLMConfig(vocab_size=256, hidden_size=16, intermediate_size=16, num_hidden_layers=1,
                            num_attention_heads=2, attention="flexformer-n")  # fmt: skip
    CausalLM(config).save_pretrained(folder / "model")
    return {"RUN": str(run), "MODEL": str(folder / "model")}


def command_line(name: str, places: dict[str, str], output: Path) -> list[str]:
    return [*name.split(), *(places.get(word, word) for word in WRITERS[name]), "--output", str(output)]


@pytest.mark.parametrize("name", WRITERS)
def test_a_folder_that_cannot_be_written_is_one_line(run, tmp_path, monkeypatch, places, name):
    monkeypatch.setenv("FLEXFORMER_DATA", str(tmp_path / "data"))
    blocked = tmp_path / "file"
    blocked.write_text("a file, not a folder")
    status, _, err = run(*command_line(name, places, blocked / "output"))
    assert status == 1
    assert_one_line(name, "\n".join(err.splitlines()[-1:]) + "\n")
    assert blocked.read_text() == "a file, not a folder"


@pytest.mark.skipif(os.name == "nt", reason="needs limits as POSIX has them")
@pytest.mark.parametrize("name", ["report", pytest.param("inspect", marks=pytest.mark.slow), "train lm"])
def test_a_full_disk_is_one_line_and_leaves_nothing_half_written(tmp_path, places, name):
    """Files may have 500 bytes at most: what a command writes first is longer."""
    output = tmp_path / "out" / "result"
    code = (
        "import resource, sys\n"
        "from flexformer.cli import main as frame\n"
        "resource.setrlimit(resource.RLIMIT_FSIZE, (500, 500))\n"
        f"sys.exit(frame.main({command_line(name, places, output)!r}))\n"
    )
    environment = os.environ | {"FLEXFORMER_DATA": str(tmp_path / "data"), "PYTHONDONTWRITEBYTECODE": "1"}
    environment["MPLCONFIGDIR"] = str(Path.home() / ".cache" / "matplotlib")
    result = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, env=environment, timeout=300)
    assert result.returncode == 1, result.stderr
    assert_one_line(name, result.stderr.splitlines()[-1] + "\n")
    assert "File too large" in result.stderr
    left = [path for path in tmp_path.rglob("*") if path.is_file() and path.stat().st_size]
    assert not [path for path in left if path.suffix in (".html", ".png", ".json", ".npy", ".bin")], left


@pytest.mark.skipif(not os.path.exists("/dev/full"), reason="needs /dev/full to stand for a full disk")
@pytest.mark.parametrize("name", ["data list", pytest.param("reproduce params", marks=pytest.mark.slow)])
def test_output_that_cannot_be_printed_is_one_line(name, tmp_path):
    with open("/dev/full", "w") as full:
        command = [sys.executable, "-m", "flexformer", *name.split()]
        result = subprocess.run(command, stdout=full, stderr=subprocess.PIPE, text=True, timeout=300, cwd=tmp_path)
    assert result.returncode == 1
    assert result.stderr == f"flexformer {name}: error: No space left on device\n"


@pytest.mark.parametrize("name", ["report", "inspect"])
def test_an_interrupt_while_writing_leaves_what_was_there(run, tmp_path, monkeypatch, places, name):
    output = tmp_path / "report.html" if name == "report" else tmp_path / "pictures"
    line = command_line(name, places, output)
    assert run(*line)[0] == 0
    before = {path: path.read_bytes() for path in sorted(tmp_path.rglob("*")) if path.is_file()}

    def interrupted(*_: object) -> None:
        raise KeyboardInterrupt

    monkeypatch.setattr(os, "replace", interrupted)
    status, _, err = run(*line)
    assert (status, err) == (130, f"flexformer {name}: interrupted\n")
    assert {path: path.read_bytes() for path in sorted(tmp_path.rglob("*")) if path.is_file()} == before


@pytest.mark.skipif(os.name == "nt", reason="signals as POSIX has them")
def test_ctrl_c_while_measuring_is_one_line_and_writes_nothing(tmp_path):
    command = [sys.executable, "-m", "flexformer", "bench", "attention", "--lengths", "[4096]", "--rounds", "500",
               "--output", str(tmp_path / "bench")]  # fmt: skip
    # A parent in the background may have interrupts ignored.
    heed = functools.partial(signal.signal, signal.SIGINT, signal.SIG_DFL)
    process = subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True, preexec_fn=heed)
    try:
        process.wait(timeout=12)  # it is busy by then
    except subprocess.TimeoutExpired:
        process.send_signal(signal.SIGINT)
    _, err = process.communicate(timeout=120)
    assert process.returncode == 130
    assert err.splitlines()[-1] == "flexformer bench attention: interrupted"
    assert not (tmp_path / "bench").exists()
