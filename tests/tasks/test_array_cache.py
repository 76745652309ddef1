"""Generated data on disk: complete or absent, and damage is noticed."""

from __future__ import annotations

import json
import os
import subprocess
import sys

import numpy as np
import pytest

from flexformer import tasks
from flexformer.tasks.cache import MANIFEST, ArrayCache

SIZES = {"train": 40, "validation": 10, "test": 10, "min_length": 5, "max_length": 40}


def small(root):
    return tasks.build("listops", root, **SIZES)


@pytest.fixture
def prepared(tmp_path):
    task = small(tmp_path)
    task.prepare()
    return task


def test_second_preparation_changes_nothing(prepared):
    before = {path: path.stat().st_mtime_ns for path in prepared.files()}
    small(prepared.root).prepare()
    assert {path: path.stat().st_mtime_ns for path in prepared.files()} == before


def test_manifest_has_settings_and_checksums(prepared):
    manifest = json.loads((prepared.cache.folder / MANIFEST).read_text())
    assert manifest["settings"]["sizes"] == [40, 10, 10]
    assert manifest["settings"]["seed"] == 0
    assert len(manifest["files"]) == 9
    assert all(len(file["sha256"]) == 64 for file in manifest["files"].values())


def test_other_settings_live_in_another_folder(prepared):
    other = tasks.build("listops", prepared.root, **SIZES | {"seed": 1})
    assert other.cache.folder != prepared.cache.folder
    assert not other.files()


def test_flipped_byte_is_noticed(prepared):
    path = prepared.cache.folder / "train.tokens.npy"
    content = bytearray(path.read_bytes())
    content[-1] ^= 1
    path.write_bytes(content)
    message = r"train\.tokens\.npy does not have the checksum it was written with; delete .* data prepare listops"
    with pytest.raises(tasks.CorruptDataError, match=message):
        prepared.dataset("train")
    with pytest.raises(tasks.CorruptDataError, match=message):
        small(prepared.root).prepare()
    prepared.dataset("test")  # its files are whole


def test_truncated_file_is_noticed(prepared):
    path = prepared.cache.folder / "test.labels.npy"
    os.truncate(path, path.stat().st_size - 3)
    with pytest.raises(tasks.CorruptDataError, match=r"test\.labels\.npy has \d+ bytes instead of \d+; delete"):
        prepared.dataset("test")


def test_missing_file_is_noticed(prepared):
    (prepared.cache.folder / "validation.offsets.npy").unlink()
    with pytest.raises(tasks.CorruptDataError, match=r"validation\.offsets\.npy is missing; delete"):
        prepared.dataset("validation")


@pytest.mark.parametrize("content", ["", "{", "[]", "{}", '{"format": 1, "settings": {}, "files": {"a": 3}}'])
def test_damaged_manifest_is_noticed(prepared, content):
    (prepared.cache.folder / MANIFEST).write_text(content)
    with pytest.raises(tasks.CorruptDataError, match=r"manifest\.json (cannot be read|does not describe this set)"):
        prepared.dataset("train")


def test_pickled_array_is_never_loaded(tmp_path):
    cache = ArrayCache(tmp_path, "x", {}, "make it anew")
    with pytest.raises(ValueError, match="pickle"):
        cache.write({"objects": np.array([{}], dtype=object)})
    assert list(tmp_path.iterdir()) == []


def test_interrupted_write_leaves_nothing(tmp_path, monkeypatch):
    cache = ArrayCache(tmp_path, "x", {"a": 1}, "make it anew")

    def interrupt(*args, **kwargs):
        raise KeyboardInterrupt

    monkeypatch.setattr(os, "replace", interrupt)
    with pytest.raises(KeyboardInterrupt):
        cache.write({"zeros": np.zeros(3)})
    assert list(tmp_path.iterdir()) == []


def test_writer_that_comes_second_keeps_the_first_ones_files(tmp_path):
    first, second = (ArrayCache(tmp_path, "x", {"a": 1}, "make it anew") for _ in range(2))
    first.write({"zeros": np.zeros(3)})
    stamp = (first.folder / "zeros.npy").stat().st_mtime_ns
    second.write({"zeros": np.zeros(3)})
    assert (first.folder / "zeros.npy").stat().st_mtime_ns == stamp
    assert [path.name for path in tmp_path.iterdir()] == [first.folder.name]


def test_generating_needs_no_torch_in_the_worker_processes():
    code = (
        "import sys, flexformer.tasks.listops_trees, flexformer.tasks.pathfinder_images; print('torch' in sys.modules)"
    )
    result = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert result.stdout.strip() == "False"
