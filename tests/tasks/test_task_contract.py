"""What every task promises: batches, masks, metrics, descriptions, and errors that say what to do."""

from __future__ import annotations

import pickle
from pathlib import Path

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from flexformer import ATTENTIONS, tasks
from flexformer.tasks import paper
from flexformer.tasks.arrays import Ragged
from flexformer.tasks.base import Examples, TaskDataset, data_root

SIZES = {"train": 40, "validation": 10, "test": 10}


@pytest.fixture(scope="module")
def listops(tmp_path_factory):
    task = tasks.build("listops", tmp_path_factory.mktemp("root"), min_length=5, max_length=40, **SIZES)
    task.prepare()
    return task


def test_names_are_those_of_the_papers_table_and_the_stand_in():
    assert tasks.names() == ("listops", "text", "retrieval", "image", "pathfinder", "articles")


@pytest.mark.parametrize("name", tasks.names())
def test_description_has_the_benchmarks_facts(name, tmp_path):
    task = tasks.build(name, tmp_path)
    facts = task.describe()
    assert (facts.name, facts.kind, facts.max_length) == (task.name, task.kind, task.paper_length)
    assert facts.vocab_size == task.vocab_size
    assert facts.source
    assert facts.layout
    assert facts.question.endswith("?")
    if name == "articles":
        assert facts.paper_accuracy == {}
        assert "not AAN" in facts.title
        return
    assert set(facts.paper_accuracy) == set(ATTENTIONS) - {"flexformer-c"}  # which the paper does not have
    assert facts.official is not None
    assert facts.recommended is not None
    assert facts.recommended.max_length == task.paper_length


def test_head_dimensions_recommended_are_those_the_paper_states():
    assert paper.RECOMMENDED["listops"].head_dim == 64
    assert paper.RECOMMENDED["image"].head_dim == 16
    assert paper.RECOMMENDED["retrieval"].head_dim == 64


def test_mean_accuracies_of_the_paper_average_to_what_it_prints():
    printed = {"softmax": 56.55, "reformer": 54.28, "performer": 50.48, "flexformer-s": 59.11, "flexformer-n": 59.99}
    for attention, average in printed.items():
        mean = np.mean([paper.accuracy(task)[attention][0] for task in paper.COLUMNS])
        assert mean == pytest.approx(average, abs=0.011)


@pytest.mark.parametrize("name", tasks.names())
def test_unknown_option_is_refused_with_the_known_ones(name, tmp_path):
    with pytest.raises(ValueError, match=rf"{name} has no option 'wdith'.*pad_to"):
        tasks.build(name, tmp_path, wdith=3)


def test_unknown_task_is_refused_with_the_nearest_name():
    with pytest.raises(ValueError, match=r"unknown task 'pathfindr' \(did you mean 'pathfinder'\?\)"):
        tasks.build("pathfindr")


@pytest.mark.parametrize("name", tasks.names())
def test_missing_data_says_where_to_get_it(name, tmp_path):
    task = tasks.build(name, tmp_path)
    assert task.files() == ()
    with pytest.raises(tasks.MissingDataError, match=str(tmp_path)) as caught:
        task.dataset("train")
    assert any(hint in str(caught.value) for hint in ("get ", "flexformer data prepare", "put "))


def test_root_is_the_argument_then_the_variable_then_the_cache(monkeypatch, tmp_path):
    monkeypatch.setenv("FLEXFORMER_DATA", "/named")
    assert data_root(tmp_path) == tmp_path
    assert data_root() == Path("/named")
    monkeypatch.delenv("FLEXFORMER_DATA")
    monkeypatch.setenv("XDG_CACHE_HOME", "/caches")
    assert data_root() == Path("/caches/flexformer/data")
    monkeypatch.delenv("XDG_CACHE_HOME")
    assert data_root() == Path.home() / ".cache/flexformer/data"


