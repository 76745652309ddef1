"""A training that is killed again and again, at any moment, ends as if nothing had happened."""

from __future__ import annotations

import json
import os
import random
import signal
import subprocess
import sys
import time
from pathlib import Path

import fragile_run
import pytest

SCRIPT = Path(fragile_run.__file__)
KILLS, STEPS = 20, 600  # a quick machine takes some fifteen steps between two kills


def start(output, root):
    # A checkpoint after every step: most moments are moments of saving.
    command = [sys.executable, str(SCRIPT), str(output), str(root), str(STEPS), "1"]
    return subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True)


def steps_taken(output):
    found = [int(path.name.partition("-")[2]) for path in output.glob("checkpoints/checkpoint-*")]
    return max(found, default=0)


def finish(process):
    said, _ = process.communicate(timeout=500)
    assert process.returncode == 0, said


def weights(output):
    record = json.loads((output / "run.json").read_text())
    assert (record["status"], record["steps"]) == ("finished", STEPS)
    return (output / "model" / "model.safetensors").read_bytes(), (output / "log.jsonl").read_text(), record["metrics"]


@pytest.mark.slow
@pytest.mark.timeout(1800)
def test_killed_training_that_is_started_again_has_the_same_weights_to_the_bit(tmp_path):
    cut, whole = tmp_path / "cut", tmp_path / "whole"
    chance, unfinished = random.Random(0), 0
    for _ in range(KILLS):
        before, process = steps_taken(cut), start(cut, tmp_path)
        while process.poll() is None and steps_taken(cut) <= before:
            time.sleep(0.005)
        time.sleep(chance.uniform(0.0, 0.3))
        assert process.poll() is None, process.stdout.read()
        os.kill(process.pid, signal.SIGKILL)
        process.communicate()
        unfinished += not all((path / "complete.json").exists() for path in (cut / "checkpoints").iterdir())
    assert unfinished  # some were killed while a checkpoint was written
    finish(start(cut, tmp_path))
    finish(start(whole, tmp_path))
    assert weights(cut) == weights(whole)
