"""Training on two processes: the same batches, the same losses, the same files as on one."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest

from flexformer.parallel.processes import describe_processes
from flexformer.training.callbacks import read_log
from flexformer.training.trainer import portion

HERE = Path(__file__).parent
TOLERANCE = 1e-5
TEXT = "".join(f"{n} times {n} is {n * n} , said the {n % 7} th cat .\n" for n in range(400))
SETTINGS = {
    "data.length": 32,
    "data.unit": "byte",
    "data.train_limit": 48,
    "model.layers": 1,
    "model.cutoffs": "[24,200]",
    "training.batch_size": 8,
    "training.steps": 10,
    "training.evaluate_every": 5,
    "training.log_every": 1,
    "training.device": "cpu",
}
ENVIRONMENT = {"OMP_NUM_THREADS": "1", "CUDA_VISIBLE_DEVICES": ""}


def command(root, output, **changes):
    text = root / "numbers.txt"
    text.write_text(TEXT)
    changed = {name.replace("__", "."): value for name, value in changes.items()}
    options = SETTINGS | {"data.source": text, "data.root": root} | changed
    return ["train", "lm", "--preset", "smoke", "--output", str(output), *(f"--{k}={v}" for k, v in options.items())]


def start(processes, arguments, **environment):
    launcher = ["-m", "torch.distributed.run", "--standalone", f"--nproc_per_node={processes}"] if processes > 1 else []
    kept = {key: value for key, value in os.environ.items() if key not in ("RANK", "WORLD_SIZE")}
    return subprocess.Popen(
        [sys.executable, *launcher, "-m", "flexformer", *arguments],
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        env=kept | ENVIRONMENT | environment,
        start_new_session=True,
    )


def run(processes, arguments, **environment):
    process = start(processes, arguments, **environment)
    try:
        output, _ = process.communicate(timeout=400)
    finally:
        if process.poll() is None:
            os.killpg(process.pid, signal.SIGKILL)
    return process.returncode, output


def curve(folder):
    """Losses and evaluations by step."""
    return [{k: v for k, v in entry.items() if k != "grad_norm"} for entry in read_log(folder / "log.jsonl")]


def assert_same_curve(folder, other):
    ours, theirs = curve(folder), curve(other)
    assert [entry.keys() for entry in ours] == [entry.keys() for entry in theirs]
    for a, b in zip(ours, theirs, strict=True):
        assert a == pytest.approx(b, rel=TOLERANCE)


@pytest.fixture(scope="module")
def alone(tmp_path_factory):
    folder = tmp_path_factory.mktemp("alone")
    status, output = run(1, command(folder, folder / "run"))
    assert status == 0, output
    return folder / "run"


def test_two_processes_have_the_loss_curve_of_one_with_the_same_batches(alone, tmp_path):
    status, output = run(2, command(tmp_path, tmp_path / "run"))
    assert status == 0, output
    record, other = (json.loads((folder / "run.json").read_text()) for folder in (tmp_path / "run", alone))
    assert (record["machine"]["processes"], record["machine"]["parallel"]) == (2, "MULTI_CPU")
    assert (other["machine"]["processes"], other["machine"]["parallel"]) == (1, "NO")
    assert_same_curve(tmp_path / "run", alone)
    assert record["metrics"] == pytest.approx(other["metrics"], rel=TOLERANCE)
    assert record["tokens"] == other["tokens"] == 10 * 8 * 32
    assert output.count("holds the record") == 1


@pytest.mark.slow
@pytest.mark.parametrize(("before", "after"), [(1, 2), (2, 1)])
def test_run_that_was_cut_off_goes_on_with_another_number_of_processes(alone, tmp_path, before, after):
    process = start(before, command(tmp_path, tmp_path / "run", training__save_every=2))
    while not list((tmp_path / "run").glob("checkpoints/checkpoint-4/complete.json")):
        assert process.poll() is None, process.stdout.read()
        time.sleep(0.02)
    os.killpg(process.pid, signal.SIGKILL)
    process.wait()
    process.stdout.close()
    assert json.loads((tmp_path / "run" / "run.json").read_text())["status"] == "running"
    status, output = run(after, command(tmp_path, tmp_path / "run", training__save_every=2))
    assert status == 0, output
    assert json.loads((tmp_path / "run" / "run.json").read_text())["machine"]["processes"] == after
    ours, theirs = ({e["step"]: e["loss"] for e in curve(f) if "loss" in e} for f in (tmp_path / "run", alone))
    assert ours == pytest.approx(theirs, rel=TOLERANCE)


def test_asking_accelerate_for_fsdp_where_it_would_run_something_else_is_an_error(monkeypatch):
    monkeypatch.setenv("ACCELERATE_USE_FSDP", "true")
    with pytest.raises(ValueError, match="asked for FSDP but runs MULTI_CPU here: it shards on accelerators alone"):
        describe_processes("MULTI_CPU")


def test_processes_that_were_started_and_take_no_part_are_noticed(monkeypatch):
    monkeypatch.setenv("WORLD_SIZE", "2")
    with pytest.raises(ValueError, match="2 processes were started, but only 1 take part; start with torchrun"):
        describe_processes("NO")


@pytest.mark.parametrize(("batch", "accumulation", "processes"), [(8, 1, 3), (8, 4, 4), (1, 1, 2)])
def test_batch_that_cannot_be_divided_over_processes_is_refused(batch, accumulation, processes):
    with pytest.raises(ValueError, match=rf"training.batch_size {batch} cannot be divided over {processes} processes"):
        portion(batch, accumulation, processes)