def test_batches_are_padded_to_the_longest_and_masked(listops):
    items = [listops.dataset("train")[i] for i in range(5)]
    batch = listops.collate(items)
    longest = max(len(item["input_ids"]) for item in items)
    assert batch["input_ids"].shape == batch["key_mask"].shape == (5, longest)
    assert batch["labels"].tolist() == [item["labels"] for item in items]
    assert batch["labels"].dtype == torch.long
    for row, mask, item in zip(batch["input_ids"], batch["key_mask"], items, strict=True):
        assert row[mask].tolist() == item["input_ids"].tolist()
        assert (row[~mask] == 0).all()


def test_batches_can_all_be_padded_to_max_length(listops):
    task = tasks.build("listops", listops.root, min_length=5, max_length=40, pad_to="max_length", **SIZES)
    assert task.collate([task.dataset("test")[0]])["input_ids"].shape == (1, 40)


@given(st.lists(st.binary(max_size=30), min_size=1, max_size=20), st.integers(1, 30))
def test_sequences_survive_joining_cutting_and_shifting(texts, length):
    dataset = TaskDataset(Examples((Ragged.join(texts),), np.zeros(len(texts), np.uint8), shift=1), length)
    assert [bytes((item["input_ids"] - 1).tolist()) for item in dataset] == [text[:length] for text in texts]


def test_empty_text_is_one_pad(listops):
    batch = listops.collate([{"input_ids": torch.tensor([], dtype=torch.long), "labels": 0}])
    assert batch["input_ids"].tolist() == [[0]]
    assert not batch["key_mask"].any()


def test_empty_batch_is_refused(listops):
    with pytest.raises(ValueError, match="at least one example"):
        listops.collate([])


def test_limit_takes_the_same_examples_each_time_and_not_only_the_first(listops):
    some, again = (listops.dataset("train", limit=10) for _ in range(2))
    assert len(some) == 10
    assert (some.labels == again.labels).all()
    assert some.indices.tolist() == again.indices.tolist() != list(range(10))
    assert len(listops.dataset("train", limit=1000)) == 40


def test_dataset_is_a_sequence_with_an_end(listops):
    dataset = listops.dataset("validation")
    assert dataset[-1]["labels"] == dataset[9]["labels"]
    with pytest.raises(IndexError, match="index 10 is outside a dataset of 10 examples"):
        dataset[10]
    assert len(list(dataset)) == 10


def test_dataset_can_be_sent_to_the_processes_of_a_loader(listops):
    dataset = listops.dataset("validation")
    copy = pickle.loads(pickle.dumps(dataset))
    assert copy[3]["input_ids"].tolist() == dataset[3]["input_ids"].tolist()


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ({"split": "valid"}, "split 'valid' is unknown; use one of train, validation, test"),
        ({"split": "train", "limit": 0}, "limit 0 leaves no examples"),
        ({"split": "train", "max_length": 41}, r"max_length 41 is not in 1\.\.40"),
    ],
)
def test_wrong_arguments_are_refused(listops, arguments, message):
    with pytest.raises(ValueError, match=message):
        listops.dataset(**arguments)


def test_wrong_padding_is_refused(tmp_path):
    with pytest.raises(ValueError, match="pad_to 'batch' is unknown; use one of longest, max_length"):
        tasks.build("text", tmp_path, pad_to="batch")


@given(st.lists(st.tuples(st.integers(0, 9), st.integers(0, 9)), min_size=1, max_size=50))
def test_accuracy_is_the_share_of_largest_logits_at_the_label(listops, rows):
    predicted, labels = (np.array(column) for column in zip(*rows, strict=True))
    logits = np.eye(10)[predicted]
    expected = (predicted == labels).mean()
    assert listops.metrics(logits, labels)["accuracy"] == pytest.approx(expected)
    assert listops.metrics(torch.tensor(logits), torch.tensor(labels))["accuracy"] == pytest.approx(expected)


def test_metrics_refuse_shapes_that_do_not_fit(listops):
    with pytest.raises(ValueError, match="do not fit"):
        listops.metrics(np.zeros((3, 10)), np.zeros(4))
