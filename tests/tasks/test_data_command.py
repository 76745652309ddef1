"""`flexformer data`: listing, checking and preparing from the command line."""

from __future__ import annotations

import json
from pathlib import Path

import numpy as np
import pytest
from PIL import Image

from flexformer.cli.main import main

SMALL = ["--train", "30", "--validation", "10", "--test", "60"]


def output(capsys, *arguments, status=0):
    assert main(["data", *map(str, arguments)]) == status
    return capsys.readouterr().out


def prepare(capsys, root, task, *options):
    return json.loads(output(capsys, "prepare", task, "--root", root, *options, "--json"))


def test_list_shows_every_task_and_the_papers_table_beside_true_counts(capsys, tmp_path):
    printed = output(capsys, "list", "--root", tmp_path)
    for word in ("listops", "aclImdb", "new_aan_pairs", "cifar-10-batches-bin", "147K", "147,086", "634K", "635"):
        assert word in printed


def test_list_as_json_says_what_is_found(capsys, tmp_path):
    prepare(capsys, tmp_path, "listops", *SMALL, "--min-length", "5", "--max-length", "40")
    listed = json.loads(output(capsys, "list", "--root", tmp_path, "--json"))
    found = {task["name"]: task["found"] for task in listed["tasks"]}
    assert found["listops"] is True  # though not in the benchmark's lengths
    assert found["image"] is False
    assert listed["tasks"][3]["official"]["heads"] == 8
    assert {row["name"] for row in listed["datasets"]} >= {"WNLI", "AAN", "WikiText-103"}


def test_prepare_generates_once_and_checks_afterwards(capsys, tmp_path):
    options = [*SMALL, "--min_length", "5", "--max_length", "40"]
    first = prepare(capsys, tmp_path, "listops", *options)
    assert first["counts"] == {"train": 30, "validation": 10, "test": 60}
    assert prepare(capsys, tmp_path, "listops", *options)["files"] == first["files"]
    checked = json.loads(output(capsys, "check", "--root", tmp_path, "--json"))
    states = {finding["task"]: finding["state"] for finding in checked["findings"]}
    assert states["listops"] == "ok"
    assert states["text"] == "missing"


def test_prepare_writes_a_contact_sheet(capsys, tmp_path):
    sheet = tmp_path / "pictures" / "sheet.png"
    made = prepare(capsys, tmp_path, "pathfinder", *SMALL, "--sheet", sheet)
    assert made["sheet"] == str(sheet)
    with Image.open(sheet) as picture:
        pixels = np.asarray(picture)
    assert pixels.shape == (3 * (4 * 34 + 4), 3 * 12 * 34)
    assert pixels.max() == 255
    assert [path.name for path in sheet.parent.iterdir()] == ["sheet.png"]


def test_prepare_tells_in_words_what_was_made(capsys, tmp_path):
    printed = output(
        capsys, "prepare", "listops", "--root", tmp_path, *SMALL, "--min_length", "5", "--max_length", "40"
    )
    assert "ListOps: 30 train, 10 validation, 60 test in" in printed
    assert "cannot be compared with the paper's" in printed


def test_sheet_of_a_task_without_pictures_is_refused(capsys, tmp_path):
    options = [*SMALL, "--min_length", "5", "--max_length", "40", "--sheet", tmp_path / "x.png"]
    assert main(["data", "prepare", "listops", "--root", str(tmp_path), *map(str, options)]) == 1
    assert "listops has no pictures" in capsys.readouterr().err
    assert not (tmp_path / "x.png").exists()


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["prepare", "image"], "CIFAR-10 is not in"),
        (["prepare", "imgae"], "unknown task 'imgae' (did you mean 'image'?)"),
        (["prepare", "text", "--contour_length", "3"], "text has no option 'contour_length'"),
        (["prepare", "listops", "--workers", "0", "--train", "9999"], "workers 0 do nothing"),
        (["check", "--task", "nothing"], "unknown task 'nothing'"),
    ],
)
def test_mistakes_are_one_line(capsys, tmp_path, arguments, message):
    assert main(["data", *arguments, "--root", str(tmp_path)]) == 1
    error = capsys.readouterr().err
    assert message in error
    assert error.count("\n") == 1


def test_check_fails_for_a_task_asked_for_that_is_missing(capsys, tmp_path):
    assert "get lra_release.gz" in output(capsys, "check", "--task", "retrieval", "--root", tmp_path, status=1)


def test_check_fails_for_damage_and_says_what_to_do(capsys, tmp_path):
    made = prepare(capsys, tmp_path, "listops", *SMALL, "--min_length", "5", "--max_length", "40")
    path = next(Path(file) for file in made["files"] if file.endswith("test.labels.npy"))
    content = bytearray(path.read_bytes())
    content[-2] ^= 255
    path.write_bytes(content)
    printed = " ".join(output(capsys, "check", "--root", tmp_path, status=1).split())
    assert "corrupt" in printed
    assert "does not have the checksum it was written with; delete" in printed


def test_a_folder_of_somebody_else_s_is_named_and_hides_nothing(capsys, tmp_path):
    prepare(capsys, tmp_path, "listops", *SMALL, "--min_length", "5", "--max_length", "40")
    stranger = tmp_path / "listops" / "stranger"
    stranger.mkdir()
    (stranger / "manifest.json").write_text("{}")
    assert json.loads(output(capsys, "list", "--root", tmp_path, "--json"))["tasks"]
    found = json.loads(output(capsys, "check", "--task", "listops", "--root", tmp_path, "--json", status=1))["findings"]
    assert [finding["state"] for finding in found] == ["ok", "corrupt"]
    assert "does not describe a set of listops" in found[1]["problem"]
    assert found[0]["published"] is False


def test_check_reads_every_line_of_the_pairs(capsys, tmp_path):
    folder = tmp_path / "aan"
    folder.mkdir()
    for name in ("train", "eval", "test"):
        (folder / f"new_aan_pairs.{name}.tsv").write_text("1\ta\tb\tc\td\n")
    assert "ok" in output(capsys, "check", "--task", "retrieval", "--root", tmp_path)
    (folder / "new_aan_pairs.eval.tsv").write_text("1\ta\tb\tc\td\n0\ta\tb\n")
    assert "line 2 has 3 columns" in output(capsys, "check", "--task", "retrieval", "--root", tmp_path, status=1)


def test_check_gives_one_checksum_for_a_folder_of_reviews(capsys, tmp_path):
    for split in ("train", "test"):
        for sentiment in ("pos", "neg"):
            path = tmp_path / "aclImdb" / split / sentiment / "1_1.txt"
            path.parent.mkdir(parents=True)
            path.write_text("x")
    first = json.loads(output(capsys, "check", "--task", "text", "--root", tmp_path, "--json"))["findings"][0]
    assert list(first["checksums"]) == ["aclImdb/train", "aclImdb/test"]
    assert first["published"] is False
    path.write_text("y")
    second = json.loads(output(capsys, "check", "--task", "text", "--root", tmp_path, "--json"))["findings"][0]
    assert second["checksums"]["aclImdb/train"] == first["checksums"]["aclImdb/train"]
    assert second["checksums"]["aclImdb/test"] != first["checksums"]["aclImdb/test"]


@pytest.mark.data
def test_check_finds_the_published_counts_in_the_real_data(capsys, data_folder):
    if not (Path(data_folder) / "imdb").is_dir():
        pytest.skip("IMDb is not in FLEXFORMER_DATA")
    (finding,) = json.loads(output(capsys, "check", "--task", "text", "--root", data_folder, "--json"))["findings"]
    assert finding["state"] == "ok"
    assert finding["published"] is True
