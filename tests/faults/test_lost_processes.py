"""A process that dies or hangs ends the others soon, with a sentence that says so."""

from __future__ import annotations

import os
import signal
import socket
import subprocess
import sys
import time

import pytest

TEXT = "".join(f"{n} times {n} is {n * n} , said the cat .\n" for n in range(400))
TIMEOUT = 5


def free_port():
    with socket.socket() as listener:
        listener.bind(("127.0.0.1", 0))
        return listener.getsockname()[1]


@pytest.mark.slow
@pytest.mark.parametrize("number", [signal.SIGSTOP, signal.SIGKILL])
def test_process_that_does_not_answer_ends_the_run_with_a_clear_error(tmp_path, number):
    (tmp_path / "text.txt").write_text(TEXT)
    output = tmp_path / "run"
    options = {
        "data.source": tmp_path / "text.txt",
        "data.root": tmp_path,
        "data.unit": "byte",
        "training.steps": 100_000,
        "training.evaluate_every": 5,
        "training.device": "cpu",
        "training.timeout": TIMEOUT,
    }
    command = [sys.executable, "-m", "flexformer", "train", "lm", "--preset=smoke", f"--output={output}"]
    command += [f"--{name}={value}" for name, value in options.items()]
    # Not by torchrun, which would end the others itself: on another machine it could not.
    places = {"MASTER_ADDR": "127.0.0.1", "MASTER_PORT": str(free_port()), "WORLD_SIZE": "2", "OMP_NUM_THREADS": "1"}
    ranks = [
        subprocess.Popen(
            command,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
            env=os.environ | places | {"RANK": str(rank), "LOCAL_RANK": str(rank)},
        )
        for rank in range(2)
    ]
    try:
        while not (output / "checkpoints" / "checkpoint-5" / "complete.json").exists():
            assert all(rank.poll() is None for rank in ranks), ranks[0].stdout.read()
            time.sleep(0.05)
        ranks[1].send_signal(number)
        began = time.monotonic()
        said, _ = ranks[0].communicate(timeout=120)
        assert ranks[0].returncode == 1, said
        assert time.monotonic() - began < 60
        last = said.strip().splitlines()[-1]
        assert "flexformer train lm: error: process 0 lost the others at step" in last, said
        assert "one has died or did not answer within 5 s (training.timeout); the same command goes on" in last
    finally:
        for rank in ranks:
            rank.kill()
            rank.communicate()
