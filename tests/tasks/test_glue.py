"""GLUE: the files as they come, labels and splits, and the measures against another implementation."""

from __future__ import annotations

import json

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from flexformer.tasks import CorruptDataError, MissingDataError, glue
from flexformer.tasks.correlation import matthews, pearson, spearman
from flexformer.tasks.glue import TASKS, Glue, held_out

# A header and a line of every task's train file, as GLUE's download has them; CoLA has no header.
LINES = {
    "cola": ("", "gj04\t0\t*\tThey drank the pub.", ("They drank the pub.",), 0),
    "sst2": ("sentence\tlabel", 'a "fine" film \t1', ('a "fine" film ',), 1),
    "mrpc": (
        "\ufeffQuality\t#1 ID\t#2 ID\t#1 String\t#2 String",
        '1\t70\t71\tHe said "so .\tSo he said .',
        ('He said "so .', "So he said ."),
        1,
    ),
    "stsb": (
        "index\tgenre\tfilename\tyear\told_index\tsource1\tsource2\tsentence1\tsentence2\tscore",
        "0\tmain\tMSR\t2012\t1\tnone\tnone\tA plane.\tAn air plane.\t3.800",
        ("A plane.", "An air plane."),
        0.76,
    ),
    "qqp": ("id\tqid1\tqid2\tquestion1\tquestion2\tis_duplicate", "133273\t1\t2\tHow?\tWhy?\t0", ("How?", "Why?"), 0),
    "mnli": (
        "index\tpromptID\tpairID\tgenre\tsentence1_binary_parse\tsentence2_binary_parse\tsentence1_parse\t"
        "sentence2_parse\tsentence1\tsentence2\tlabel1\tgold_label",
        "0\t1\t1n\tx\t(a)\t(b)\t(a)\t(b)\tIt rains.\tIt is wet.\tneutral\tneutral",
        ("It rains.", "It is wet."),
        1,
    ),
    "qnli": ("index\tquestion\tsentence\tlabel", "0\tWhen?\tIn 1912.\tnot_entailment", ("When?", "In 1912."), 1),
    "rte": ("index\tsentence1\tsentence2\tlabel", "0\tNone.\tSome.\tentailment", ("None.", "Some."), 0),
}


def write(root, name, lines, split="train"):
    task = TASKS[name]
    folder = root / "glue" / task.title
    folder.mkdir(parents=True, exist_ok=True)
    file = split if split == "train" else task.dev[0]
    header = LINES[name][0]
    (folder / f"{file}.tsv").write_text("\n".join([*([header] if header else []), *lines]) + "\n", encoding="utf-8")


@pytest.mark.parametrize("name", TASKS)
def test_file_is_read_as_it_comes(tmp_path, name):
    _, line, sentences, label = LINES[name]
    for split in ("train", "dev"):
        write(tmp_path, name, [line, line], split)
    for split in ("train", "test"):
        found = Glue(name, tmp_path, select="dev").examples(split)
        assert len(found) == 2
        assert tuple(side[0] for side in found.sentences) == sentences
        assert found.labels[1] == pytest.approx(label)


@pytest.mark.parametrize("name", TASKS)
def test_datasets_version_gives_the_same(tmp_path, name, monkeypatch):
    datasets = pytest.importorskip("datasets")
    monkeypatch.setattr(datasets.config, "HF_DATASETS_CACHE", tmp_path / "cache")
    task = TASKS[name]
    _, _, sentences, label = LINES[name]
    columns = task.hub_sentences or task.sentences
    folder = tmp_path / f"hub:{name}"
    folder.mkdir()
    row = dict(zip(columns, sentences, strict=True)) | {"label": label if task.classes else 5 * label}
    (folder / "train.jsonl").write_text(json.dumps(row) + "\n")
    found = Glue(name, source=str(tmp_path / "hub"), select="dev").examples("train")
    assert tuple(side[0] for side in found.sentences) == sentences
    assert found.labels[0] == pytest.approx(label)


def test_broken_lines_stop_all_but_qqp(tmp_path):
    write(tmp_path, "qqp", [LINES["qqp"][1], "1\t2\t3", LINES["qqp"][1]])
    assert len(Glue("qqp", tmp_path, select="dev").examples("train")) == 2
    write(tmp_path, "rte", [LINES["rte"][1], "1\tonly"])
    with pytest.raises(CorruptDataError, match=r"train.tsv, line 3 has 2 fields instead of 4"):
        Glue("rte", tmp_path).examples("train")


@pytest.mark.parametrize(
    ("name", "lines", "message"),
    [
        ("rte", ["0\ta\tb\tmaybe"], "has the label 'maybe'; it should be entailment or not_entailment"),
        ("stsb", ["0\tm\tM\t2\t1\tn\tn\ta\tb\thigh"], "has the label 'high'; it should be a number"),
        ("sst2", [], "has no examples"),
    ],
)
def test_wrong_labels_are_named(tmp_path, name, lines, message):
    write(tmp_path, name, lines)
    with pytest.raises(CorruptDataError, match=message):
        Glue(name, tmp_path).examples("train")


