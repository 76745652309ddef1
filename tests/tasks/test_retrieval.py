"""Retrieval and its stand-in: pairs from TSV files, and pairs of pieces whose label no single piece tells."""

from __future__ import annotations

import json
import pickle

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from flexformer import tasks
from flexformer.tasks.articles import cut, pair, wikitext_articles

ROWS = [(i % 2, f"P{i}", f"Q{i}", f"first \" text' {i} – ä", f"second {i} " * 3000) for i in range(12)]
FILES = {"train": "new_aan_pairs.train.tsv", "validation": "new_aan_pairs.eval.tsv", "test": "new_aan_pairs.test.tsv"}


def write_pairs(folder, label="{}", end="\n"):
    folder.mkdir(parents=True)
    for name, rows in zip(FILES.values(), (ROWS, ROWS[:4], ROWS[:3]), strict=True):
        lines = ["\t".join([label.format(row[0]), *row[1:]]) for row in rows]
        (folder / name).write_bytes((end.join(lines) + end).encode())


def text(ids):
    return bytes((ids - 1).tolist()).decode(errors="ignore")


@pytest.mark.parametrize("folder", ["aan", "lra_release/tsv_data", "lra_release/lra_release/tsv_data"])
@pytest.mark.parametrize("label", ["{}", "{}.0"])
def test_benchmark_files_are_read_line_by_line_without_quoting(tmp_path, folder, label):
    write_pairs(tmp_path / folder, label)
    task = tasks.build("retrieval", tmp_path)
    task.prepare()
    assert [len(task.dataset(split)) for split in FILES] == [12, 4, 3]
    item = task.dataset("train")[5]
    assert item["labels"] == 1
    assert text(item["input_ids"]) == ROWS[5][3]
    assert text(item["input_ids_2"]) == ROWS[5][4][:4000]


def test_texts_are_cut_at_ten_thousand_bytes_first(tmp_path):
    write_pairs(tmp_path / "aan")
    task = tasks.build("retrieval", tmp_path, max_length=50_000)
    assert len(task.dataset("test")[0]["input_ids_2"]) == 10_000


def test_windows_line_ends_and_a_missing_last_one_are_fine(tmp_path):
    write_pairs(tmp_path / "aan", end="\r\n")
    path = tmp_path / "aan" / FILES["test"]
    path.write_bytes(path.read_bytes().rstrip(b"\r\n"))
    dataset = tasks.build("retrieval", tmp_path, max_length=20_000).dataset("test")
    assert len(dataset) == 3
    assert text(dataset[2]["input_ids_2"]) == ROWS[2][4][:10_000]


def test_both_documents_are_padded_on_their_own(tmp_path):
    write_pairs(tmp_path / "aan")
    task = tasks.build("retrieval", tmp_path, max_length=100)
    dataset = task.dataset("train")
    batch = task.collate([dataset[0], dataset[11]])
    assert batch["input_ids"].shape[1] < batch["input_ids_2"].shape[1] == 100
    assert batch["key_mask_2"].all()
    assert batch["key_mask"].sum(1).tolist() == [len(ROWS[0][3].encode()), len(ROWS[11][3].encode())]


def test_pairs_can_be_sent_to_the_processes_of_a_loader(tmp_path):
    write_pairs(tmp_path / "aan")
    dataset = tasks.build("retrieval", tmp_path).dataset("train")
    first = dataset[1]  # opens the file
    assert pickle.loads(pickle.dumps(dataset))[1]["input_ids"].tolist() == first["input_ids"].tolist()


