"""Checkpoints that were cut short or changed on disk, and disks that are full: nothing wrong is ever gone on from."""

from __future__ import annotations

import io
import json
import shutil
import signal
import subprocess
import sys
from pathlib import Path

import fragile_run
import pytest
from rich.console import Console

from flexformer.training import LanguageJob, checkpoints, run_job

SCRIPT = Path(fragile_run.__file__)


def outcome(folder):
    record = json.loads((folder / "run.json").read_text())
    kept = {key: record[key] for key in ("status", "metrics", "steps", "selected_step", "tokens")}
    return kept, (folder / "log.jsonl").read_text(), (folder / "model" / "model.safetensors").read_bytes()


def go_on(folder, root):
    screen = io.StringIO()
    run_job(LanguageJob(fragile_run.options(root)), folder, Console(file=screen, width=300))
    return screen.getvalue()


@pytest.fixture(scope="module")
def root(tmp_path_factory):
    return tmp_path_factory.mktemp("data")


@pytest.fixture(scope="module")
def whole(root, tmp_path_factory):
    folder = tmp_path_factory.mktemp("whole") / "run"
    go_on(folder, root)
    return outcome(folder)


@pytest.fixture(scope="module")
def killed(root, tmp_path_factory):
    """A run that was killed at step 12, with the checkpoints of steps 5 and 10."""
    folder = tmp_path_factory.mktemp("killed") / "run"
    command = [sys.executable, SCRIPT, folder, root, "18", "5", "at", "12"]
    cut = subprocess.run(command, capture_output=True, text=True, timeout=300)
    assert cut.returncode == -signal.SIGKILL, cut.stderr
    return folder


@pytest.fixture
def cut(killed, tmp_path):
    return Path(shutil.copytree(killed, tmp_path / "run"))


def damage(path, how):
    content = bytearray(path.read_bytes())
    if how == "truncated":
        content = content[: len(content) // 2]
    elif how == "emptied":
        content = b""
    else:
        content[len(content) // 2] ^= 0x10
    path.write_bytes(content)


SOME = [("model.safetensors", "flipped"), ("optimizer.pt", "truncated")]
MORE = [
    (name, how)
    for name in ("model.safetensors", "optimizer.pt", "scheduler.pt", "rng_state.pth", "trainer_state.json")
    for how in ("truncated", "flipped", "emptied")
    if (name, how) not in SOME
]
DAMAGES = [*SOME, *(pytest.param(*damage, marks=pytest.mark.slow) for damage in MORE)]


@pytest.mark.parametrize(("name", "how"), DAMAGES)
def test_damaged_checkpoint_is_named_and_the_one_before_leads_to_the_same_result(cut, root, whole, name, how):
    damage(cut / "checkpoints" / "checkpoint-10" / name, how)
    assert checkpoints.last(cut / "checkpoints")[1].step == 5
    said = go_on(cut, root)
    assert f"checkpoint-10 is damaged: {name} does not have the checksum it was written with; not used" in said
    assert outcome(cut) == whole


@pytest.mark.parametrize("how", ["truncated", "flipped", "emptied"])
def test_marker_that_was_changed_makes_no_checkpoint_whole(cut, how):
    marker = cut / "checkpoints" / "checkpoint-10" / checkpoints.MARKER
    damage(marker, how)
    assert checkpoints.read(marker.parent) is None
    assert checkpoints.last(cut / "checkpoints")[1].step == 5


@pytest.mark.slow
def test_run_whose_checkpoints_are_all_damaged_begins_anew(cut, root, whole):
    for checkpoint in (cut / "checkpoints").iterdir():
        (checkpoint / "model.safetensors").unlink()
    assert "model.safetensors is missing; not used" in go_on(cut, root)
    assert outcome(cut) == whole


def test_checkpoint_that_needs_damaged_best_weights_is_not_gone_on_from(tmp_path):
    for step, best in ((5, 0), (10, 10), (15, 10)):
        folder = checkpoints.folder(tmp_path, step)
        folder.mkdir()
        (folder / "weights").write_bytes(bytes([step]))
        checkpoints.complete(folder, checkpoints.Marker(step, best=best))
    damage(tmp_path / "checkpoint-10" / "weights", "flipped")
    said = []
    assert checkpoints.recover(tmp_path, said.append)[1].step == 5
    assert "checkpoint-10 is damaged: weights does not have the checksum" in said[0]
    assert said[1].endswith("checkpoint-15 needs the weights of step 10, which are not whole")
    assert [path.name for path in tmp_path.iterdir()] == ["checkpoint-5"]


def test_two_checkpoints_and_the_best_weights_they_know_of_are_kept(tmp_path):
    for step, best in ((5, 5), (10, 5), (15, 5), (20, 20), (25, 20)):
        checkpoints.folder(tmp_path, step).mkdir()
        checkpoints.complete(checkpoints.folder(tmp_path, step), checkpoints.Marker(step, best=best))
        checkpoints.keep_latest(tmp_path)
        kept = {int(path.name.partition("-")[2]) for path in tmp_path.iterdir()}
        assert kept == {5: {5}, 10: {5, 10}, 15: {5, 10, 15}, 20: {5, 15, 20}, 25: {20, 25}}[step]


@pytest.mark.slow
def test_disk_that_is_full_while_saving_leaves_the_checkpoint_before_whole(root, whole, tmp_path):
    folder = tmp_path / "run"
    command = [sys.executable, SCRIPT, folder, root, "18", "5", "full", "10"]
    ended = subprocess.run(command, capture_output=True, text=True, timeout=300)
    assert ended.returncode == 1, ended.stderr
    said = " ".join(ended.stdout.split())
    assert "checkpoint-10 could not be written (" in said
    assert "nothing that was saved before is touched: make room and give the same command again" in said
    assert [path.name for path in (folder / "checkpoints").iterdir()] == ["checkpoint-5"]
    assert checkpoints.verify(folder / "checkpoints" / "checkpoint-5").step == 5
    go_on(folder, root)
    assert outcome(folder) == whole
