"""Image: the official binary files, grey sheets and Hugging Face datasets all give the same tokens."""

from __future__ import annotations

import numpy as np
import pytest
from PIL import Image

from flexformer import tasks
from flexformer.tasks.image import grey, shrink

PER_FILE = 20


@pytest.fixture(scope="module")
def colour():
    rng = np.random.default_rng(0)
    return rng.integers(0, 256, (6 * PER_FILE, 32, 32, 3), dtype=np.uint8), rng.integers(0, 10, 6 * PER_FILE, np.uint8)


def write_binary(folder, colour):
    pictures, labels = colour
    folder.mkdir(parents=True)
    records = np.concatenate([labels[:, None], np.moveaxis(pictures, -1, 1).reshape(len(labels), -1)], axis=1)
    names = [*(f"data_batch_{i}.bin" for i in range(1, 6)), "test_batch.bin"]
    for name, part in zip(names, np.split(records, 6), strict=True):
        (folder / name).write_bytes(part.tobytes())


def write_sheets(folder, colour, columns=5):
    pictures, labels = colour
    folder.mkdir(parents=True)
    names = [*(f"train_{i}.png" for i in range(5)), "test.png"]
    for name, part in zip(names, np.split(grey(pictures), 6), strict=True):
        sheet = part.reshape(-1, columns, 32, 32).swapaxes(1, 2).reshape(-1, columns * 32)
        Image.fromarray(sheet).save(folder / name)
    np.savez(folder / "labels.npz", y_train=labels[: 5 * PER_FILE], y_test=labels[5 * PER_FILE :])


def contents(task):
    return {
        split: [(item["input_ids"].tolist(), item["labels"]) for item in task.dataset(split)]
        for split in ("train", "validation", "test")
    }


def test_binary_files_give_the_official_splits(tmp_path, colour):
    write_binary(tmp_path / "cifar-10-batches-bin", colour)
    task = tasks.build("image", tmp_path)
    task.prepare()
    assert [len(task.dataset(split)) for split in ("train", "validation", "test")] == [90, 10, 20]
    pictures, labels = colour
    for split, row in (("train", 0), ("train", 89), ("validation", 90), ("test", 100)):
        item = task.dataset(split)[row - {"train": 0, "validation": 90, "test": 100}[split]]
        assert item["labels"] == labels[row]
        assert (item["input_ids"].numpy() == grey(pictures[row]).reshape(-1).astype(int) + 1).all()


def test_sheets_give_the_same_tokens_as_binary_files(tmp_path, colour):
    write_binary(tmp_path / "a" / "cifar10", colour)
    write_sheets(tmp_path / "b" / "cifar10_gray", colour)
    assert contents(tasks.build("image", tmp_path / "a")) == contents(tasks.build("image", tmp_path / "b"))


def test_hugging_face_dataset_gives_the_same_tokens(tmp_path, colour, monkeypatch):
    datasets = pytest.importorskip("datasets")
    monkeypatch.setattr(datasets.config, "HF_DATASETS_CACHE", tmp_path / "cache")
    pictures, labels = colour
    for split, rows in (("train", slice(0, 100)), ("test", slice(100, 120))):
        folder = tmp_path / "hub" / split
        folder.mkdir(parents=True)
        lines = []
        for i, (picture, label) in enumerate(zip(pictures[rows], labels[rows], strict=True)):
            Image.fromarray(picture).save(folder / f"{i:03}.png")
            lines.append(f"{i:03}.png,{label}")
        (folder / "metadata.csv").write_text("\n".join(["file_name,label", *lines]))
    write_binary(tmp_path / "cifar10", colour)
    hub = tasks.build("image", tmp_path, source=str(tmp_path / "hub"))
    hub.prepare()
    assert contents(hub) == contents(tasks.build("image", tmp_path))


def test_grey_is_rounded_as_tensorflow_rounds():
    white, black, red = [255, 255, 255], [0, 0, 0], [255, 0, 0]
    assert grey(np.array([white, black, red], np.uint8)).tolist() == [255, 0, 76]
    pixels = np.random.default_rng(0).integers(0, 256, (1000, 3), dtype=np.uint8)
    exact = pixels @ np.array([0.2989, 0.5870, 0.1140]) * 255.5 / 255
    settled = np.abs(exact - np.rint(exact)) > 1e-3
    assert (grey(pixels)[settled] == np.floor(exact)[settled]).all()