def test_hugging_face_dataset_holds_the_same_pairs(tmp_path, monkeypatch):
    datasets = pytest.importorskip("datasets")
    monkeypatch.setattr(datasets.config, "HF_DATASETS_CACHE", tmp_path / "cache")
    write_pairs(tmp_path / "aan")
    (tmp_path / "hub").mkdir()
    for split in FILES:
        lines = [json.dumps({"label": row[0], "text1": row[3], "text2": row[4]}) for row in ROWS]
        (tmp_path / "hub" / f"{split}.jsonl").write_text("\n".join(lines))
    hub = tasks.build("retrieval", tmp_path, source=str(tmp_path / "hub"))
    hub.prepare()
    ours = tasks.build("retrieval", tmp_path).dataset("train")
    for theirs, item in zip(hub.dataset("train"), ours, strict=True):
        assert {k: v.tolist() if k != "labels" else v for k, v in theirs.items()} == {
            k: v.tolist() if k != "labels" else v for k, v in item.items()
        }


@pytest.mark.parametrize(
    ("content", "message"),
    [
        (b"", "is empty"),
        (b"label\tid1\tid2\ttext1\ttext2\n", "line 1 does not begin with 0 or 1"),
        (b"1\ta\tb\tc\td\n2\ta\tb\tc\td\n", "line 2 does not begin with 0 or 1"),
    ],
)
def test_file_that_is_no_table_of_pairs_is_noticed(tmp_path, content, message):
    write_pairs(tmp_path / "aan")
    (tmp_path / "aan" / FILES["train"]).write_bytes(content)
    with pytest.raises(tasks.CorruptDataError, match=message):
        tasks.build("retrieval", tmp_path).dataset("train")


def test_line_with_too_few_columns_is_named_when_it_is_read(tmp_path):
    write_pairs(tmp_path / "aan")
    (tmp_path / "aan" / FILES["train"]).write_bytes(b"1\ta\tb\tc\td\n0\ta\tb\tc\n")
    dataset = tasks.build("retrieval", tmp_path).dataset("train")
    with pytest.raises(tasks.CorruptDataError, match="line 2 has 4 columns instead of 5"):
        dataset[1]


def test_missing_pairs_point_to_the_stand_in(tmp_path):
    with pytest.raises(tasks.MissingDataError, match=r"lra_release\.gz.*`articles`"):
        tasks.build("retrieval", tmp_path).prepare()


