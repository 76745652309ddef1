"""Every task and every attention train: the smoke presets run from data to record, and the loss falls."""

from __future__ import annotations

import random
from pathlib import Path

import pytest
from rich.console import Console

from flexformer import ATTENTIONS
from flexformer.experiments import presets
from flexformer.training import run
from flexformer.training.callbacks import read_log

GENERATED = ("listops", "pathfinder")
REAL = ("text", "image", "articles")
OPTIONS = {"skyformer": {"num_landmarks": 16}}  # 128 take long for inputs of a few dozen tokens
FOLDERS = {"text": "imdb", "image": "cifar10_gray", "articles": "wikitext2"}


@pytest.fixture(scope="module")
def generated_data(tmp_path_factory):
    return tmp_path_factory.mktemp("data")


@pytest.fixture
def real_data(data_folder):
    return Path(data_folder)


def assert_loss_falls(task, attention, root, output):
    model = {"attention_options": OPTIONS.get(attention, {})}
    options = presets.load(task, "smoke", attention=attention, model=model, data={"root": str(root)})
    record = run(options, output, Console(quiet=True))
    assert record.status == "finished"
    assert 0 <= record.metrics["test_accuracy"] <= 1
    losses = [entry["loss"] for entry in read_log(output / "log.jsonl") if "loss" in entry]
    assert losses[-1] < 0.95 * losses[0]


def skip_where_absent(task, root):
    if not (root / FOLDERS[task]).is_dir():
        pytest.skip(f"FLEXFORMER_DATA has no {FOLDERS[task]}")


@pytest.mark.parametrize("attention", ATTENTIONS)
def test_every_attention_learns_on_listops(attention, generated_data, tmp_path):
    assert_loss_falls("listops", attention, generated_data, tmp_path)


@pytest.mark.parametrize("attention", ["softmax", "flexformer-n"])
def test_pathfinder_learns(attention, generated_data, tmp_path):
    assert_loss_falls("pathfinder", attention, generated_data, tmp_path)


@pytest.mark.data
@pytest.mark.parametrize("attention", ["softmax", "flexformer-n"])
@pytest.mark.parametrize("task", REAL)
def test_task_learns_on_real_data(task, attention, real_data, tmp_path):
    skip_where_absent(task, real_data)
    assert_loss_falls(task, attention, real_data, tmp_path)


def write_pairs(root):
    """AAN's files with pairs that words tell apart."""
    folder = root / "lra_release/tsv_data"
    folder.mkdir(parents=True)
    draw = random.Random(0)
    vocabularies = [["kernel", "spectrum", "feature"], ["grammar", "parser", "treebank"]]
    for split in ("train", "eval", "test"):
        lines = []
        for number in range(20 if split == "train" else 70):
            first, second = draw.randrange(2), draw.randrange(2)
            texts = [" ".join(draw.choices(vocabularies[which], k=12)) for which in (first, second)]
            lines.append("\t".join([f"{int(first == second)}.0", f"A{number}", f"B{number}", *texts]))
        (folder / f"new_aan_pairs.{split}.tsv").write_text("\n".join(lines) + "\n")


@pytest.mark.parametrize("attention", ["softmax", "flexformer-n"])
def test_retrieval_learns_on_files_in_its_format(attention, tmp_path):
    write_pairs(tmp_path / "data")
    assert_loss_falls("retrieval", attention, tmp_path / "data", tmp_path / "run")


@pytest.mark.slow
@pytest.mark.data
@pytest.mark.parametrize("attention", ATTENTIONS)
@pytest.mark.parametrize("task", [*REAL, "pathfinder"])
def test_every_attention_learns_on_every_task(task, attention, real_data, generated_data, tmp_path):
    if task in REAL:
        skip_where_absent(task, real_data)
    assert_loss_falls(task, attention, generated_data if task in GENERATED else real_data, tmp_path)


@pytest.mark.slow
@pytest.mark.parametrize("attention", ATTENTIONS)
def test_every_attention_learns_on_retrieval(attention, tmp_path):
    write_pairs(tmp_path / "data")
    assert_loss_falls("retrieval", attention, tmp_path / "data", tmp_path / "run")