def test_missing_column_and_missing_file_are_explained(tmp_path):
    write(tmp_path, "rte", [LINES["rte"][1]])
    path = tmp_path / "glue/RTE/train.tsv"
    path.write_text("index\tsentence1\n0\ta\n")
    with pytest.raises(CorruptDataError, match="has the columns index, sentence1; 'sentence2' is needed"):
        Glue("rte", tmp_path).examples("train")
    with pytest.raises(MissingDataError, match=r"CoLA is not in .* get GLUE from https://gluebenchmark.com"):
        Glue("cola", tmp_path).examples("train")


def test_unknown_names_get_a_hint():
    with pytest.raises(ValueError, match=r"GLUE task 'colla' is unknown, did you mean 'cola'\?; use one of cola, sst2"):
        glue.find("colla")
    with pytest.raises(ValueError, match="select 'test' is unknown"):
        Glue("cola", select="test")


@given(size=st.integers(1, 30_000), classes=st.integers(1, 4), seed=st.integers(0, 5))
@settings(max_examples=30, deadline=None)
def test_a_tenth_is_held_out_evenly_and_never_more_than_2000(size, classes, seed):
    labels = np.random.default_rng(seed).integers(classes, size=size)
    kept, aside = held_out(labels, by_class=True)
    assert sorted([*kept, *aside]) == list(range(size))
    assert len(aside) <= min(0.1 * size, 2000)
    for label in np.unique(labels):
        share = min(0.1, 2000 / size)
        assert abs(np.sum(labels[aside] == label) - share * np.sum(labels == label)) <= 1
    assert np.array_equal(aside, held_out(labels, by_class=True)[1])


def test_validation_is_held_out_or_the_dev_set(tmp_path):
    for split, count in (("train", 100), ("dev", 7)):
        write(tmp_path, "sst2", [f"{split} {i}\t{i % 2}" for i in range(count)], split)
    sizes = {
        select: [len(Glue("sst2", tmp_path, select=select).examples(s)) for s in ("train", "validation", "test")]
        for select in ("holdout", "dev")
    }
    assert sizes == {"holdout": [90, 10, 7], "dev": [100, 7, 7]}
    few = Glue("sst2", tmp_path).examples("train", limit=5)
    assert list(few.sentences[0]) == list(Glue("sst2", tmp_path).examples("train", limit=5).sentences[0])
    assert len(few) == 5


@settings(deadline=None)
@given(st.lists(st.tuples(st.integers(-5, 5), st.integers(-5, 5)), min_size=2, max_size=40))
def test_correlations_agree_with_scipy(pairs):
    stats = pytest.importorskip("scipy.stats")
    x, y = np.array(pairs, float).T
    if x.std() == 0 or y.std() == 0:
        assert pearson(x, y) == spearman(x, y) == 0.0
        return
    assert pearson(x, y) == pytest.approx(stats.pearsonr(x, y).statistic, abs=1e-12)
    assert spearman(x, y) == pytest.approx(stats.spearmanr(x, y).statistic, abs=1e-12)


@given(st.lists(st.tuples(st.booleans(), st.booleans()), min_size=1, max_size=40))
def test_matthews_is_the_correlation_of_bits(pairs):
    predictions, labels = np.array(pairs, int).T
    assert matthews(predictions, labels) == pytest.approx(pearson(predictions, labels), abs=1e-12)


def test_metrics_report_what_glue_reports():
    logits = np.array([[2.0, 1.0], [0.0, 1.0], [0.0, 3.0], [1.0, 0.0]])
    labels = np.array([0, 1, 0, 0])
    assert TASKS["rte"].metrics(logits, labels) == {"score": 0.75, "accuracy": 0.75}
    found = TASKS["cola"].metrics(logits, labels)
    assert found["score"] == pytest.approx(matthews([0, 1, 1, 0], labels)) != found["accuracy"]
    scores = TASKS["stsb"].metrics(np.array([[0.1], [0.5], [0.4]]), np.array([0.0, 1.0, 0.3]))
    assert scores["score"] == pytest.approx((scores["pearson"] + scores["spearman"]) / 2)
    assert TASKS["stsb"].outputs == 1
    assert TASKS["mnli"].outputs == 3
    assert TASKS["stsb"].selected_by == ("loss", False)


@pytest.mark.data
@pytest.mark.parametrize(
    ("name", "train", "dev"),
    [("cola", 8551, 1043), ("sst2", 67349, 872), ("mrpc", 3668, 408), ("stsb", 5749, 1500), ("rte", 2490, 277)],
)
def test_real_files_have_the_published_counts(data_folder, name, train, dev):
    try:
        found = [len(Glue(name, data_folder, select="dev").examples(split)) for split in ("train", "test")]
    except MissingDataError as error:
        pytest.skip(str(error))
    assert found == [train, dev]