def write_articles(folder, count=30, letters=900):
    folder.mkdir(parents=True)
    for i in range(count):
        (folder / f"{i:03}.txt").write_text(f"<{i:03}>" * (letters // 5))


def test_folder_of_articles_becomes_pairs_that_say_which_article(tmp_path):
    write_articles(tmp_path / "articles")
    task = tasks.build("articles", tmp_path, train=100, validation=20, test=21, max_length=200)
    task.prepare()
    articles = {}
    for split, size in (("train", 100), ("validation", 20), ("test", 21)):
        dataset = task.dataset(split)
        assert len(dataset) == size
        articles[split] = set()
        for item in dataset:
            pieces = [text(item["input_ids"])[:5], text(item["input_ids_2"])[:5]]
            assert (pieces[0] == pieces[1]) == bool(item["labels"])
            articles[split].update(pieces)
    assert not articles["train"] & articles["validation"]
    assert not articles["train"] & articles["test"]
    assert not articles["validation"] & articles["test"]


def test_wikitext_is_divided_at_titles_and_not_at_sections(tmp_path):
    content = b" \n = One = \n \n a b \n = = Section = = \n c \n \n = Two , again = \n d \n = = = Deep = = = \n e \n"
    articles = list(wikitext_articles(content))
    assert [article.split() for article in articles] == [
        b"a b = = Section = = c".split(),
        b"d = = = Deep = = = e".split(),
    ]


def test_wikitext_files_and_hugging_face_lines_give_the_same_pairs(tmp_path, monkeypatch):
    datasets = pytest.importorskip("datasets")
    monkeypatch.setattr(datasets.config, "HF_DATASETS_CACHE", tmp_path / "cache")
    (tmp_path / "wikitext2").mkdir()
    (tmp_path / "hub").mkdir()
    for ours, theirs in (("train", "train"), ("valid", "validation"), ("test", "test")):
        lines = [line for i in range(6) for line in (f" = Title {i} = \n", " \n", f" {ours} {i} " * 60 + "\n")]
        (tmp_path / "wikitext2" / f"{ours}.txt").write_text("".join(lines))
        (tmp_path / "hub" / f"{theirs}.jsonl").write_text("\n".join(json.dumps({"text": line}) for line in lines))
    options = {"train": 20, "validation": 4, "test": 4, "max_length": 100}
    files = tasks.build("articles", tmp_path, **options)
    hub = tasks.build("articles", tmp_path, source=str(tmp_path / "hub"), **options)
    hub.prepare()
    for split in ("train", "validation", "test"):
        for a, b in zip(files.dataset(split), hub.dataset(split), strict=True):
            assert a["input_ids"].tolist() == b["input_ids"].tolist()
            assert a["input_ids_2"].tolist() == b["input_ids_2"].tolist()
            assert a["labels"] == b["labels"]


@settings(deadline=None)
@given(
    st.lists(st.integers(2, 9), min_size=3, max_size=12),
    st.integers(2, 200),
    st.integers(0, 2**32 - 1),
)
def test_pieces_are_disjoint_balanced_and_tell_nothing_alone(sizes, count, seed):
    owners = np.repeat(np.arange(len(sizes)), sizes)
    first, second, labels = pair(owners, 2 * count, np.random.default_rng(seed))
    assert labels.sum() == count
    assert (first != second).all()
    assert ((owners[first] == owners[second]) == labels.astype(bool)).all()
    for side in (first, second):
        assert np.sort(side[labels == 1]).tolist() == np.sort(side[labels == 0]).tolist()


def test_pieces_all_have_the_same_length_and_do_not_overlap():
    articles = [bytes(range(250)), b"short", bytes(range(200))]
    pieces, owners = cut(articles, 80)
    assert owners.tolist() == [0, 0, 0, 2, 2]
    assert set(pieces.lengths) == {80}
    assert pieces[1].tolist() == list(range(80, 160))


def test_too_few_or_too_short_articles_are_refused(tmp_path):
    write_articles(tmp_path / "articles", count=30, letters=100)
    task = tasks.build("articles", tmp_path, max_length=80)
    with pytest.raises(tasks.CorruptDataError, match="3 articles of twice max_length or more and one has 0"):
        task.dataset("train")


def test_other_folder_can_be_named(tmp_path):
    write_articles(tmp_path / "elsewhere")
    task = tasks.build("articles", tmp_path, folder=tmp_path / "elsewhere", max_length=100, train=10)
    assert len(task.dataset("train")) == 10


@pytest.mark.data
def test_real_wikitext_gives_pairs_of_full_length(data_folder):
    task = tasks.build("articles", data_folder)
    if not task.files():
        pytest.skip("there are no articles in FLEXFORMER_DATA")
    dataset = task.dataset("validation")
    assert len(dataset) == 1000
    assert dataset.labels.mean() == 0.5
    assert {len(dataset[i]["input_ids_2"]) for i in range(50)} == {4000}


@pytest.mark.data
def test_counts_of_bytes_alone_tell_two_thirds_of_the_labels_of_short_pieces(data_folder):
    task = tasks.build("articles", data_folder, max_length=512, test=2000)
    if not task.files():
        pytest.skip("there are no articles in FLEXFORMER_DATA")
    dataset = task.dataset("test")
    counts = [
        np.array([np.bincount(item[side], minlength=257) for item in map(dataset.__getitem__, range(2000))])
        for side in ("input_ids", "input_ids_2")
    ]
    distances = np.square(np.sqrt(counts[0]) - np.sqrt(counts[1])).sum(axis=1)  # Hellinger's
    right = ((distances < np.median(distances)) == (dataset.labels == 1)).mean()
    assert right == pytest.approx(0.65, abs=0.02)