def test_black_is_a_token_unless_the_original_mask_is_asked_for(tmp_path, colour):
    pictures, labels = colour[0].copy(), colour[1]
    pictures[:, :16] = 0
    write_binary(tmp_path / "cifar10", (pictures, labels))
    task = tasks.build("image", tmp_path)
    assert task.vocab_size == 257
    assert task.collate([task.dataset("test")[0]])["key_mask"].all()
    original = tasks.build("image", tmp_path, lra_pixel_mask=True)
    assert original.vocab_size == 256
    assert not original.collate([original.dataset("test")[0]])["key_mask"][0, :512].any()


def test_smaller_pictures_are_averages(tmp_path, colour):
    write_binary(tmp_path / "cifar10", colour)
    task = tasks.build("image", tmp_path, side=16)
    assert task.max_length == 256
    expected = grey(colour[0][100]).reshape(16, 2, 16, 2).mean(axis=(1, 3))
    assert np.abs(task.dataset("test")[0]["input_ids"].numpy().reshape(16, 16) - 1 - expected).max() <= 0.5
    assert any("cannot be compared" in note for note in task.describe().notes)
    assert (shrink(grey(colour[0]), 32) == grey(colour[0])).all()


def test_odd_sizes_and_cuts_are_refused(tmp_path, colour):
    with pytest.raises(ValueError, match="side 20 does not divide the picture well"):
        tasks.build("image", tmp_path, side=20)
    write_binary(tmp_path / "cifar10", colour)
    with pytest.raises(ValueError, match="max_length 100 would cut pictures"):
        tasks.build("image", tmp_path).dataset("train", max_length=100)


def test_truncated_binary_file_is_noticed(tmp_path, colour):
    write_binary(tmp_path / "cifar10", colour)
    path = tmp_path / "cifar10" / "data_batch_3.bin"
    path.write_bytes(path.read_bytes()[:-1])
    with pytest.raises(tasks.CorruptDataError, match=r"data_batch_3\.bin has \d+ bytes, not a multiple of 3073"):
        tasks.build("image", tmp_path).dataset("train")


def test_label_beyond_the_classes_is_noticed(tmp_path, colour):
    write_binary(tmp_path / "cifar10", (colour[0], colour[1] + 200))
    with pytest.raises(tasks.CorruptDataError, match=r"has the label \d+; CIFAR-10 has 0 to 9"):
        tasks.build("image", tmp_path).dataset("test")


@pytest.mark.parametrize("damage", ["png", "labels", "count"])
def test_damaged_sheets_are_noticed(tmp_path, colour, damage):
    folder = tmp_path / "cifar10_gray"
    write_sheets(folder, colour)
    if damage == "png":
        (folder / "train_2.png").write_bytes((folder / "train_2.png").read_bytes()[:200])
    elif damage == "labels":
        (folder / "labels.npz").write_bytes(b"nothing")
    else:
        np.savez(folder / "labels.npz", y_train=np.zeros(7, np.uint8), y_test=np.zeros(7, np.uint8))
    with pytest.raises(tasks.CorruptDataError, match=r"train_2\.png|labels\.npz"):
        tasks.build("image", tmp_path).dataset("train")


def test_incomplete_set_counts_as_missing(tmp_path, colour):
    write_binary(tmp_path / "cifar10", colour)
    (tmp_path / "cifar10" / "data_batch_4.bin").unlink()
    with pytest.raises(tasks.MissingDataError, match=r"cifar-10-binary\.tar\.gz"):
        tasks.build("image", tmp_path).prepare()


@pytest.mark.data
def test_real_cifar_has_the_published_counts(data_folder):
    task = tasks.build("image", data_folder)
    if not task.files():
        pytest.skip("CIFAR-10 is not in FLEXFORMER_DATA")
    sizes = {split: len(task.dataset(split)) for split in ("train", "validation", "test")}
    assert sizes == task.describe().true_sizes
    assert np.bincount(task.dataset("test").labels).tolist() == [1000] * 10
