"""Mutated data files: every loader reads them or says what is wrong with which file."""

from __future__ import annotations

import hashlib
import io
import json
from pathlib import Path

import numpy as np
import pytest
from mutations import MANY, SOME, everything_outside, fuzz
from PIL import Image

from flexformer import tasks
from flexformer.tasks.errors import CorruptDataError, MissingDataError
from flexformer.tasks.glue import Glue
from flexformer.tasks.language import LanguageModelling

OURS = (CorruptDataError, MissingDataError)
COUNTS = [SOME, pytest.param(MANY, marks=[pytest.mark.slow, pytest.mark.timeout(3600)])]


@pytest.fixture
def root(tmp_path, monkeypatch):
    folder = tmp_path / "data"
    folder.mkdir()
    (tmp_path / "outside").mkdir()
    (tmp_path / "outside" / "precious").write_text("as it was")
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("HOME", str(tmp_path))
    return folder


def assert_only_clean_errors(root, path, good, read, count):
    """Whatever stands in `path`, `read()` gives examples or one of our errors, and nothing else is touched."""
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_bytes(good)
    read()
    before = everything_outside(root.parent, path.parent)

    def load(content: bytes) -> None:
        path.write_bytes(content)
        read()

    assert fuzz(good, load, OURS, count) > count // 20
    assert everything_outside(root.parent, path.parent) == before


def look_at(dataset):
    for index in (0, len(dataset) // 2, len(dataset) - 1):
        if len(dataset):
            dataset[index]


@pytest.mark.parametrize("count", COUNTS)
def test_reviews_as_lines_of_json(root, count):
    rows = [{"text": f"Das war großartig {i}", "label": i % 2} for i in range(12)]
    good = "".join(json.dumps(row, ensure_ascii=False) + "\n" for row in rows).encode()
    (root / "imdb").mkdir()
    (root / "imdb" / "test.jsonl").write_bytes(good)
    task = tasks.build("text", root, holdout=0.25)
    read = lambda: [look_at(task.dataset(split)) for split in ("train", "validation")]  # noqa: E731
    assert_only_clean_errors(root, root / "imdb" / "train.jsonl", good, read, count)


@pytest.mark.parametrize("count", COUNTS)
def test_pairs_of_papers_as_tab_separated_values(root, count):
    good = "".join(f"{i % 2}.0\tP{i}\tQ{i}\tone text {i}\tanother {i}\n" for i in range(10)).encode()
    (root / "aan").mkdir()
    for part in ("eval", "test"):
        (root / "aan" / f"new_aan_pairs.{part}.tsv").write_bytes(good)
    read = lambda: look_at(tasks.build("retrieval", root).dataset("train"))  # noqa: E731
    assert_only_clean_errors(root, root / "aan" / "new_aan_pairs.train.tsv", good, read, count)


@pytest.mark.parametrize("count", COUNTS)
def test_pictures_as_binary_records(root, count):
    records = np.random.default_rng(0).integers(0, 10, (3, 3073)).astype(np.uint8)
    folder = root / "cifar-10-batches-bin"
    folder.mkdir()
    for name in (*(f"data_batch_{i}.bin" for i in range(1, 6)), "test_batch.bin"):
        (folder / name).write_bytes(records.tobytes())
    read = lambda: look_at(tasks.build("image", root).dataset("train"))  # noqa: E731
    assert_only_clean_errors(root, folder / "data_batch_3.bin", records.tobytes(), read, count)


@pytest.mark.parametrize("damaged", ["test.png", "labels.npz"])
@pytest.mark.parametrize("count", COUNTS)
def test_pictures_on_sheets(root, count, damaged):
    folder = root / "cifar10_gray"
    folder.mkdir()
    sheet = io.BytesIO()
    Image.fromarray(np.random.default_rng(0).integers(0, 255, (64, 96)).astype(np.uint8)).save(sheet, "PNG")
    labels = io.BytesIO()
    np.savez_compressed(labels, y_train=np.zeros(30, np.int64), y_test=np.arange(6))
    for name in (*(f"train_{i}.png" for i in range(5)), "test.png"):
        (folder / name).write_bytes(sheet.getvalue())
    (folder / "labels.npz").write_bytes(labels.getvalue())
    good = (folder / damaged).read_bytes()
    read = lambda: look_at(tasks.build("image", root).dataset("test"))  # noqa: E731
    assert_only_clean_errors(root, folder / damaged, good, read, count)


@pytest.mark.parametrize("name", ["rte", pytest.param("stsb", marks=pytest.mark.slow), "qqp"])
@pytest.mark.parametrize("count", COUNTS)
def test_sentences_of_glue(root, count, name):
    header, row = {
        "rte": ("index\tsentence1\tsentence2\tlabel", "{i}\tEs regnet {i}.\tEs ist naß.\tentailment"),
        "stsb": ("index\tsentence1\tsentence2\tscore", "{i}\tone {i}\tanother\t3.{i}"),
        "qqp": ("id\tquestion1\tquestion2\tis_duplicate", "{i}\twhy {i}?\thow?\t{b}"),
    }[name]
    good = "\n".join([header, *(row.format(i=i, b=i % 2) for i in range(12))]).encode() + b"\n"
    glue = Glue(name, root)
    path = root / "glue" / glue.task.title / "train.tsv"
    read = lambda: [glue.examples("train"), glue.examples("validation")]  # noqa: E731
    assert_only_clean_errors(root, path, good, read, count)


@pytest.mark.parametrize("damaged", ["manifest.json", "train.npy", "vocabulary.npy"])
@pytest.mark.parametrize("trusted", [False, True], ids=["by accident", "with the checksum renewed"])
@pytest.mark.parametrize("count", COUNTS)
def test_files_of_token_ids(root, count, trusted, damaged):
    text = root / "text.txt"
    text.write_text("".join(f"{n} times {n} is {n * n} .\n" for n in range(60)))
    LanguageModelling(root, source=str(text), unit="word", length=16).prepare()
    (folder,) = (root / "lm").iterdir()
    path, manifest = folder / damaged, folder / "manifest.json"
    good, described = path.read_bytes(), json.loads(manifest.read_text())

    def read() -> None:
        content = path.read_bytes()
        if trusted and damaged != "manifest.json":
            described["files"][damaged] = {"bytes": len(content), "sha256": hashlib.sha256(content).hexdigest()}
            manifest.write_text(json.dumps(described))
        language = LanguageModelling(root, source=str(text), unit="word", length=16)
        language.prepare()
        look_at(language.dataset("train"))
        language.tokenizer()

    assert_only_clean_errors(root, path, good, read, count)


def test_manifest_of_token_ids_cannot_name_files_elsewhere(root):
    text = root / "text.txt"
    text.write_text("one two three\n" * 60)
    language = LanguageModelling(root, source=str(text), unit="word", length=16)
    language.prepare()
    manifest = Path(language.tokens.cache.folder, "manifest.json")
    described = json.loads(manifest.read_text())
    described["files"]["../../../outside/precious"] = {"bytes": 9, "sha256": "0" * 64}
    manifest.write_text(json.dumps(described))
    with pytest.raises(CorruptDataError, match=r"manifest\.json does not describe this set; delete .* train once more"):
        language.tokens.cache.verify()
