"""`flexformer demo`: it keeps to its time, goes on where it was cut off, and leaves a report."""

import json
import os
import signal
import subprocess
import sys
import time

import pytest

from flexformer.cli import main as frame
from flexformer.demo import ATTENTIONS
from flexformer.demo.plan import FEWEST, MOST, Plan, begin, expected_seconds, steps_that_fit

MINUTES = "0.1"  # so little that the fewest steps are taken


@pytest.fixture(scope="module")
def finished(tmp_path_factory):
    """A whole demo: its folder, and what it printed as JSON."""
    output = tmp_path_factory.mktemp("demo") / "demo"
    command = [sys.executable, "-m", "flexformer", "demo", "--minutes", MINUTES, "--output", str(output), "--json"]
    result = subprocess.run(command, capture_output=True, text=True, timeout=900)
    assert result.returncode == 0, result.stderr
    return output, json.loads(result.stdout)


def test_all_attentions_take_the_same_steps_and_are_tested(finished):
    output, found = finished
    assert found["steps"] == FEWEST
    trained = set(found["metrics"])
    assert {"softmax", "flexformer-n"} <= trained <= set(ATTENTIONS)
    assert trained | set(found["left_out"]) == set(ATTENTIONS)
    for attention in trained:
        record = json.loads((output / attention / "run.json").read_text())
        assert (record["status"], record["steps"]) == ("finished", FEWEST)
        assert 0 < found["metrics"][attention]["test_bits_per_byte"] < 8


def test_the_state_of_kernels_stays_while_that_of_softmax_grows(finished):
    _, found = finished
    assert len(found["written"]["text"]) > 50
    states = {(cost["attention"], cost["context"]): cost["state_bytes"] for cost in found["costs"]}
    contexts = sorted({context for _, context in states})
    assert all(states["flexformer-n", context] == found["written"]["state_bytes"] for context in contexts)
    assert states["softmax", contexts[-1]] > 0


def test_the_report_shows_runs_kernels_speed_and_the_text(finished):
    output, found = finished
    html = (output / "report.html").read_text(encoding="utf-8")
    for heading in ("At a glance", "What was run", "Speed and memory", "What the kernels learned", "Environment"):
        assert heading in html
    assert "The start was drawn again" in html
    assert found["report"] == str(output / "report.html")


def test_a_finished_demo_starts_anew_and_an_unfinished_one_goes_on(finished):
    output, _ = finished
    plan = json.loads((output / "plan.json").read_text())
    assert plan["finished"]
    try:
        (output / "plan.json").write_text(json.dumps(plan | {"finished": False}))
        assert begin(output, float(MINUTES), 0).steps == FEWEST
        assert (output / "softmax" / "run.json").exists()
    finally:
        (output / "plan.json").write_text(json.dumps(plan))


def test_a_new_demo_clears_only_what_an_old_one_left(tmp_path):
    Plan(5, 0, 100, finished=True).write(tmp_path)
    for name in ("softmax", "data", "mine"):
        (tmp_path / name).mkdir()
    assert begin(tmp_path, 5, 0) == Plan(5, 0)
    assert sorted(path.name for path in tmp_path.iterdir()) == ["data", "mine", "plan.json"]


@pytest.mark.parametrize("minutes", ["0", "-1", "1e9"])
def test_a_time_that_is_none_is_refused(tmp_path, capsys, minutes):
    assert frame.main(["demo", "--minutes", minutes, "--output", str(tmp_path / "new")]) == 1
    assert "minutes" in capsys.readouterr().err
    assert not (tmp_path / "new").exists()


def test_a_folder_with_something_else_is_left_alone(tmp_path, capsys):
    (tmp_path / "thesis.txt").write_text("all of it")
    assert frame.main(["demo", "--output", str(tmp_path)]) == 1
    assert "holds no demo" in capsys.readouterr().err
    assert [path.name for path in tmp_path.iterdir()] == ["thesis.txt"]


def test_steps_fit_the_time_and_are_bounded():
    seconds = [0.05, 0.08, 0.06, 0.09]
    steps = steps_that_fit(5.0, 10.0, seconds)
    assert FEWEST < steps < MOST
    assert sum(expected_seconds(steps, s) for s in seconds) < 0.75 * 5 * 60
    assert steps_that_fit(0.01, 10.0, seconds) == FEWEST
    assert steps_that_fit(600.0, 10.0, seconds) == MOST
    assert steps_that_fit(5.0, 10.0, [2 * s for s in seconds]) < steps


def _heed_interrupts():
    signal.signal(signal.SIGINT, signal.SIG_DFL)  # a parent in the background may have it ignored


@pytest.mark.slow
@pytest.mark.skipif(os.name == "nt", reason="signals as POSIX has them")
def test_an_interrupted_demo_is_one_line_and_goes_on(tmp_path):
    output = tmp_path / "demo"
    command = [sys.executable, "-m", "flexformer", "demo", "--minutes", "3", "--output", str(output)]
    with open(tmp_path / "out", "w") as out:
        process = subprocess.Popen(command, stdout=out, stderr=subprocess.PIPE, text=True, preexec_fn=_heed_interrupts)
        deadline = time.monotonic() + 300
        while not (output / "softmax" / "log.jsonl").exists() and time.monotonic() < deadline:
            assert process.poll() is None
            time.sleep(0.1)
        process.send_signal(signal.SIGINT)
        _, err = process.communicate(timeout=300)
    assert process.returncode == 130
    assert err.strip().splitlines()[-1].startswith("flexformer demo: error: interrupted at step ")
    steps = json.loads((output / "plan.json").read_text())["steps"]
    assert steps == begin(output, 3.0, 0).steps  # what the same command would go on with
    assert not (output / "report.html").exists()
