"""Fine-tuning, distilling and fine-tuning again on two processes, as on one."""

from __future__ import annotations

import json
import os
import subprocess
import sys

import pytest
import tiny

from flexformer.training.callbacks import read_log

STAGES = ("reference", "distill", "finetune")
SHORT = ["--preset=smoke", "--training.steps=4", "--training.evaluate_every=2", "--training.log_every=1",
         "--distill.training.steps=4", "--distill.training.log_every=1"]  # fmt: skip


def recover(folder, processes):
    launcher = ["-m", "torch.distributed.run", "--standalone", f"--nproc_per_node={processes}"] if processes > 1 else []
    given = ["finetune", "encoder", "cola", "--attention=flexformer-s", "--procedure=recover", *SHORT]
    done = subprocess.run(
        [sys.executable, *launcher, "-m", "flexformer", *given, f"--output=on{processes}", "--json"],
        capture_output=True,
        text=True,
        cwd=folder,
        env=os.environ | {"OMP_NUM_THREADS": "1", "CUDA_VISIBLE_DEVICES": "", "FLEXFORMER_DATA": str(folder / "data")},
        timeout=300,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    return json.loads(done.stdout)  # of one process, or it would not be JSON


@pytest.mark.slow
def test_two_processes_recover_what_one_does(tmp_path):
    tiny.save(tmp_path / "encoder", **tiny.NO_DROPOUT)
    tiny.glue(tmp_path / "data")
    one, two = (recover(tmp_path, processes) for processes in (1, 2))
    for name in one:
        assert (one[name]["machine"]["processes"], two[name]["machine"]["processes"]) == (1, 2)
        scores = [{k: v for k, v in each[name]["metrics"].items() if not k.endswith("loss")} for each in (two, one)]
        assert scores[0] == pytest.approx(scores[1], rel=1e-4, abs=1e-6), name
    for stage in STAGES:
        ours, theirs = (read_log(tmp_path / f"on{processes}" / stage / "log.jsonl") for processes in (2, 1))
        losses = [[entry["loss"] for entry in log if "loss" in entry] for log in (ours, theirs)]
        assert losses[0] == pytest.approx(losses[1], rel=1e-5)
