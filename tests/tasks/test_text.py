"""Text: folders, lines and Hugging Face datasets give the same bytes, and validation is what was asked for."""

from __future__ import annotations

import json

import numpy as np
import pytest

from flexformer import tasks

REVIEWS = {
    "train": [(f"film {i} was{' not' * (i % 2 == 0)} good <br /> Über", i % 2) for i in range(40)],
    "test": [(f"Kino {i}", i % 2) for i in range(10)],
}


def write_lines(folder):
    folder.mkdir(parents=True)
    for split, rows in REVIEWS.items():
        lines = [json.dumps({"text": text, "label": label, "rating": 3}) for text, label in rows]
        (folder / f"{split}.jsonl").write_text("\n".join(lines) + "\n", encoding="utf-8")


def write_folders(folder):
    for split, rows in REVIEWS.items():
        for i, (text, label) in enumerate(rows):
            path = folder / split / ("neg", "pos")[label] / f"{i}_7.txt"
            path.parent.mkdir(parents=True, exist_ok=True)
            path.write_text(text, encoding="utf-8")


def texts(dataset):
    return [(bytes((item["input_ids"] - 1).tolist()).decode(), item["labels"]) for item in dataset]


@pytest.fixture
def root(tmp_path):
    write_lines(tmp_path / "imdb")
    return tmp_path


def test_lines_are_read_as_bytes_without_markers(root):
    task = tasks.build("text", root)
    task.prepare()
    assert texts(task.dataset("train")) == REVIEWS["train"]
    assert texts(task.dataset("test")) == REVIEWS["test"]


def test_folders_hold_the_same_reviews(tmp_path):
    write_folders(tmp_path / "aclImdb")
    task = tasks.build("text", tmp_path)
    for split, rows in REVIEWS.items():
        assert sorted(texts(task.dataset(split))) == sorted(rows)


def test_hugging_face_dataset_holds_the_same_reviews(root, monkeypatch):
    datasets = pytest.importorskip("datasets")
    monkeypatch.setattr(datasets.config, "HF_DATASETS_CACHE", root / "cache")
    task = tasks.build("text", root / "nowhere", source=str(root / "imdb"))
    task.prepare()
    assert texts(task.dataset("train")) == REVIEWS["train"]


def test_hugging_face_dataset_that_cannot_be_had_says_so(tmp_path, monkeypatch):
    pytest.importorskip("datasets")
    task = tasks.build("text", tmp_path, source=str(tmp_path / "nobody" / "nothing"))
    with pytest.raises(tasks.MissingDataError, match=r"load_dataset.* failed: .*Check the id and the network"):
        task.prepare()


def test_hugging_face_dataset_without_the_columns_says_which(root, monkeypatch):
    datasets = pytest.importorskip("datasets")
    monkeypatch.setattr(datasets.config, "HF_DATASETS_CACHE", root / "cache")
    for path in (root / "imdb").iterdir():
        path.write_text('{"review": "x", "label": 1}\n')
    with pytest.raises(ValueError, match="has the columns review, label; text is needed"):
        tasks.build("text", root, source=str(root / "imdb")).prepare()


def test_reviews_are_cut_to_max_length(root):
    task = tasks.build("text", root, max_length=6)
    assert max(len(item["input_ids"]) for item in task.dataset("train")) == 6
    assert texts(task.dataset("train", max_length=4))[0] == ("film", 0)


def test_validation_is_the_test_set_as_in_the_original_code(root):
    task = tasks.build("text", root)
    assert texts(task.dataset("validation")) == REVIEWS["test"]
    assert any("validation is the test set" in note for note in task.describe().notes)


def test_held_out_reviews_are_balanced_and_leave_training(root):
    task = tasks.build("text", root, holdout=0.2)
    kept, aside = texts(task.dataset("train")), texts(task.dataset("validation"))
    assert sorted(kept + aside) == sorted(REVIEWS["train"])
    assert len(aside) == 8
    assert np.mean([label for _, label in aside]) == 0.5
    assert texts(task.dataset("test")) == REVIEWS["test"]


def test_folders_win_over_lines(root):
    write_folders(root / "aclImdb")
    assert tasks.build("text", root).files()[0] == root / "aclImdb" / "train"


@pytest.mark.parametrize("line", ['{"text": "x"}', "nothing", '{"text": 3, "label": 1}', '["text", "label"]'])
def test_line_that_is_no_review_is_named(root, line):
    path = root / "imdb" / "train.jsonl"
    path.write_text(path.read_text() + line + "\n")
    with pytest.raises(tasks.CorruptDataError, match=r"train\.jsonl, line 41 is not"):
        tasks.build("text", root).dataset("train")


def test_other_labels_and_empty_files_are_noticed(root):
    (root / "imdb" / "train.jsonl").write_text('{"text": "x", "label": -1}\n')
    (root / "imdb" / "test.jsonl").write_text("")
    task = tasks.build("text", root)
    with pytest.raises(tasks.CorruptDataError, match="has the label -1"):
        task.dataset("train")
    with pytest.raises(tasks.CorruptDataError, match="has no reviews"):
        task.dataset("test")


def test_holdout_must_be_a_share(tmp_path):
    with pytest.raises(ValueError, match=r"holdout 1\.5 is not a share"):
        tasks.build("text", tmp_path, holdout=1.5)


@pytest.mark.data
def test_real_imdb_has_the_published_counts(data_folder):
    task = tasks.build("text", data_folder)
    if not task.files():
        pytest.skip("IMDb is not in FLEXFORMER_DATA")
    for split in ("train", "test"):
        dataset = task.dataset(split)
        assert np.bincount(dataset.labels).tolist() == [12_500, 12_500]
    assert max(len(dataset[i]["input_ids"]) for i in range(500)) <= 4000
