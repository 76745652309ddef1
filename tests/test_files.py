"""Files and folders are there whole or not at all."""

from __future__ import annotations

import os
import shutil

import pytest

from flexformer.files import write_folder, write_text


def fill(word):
    def write(folder):
        for name in ("a", "b"):
            (folder / name).write_text(word)

    return write


def words(folder):
    return {path.name: path.read_text() for path in folder.iterdir()}


def test_a_folder_takes_the_place_of_another(tmp_path):
    for word in ("old", "new"):
        write_folder(tmp_path / "model", fill(word))
        assert words(tmp_path / "model") == {"a": word, "b": word}
        assert [path.name for path in tmp_path.iterdir()] == ["model"]


@pytest.mark.parametrize("moves", [0, 1, 2])
def test_a_folder_is_the_old_or_the_new_one_wherever_writing_is_interrupted(tmp_path, monkeypatch, moves):
    write_folder(tmp_path / "model", fill("old"))
    replace, done = os.replace, []

    def interrupted(source, target):
        if len(done) == moves:
            done.append(None)
            raise KeyboardInterrupt
        done.append(None)
        replace(source, target)

    monkeypatch.setattr(os, "replace", interrupted)
    if moves < 2:
        with pytest.raises(KeyboardInterrupt):
            write_folder(tmp_path / "model", fill("new"))
    else:
        write_folder(tmp_path / "model", fill("new"))
    word = "old" if moves < 2 else "new"
    assert words(tmp_path / "model") == {"a": word, "b": word}
    assert [path.name for path in tmp_path.iterdir()] == ["model"]


def test_an_interrupt_while_tidying_up_leaves_the_new_folder(tmp_path, monkeypatch):
    write_folder(tmp_path / "model", fill("old"))

    def interrupted(*_, **__):
        raise KeyboardInterrupt

    monkeypatch.setattr(shutil, "rmtree", interrupted)
    with pytest.raises(KeyboardInterrupt):
        write_folder(tmp_path / "model", fill("new"))
    assert words(tmp_path / "model") == {"a": "new", "b": "new"}


def test_a_folder_that_cannot_be_filled_leaves_nothing(tmp_path):
    def fails(folder):
        (folder / "a").write_text("half")
        raise OSError("no space")

    with pytest.raises(OSError, match="no space"):
        write_folder(tmp_path / "model", fails)
    assert not list(tmp_path.iterdir())


def test_text_is_written_with_its_folders(tmp_path):
    write_text(tmp_path / "a" / "b.txt", "é")
    assert (tmp_path / "a" / "b.txt").read_bytes() == "é".encode()
