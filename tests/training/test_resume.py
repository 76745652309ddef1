"""A run that was cut off goes on to exactly the result it would have had."""

from __future__ import annotations

import json
import signal
import subprocess
import sys
from pathlib import Path

import pytest
import toy_run
from rich.console import Console

from flexformer import ATTENTIONS
from flexformer.training import checkpoints, run

SCRIPT = Path(toy_run.__file__)


@pytest.fixture(scope="module", autouse=True)
def toy_tasks():
    with toy_run.registered():
        yield


def train(output, attention, select="final"):
    return run(toy_run.options(attention, select), output, Console(quiet=True))


def in_own_process(output, attention, select, *death):
    command = [sys.executable, SCRIPT, output, attention, select, *map(str, death)]
    return subprocess.run(command, capture_output=True, text=True, timeout=300)


def outcome(folder):
    """All that must not depend on whether a run was cut off."""
    record = json.loads((folder / "run.json").read_text())
    kept = {key: record[key] for key in ("status", "metrics", "steps", "selected_step", "tokens", "parameters")}
    return kept, (folder / "log.jsonl").read_text(), (folder / "model" / "model.safetensors").read_bytes()


def killed_and_resumed(tmp_path, attention, select, *death):
    cut = in_own_process(tmp_path / "cut", attention, select, *death)
    assert cut.returncode == -signal.SIGKILL, cut.stderr
    assert json.loads((tmp_path / "cut" / "run.json").read_text())["status"] == "running"
    train(tmp_path / "cut", attention, select)
    train(tmp_path / "whole", attention, select)
    assert outcome(tmp_path / "cut") == outcome(tmp_path / "whole")


def test_killed_run_resumes_to_the_same_metrics_log_and_weights(tmp_path):
    # Performer draws anew every seven forwards; step 22 is in the middle of the fourth epoch, two steps after a save.
    killed_and_resumed(tmp_path, "performer", "final", "at", 22)


@pytest.mark.slow
def test_checkpoint_cut_off_while_it_was_written_is_not_used(tmp_path):
    cut = in_own_process(tmp_path / "cut", "flexformer-n", "best", "saving", 15)
    assert cut.returncode == -signal.SIGKILL, cut.stderr
    parent = tmp_path / "cut" / "checkpoints"
    assert (parent / "checkpoint-15").is_dir()
    assert checkpoints.last(parent)[1].step == 10
    train(tmp_path / "cut", "flexformer-n", "best")
    train(tmp_path / "whole", "flexformer-n", "best")
    assert outcome(tmp_path / "cut") == outcome(tmp_path / "whole")


@pytest.mark.slow
@pytest.mark.parametrize("death", [("at", 3), ("at", 12), ("at", 25), ("saving", 26)], ids=str)
@pytest.mark.parametrize("attention", ATTENTIONS)
def test_any_attention_resumes_exactly_wherever_it_was_killed(tmp_path, attention, death):
    killed_and_resumed(tmp_path, attention, "best", *death)


@pytest.mark.parametrize("number", [signal.SIGINT, pytest.param(signal.SIGTERM, marks=pytest.mark.slow)])
def test_interrupted_run_saves_what_it_learned_and_goes_on_later(tmp_path, number, monkeypatch):
    cut = in_own_process(tmp_path / "cut", "rfa", "final", "signal", 13, int(number))
    assert cut.returncode == 128 + number, cut.stderr
    assert "interrupted at step 14; the same command goes on from there" in cut.stdout
    record = json.loads((tmp_path / "cut" / "run.json").read_text())
    assert (record["status"], record["steps"]) == ("interrupted", 14)
    assert (tmp_path / "cut" / "model" / "model.safetensors").exists()
    monkeypatch.setattr("flexformer.training.record.commit", lambda: "newer")
    train(tmp_path / "cut", "rfa")
    gone_on = json.loads((tmp_path / "cut" / "run.json").read_text())
    assert (gone_on["commit"], gone_on["later_commits"]) == (record["commit"], ["newer"])
    train(tmp_path / "whole", "rfa")
    (kept, _, weights), (whole, _, whole_weights) = outcome(tmp_path / "cut"), outcome(tmp_path / "whole")
    assert kept == whole
    assert weights == whole_weights


@pytest.mark.slow
def test_run_killed_after_its_last_step_only_tests(tmp_path):
    cut = in_own_process(tmp_path / "cut", "softmax", "final", "testing")
    assert cut.returncode == -signal.SIGKILL, cut.stderr
    assert checkpoints.last(tmp_path / "cut" / "checkpoints")[1].step == toy_run.STEPS
    train(tmp_path / "cut", "softmax")
    train(tmp_path / "whole", "softmax")
    assert outcome(tmp_path / "cut") == outcome(tmp_path / "whole")
