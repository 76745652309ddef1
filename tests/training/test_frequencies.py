"""The sweep over numbers of frequencies, from runs to plot."""

from __future__ import annotations

import json

import pytest

from flexformer.cli.main import main
from flexformer.experiments.frequencies import plan


def test_plan_has_a_run_for_every_task_multiple_and_seed():
    runs = plan(["image", "listops"], "flexformer-s", "paper", [0.5, 2], [0, 1])
    counts = [(r.task, r.model.attention_options["num_frequencies"], r.seed) for r in runs]
    image = [("image", n, seed) for n in (8, 32) for seed in (0, 1)]
    assert counts == image + [("listops", n, seed) for n in (32, 128) for seed in (0, 1)]
    assert {r.attention for r in runs} == {"flexformer-s"}


def test_multiple_that_leaves_no_frequency_is_refused():
    with pytest.raises(ValueError, match=r"multiple 0.01 of heads of 16 leaves no frequency"):
        plan(["image"], "flexformer-n", "paper", [0.01], [0])


@pytest.mark.slow
def test_one_command_trains_and_plots(tmp_path, capfd):
    pytest.importorskip("matplotlib")
    command = [
        "reproduce",
        "frequencies",
        "--tasks",
        "[listops]",
        "--preset",
        "smoke",
        "--multiples",
        "[0.5,1]",
        "--json",
    ]
    command += ["--root", str(tmp_path / "data"), "--output", str(tmp_path / "out")]
    assert main(command) == 0
    points = json.loads(capfd.readouterr().out)
    assert [point["frequencies"] for point in points] == [8, 16]
    assert points[1]["parameters"] - points[0]["parameters"] == 2 * 2 * 8 * 16
    assert points == json.loads((tmp_path / "out/frequencies.json").read_text())
    assert (tmp_path / "out/frequencies.png").read_bytes().startswith(b"\x89PNG")
    assert main(command) == 0  # nothing is trained again
    assert json.loads(capfd.readouterr().out) == points
