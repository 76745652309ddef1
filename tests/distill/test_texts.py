"""Text becomes token sequences: nothing lost, nothing twice, the same every time."""

from __future__ import annotations

import json

import pytest
import tiny

from flexformer.distill import TextOptions
from flexformer.distill.sequences import pad, padding_token
from flexformer.distill.texts import Texts, paragraphs
from flexformer.tasks import CorruptDataError, MissingDataError
from flexformer.tasks.base import SPLITS


@pytest.fixture
def source(tmp_path):
    return tiny.corpus(tmp_path / "corpus.txt")


def texts(source, kind="bert", start=None, **options):
    return Texts(source, TextOptions(**{"max_length": 16, "min_length": 4} | options), tiny.tokenizer(kind), start)


def test_paragraphs_stand_between_blank_lines(tmp_path):
    (tmp_path / "b.txt").write_text("w1 w2\nw3\n\n\n  \nw4\r\n")
    (tmp_path / "a.txt").write_text("w5")
    assert paragraphs(str(tmp_path / "b.txt")) == ["w1 w2\nw3", "w4"]
    assert paragraphs(str(tmp_path)) == ["w5", "w1 w2\nw3", "w4"]


def test_lines_are_paragraphs_where_no_line_is_blank(tmp_path):
    (tmp_path / "a.txt").write_text("w1 w2\nw3\n\n")
    assert paragraphs(str(tmp_path / "a.txt")) == ["w1 w2", "w3"]


def test_long_paragraphs_become_several_sequences_and_no_token_is_lost(source):
    made = texts(source, min_length=1, holdout=0.1)
    found = [id for split in SPLITS for row in made.dataset(split).rows for id in row["input_ids"]]
    words = [word for paragraph in paragraphs(source) for word in paragraph.split()]
    special = {1, 2}
    assert sorted(id for id in found if id not in special) == sorted(
        tiny.tokenizer("bert").convert_tokens_to_ids(words)
    )
    rows = made.dataset("train").rows
    assert max(len(row["input_ids"]) for row in rows) == 16
    assert all(row["input_ids"][0] == 1 and row["input_ids"][-1] == 2 for row in rows)
    assert all(row["labels"] == len(row["input_ids"]) for row in rows)


def test_joined_paragraphs_fill_sequences_and_never_cross_documents(tmp_path):
    for i in range(6):
        lines = [" ".join([f"w{i}"] * 5) for _ in range(20)]
        (tmp_path / f"{i}.txt").write_text("\n\n".join(lines))
    apart, joined = (texts(str(tmp_path), max_length=32, min_length=1, join=join) for join in (False, True))
    assert apart.dataset("train").lengths() == {"median": 7, "longest": 7}
    assert joined.dataset("train").lengths() == {"median": 32, "longest": 32}
    rows = [row["input_ids"][1:-1] for split in SPLITS for row in joined.dataset(split).rows]
    assert all(len(set(row)) == 1 for row in rows)  # each document has a word of its own
    assert sum(map(len, rows)) == 6 * 20 * 5


def test_joined_paragraphs_leave_room_for_a_start_token(tmp_path):
    (tmp_path / "a.txt").write_text("\n\n".join(" ".join(["w1"] * 5) for _ in range(42)))
    rows = texts(str(tmp_path), "llama", start=1, max_length=16, join=True).dataset("train").rows
    assert {len(row["input_ids"]) for row in rows} == {16}


def test_joined_text_that_is_too_short_to_hold_some_out_is_explained(tmp_path):
    (tmp_path / "a.txt").write_text("w1 w2\n\nw3 w4\n\nw5 w6\n\nw7 w8")
    with pytest.raises(CorruptDataError, match=r"has 1 joined paragraph, too few .*lower data\.max_length 16, or name"):
        texts(str(tmp_path), join=True).dataset("train")
    with pytest.raises(ValueError, match=r"data\.join true does not fit text glue:rte"):
        texts("glue:rte", join=True)


@pytest.mark.parametrize("join", [False, True])
@pytest.mark.parametrize(("kind", "start"), [("bert", None), ("llama", 1)])
def test_stretches_have_the_length_and_are_held_out(source, kind, start, join):
    made = texts(source, kind, start, holdout=0.3, join=join)
    rows = made.stretches(40, 3)
    assert [len(row["input_ids"]) for row in rows] == [40, 40, 40]
    assert all(row["input_ids"][0] == 1 for row in rows)
    assert made.stretches(4000, 3) == []
    trained = {tuple(row["input_ids"][i : i + 6]) for row in made.dataset("train").rows for i in range(1, 10)}
    assert not any(tuple(row["input_ids"][i : i + 6]) in trained for row in rows for i in range(34))


def test_stretches_of_glue_are_its_sentences(tmp_path):
    made = texts("glue:rte", root=tiny.glue(tmp_path))
    assert [len(row["input_ids"]) for row in made.stretches(50, 2)] == [50, 50]


def test_splits_are_disjoint_and_the_same_every_time(source):
    first, second = texts(source), texts(source)
    assert first.dataset("train").rows == second.dataset("train").rows
    pieces = [{tuple(row["input_ids"]) for row in first.dataset(split).rows} for split in SPLITS]
    assert all(pieces)
    assert not pieces[0] & pieces[1] | pieces[0] & pieces[2] | pieces[1] & pieces[2]


def test_limits_and_lengths_are_kept(source):
    made = texts(source, train_limit=7, validation_limit=2, min_length=9)
    assert (len(made.dataset("train")), len(made.dataset("validation"))) == (7, 2)
    assert all(len(row["input_ids"]) >= 9 for row in made.dataset("train").rows)


def test_tests_have_a_limit_of_their_own(source):
    made = Texts(source, TextOptions(max_length=12, validation_limit=1), tiny.tokenizer("bert"), test_limit=2)
    assert (len(made.dataset("validation")), len(made.dataset("test"))) == (1, 2)
    assert len(texts(source, validation_limit=1).dataset("test")) == 1


def test_validation_may_have_a_text_of_its_own(source, tmp_path):
    other = tmp_path / "other.txt"
    other.write_text("yes yes yes yes yes")
    made = texts(source, validation=str(other))
    assert len(made.dataset("validation")) == 1
    assert sum("yes" in p for p in paragraphs(source)) == 0


def test_language_models_get_their_first_token(source):
    rows = texts(source, "llama", start=1).dataset("train").rows
    assert all(row["input_ids"][0] == 1 and len(row["input_ids"]) <= 16 for row in rows)
    assert all(len(row["attention_mask"]) == len(row["input_ids"]) for row in rows)
    made = texts(source, "llama", start=1, min_length=1, holdout=0.1)
    words = sum(len(paragraph.split()) for paragraph in paragraphs(source))
    found = [id for split in SPLITS for row in made.dataset(split).rows for id in row["input_ids"]]
    assert sum(id != 1 for id in found) == words  # none gave way to it


def test_glue_sentences_are_encoded_as_pairs(tmp_path):
    made = texts("glue:rte", root=tiny.glue(tmp_path), max_length=40)
    row = made.dataset("train").rows[0]
    assert set(row["token_type_ids"]) == {0, 1}
    assert row["input_ids"].count(2) == 2
    sizes = [len(made.dataset(split)) for split in ("train", "validation")]
    assert sum(sizes) == 80  # both of the training set: the dev set is for results
    assert sizes[1] in (7, 8)


def test_datasets_by_id_are_read(tmp_path, monkeypatch):
    datasets = pytest.importorskip("datasets")
    monkeypatch.setattr(datasets.config, "HF_DATASETS_CACHE", tmp_path / "cache")
    folder = tmp_path / "hub"  # what datasets reads from a folder it reads from the hub
    folder.mkdir()
    lines = [json.dumps({"text": " ".join(tiny.WORDS[i : i + 8])}) for i in range(20)]
    (folder / "train.jsonl").write_text("\n".join(lines))
    assert paragraphs(str(folder)) == [" ".join(tiny.WORDS[i : i + 8]) for i in range(20)]


@pytest.mark.parametrize(
    ("content", "options", "error", "message"),
    [
        ("", {}, CorruptDataError, "has 0 paragraphs, too few to hold some out"),
        ("w1 w2 w3 w4 w5", {}, CorruptDataError, "has 1 paragraph, too few .*separate paragraphs by blank lines"),
        ("w1\n\nw2\n\nw3", {}, CorruptDataError, "has no train sequence of 4 tokens or more"),
        (b"\xff\xfe\x00", {}, CorruptDataError, "is not UTF-8 text"),
        (None, {}, MissingDataError, "is not there; name a text file, a folder, glue:TASK or a datasets id"),
    ],
)
def test_unreadable_text_is_explained(tmp_path, content, options, error, message):
    path = tmp_path / "x.txt"
    if content is not None:
        path.write_bytes(content if isinstance(content, bytes) else content.encode())
    with pytest.raises(error, match=message):
        texts(str(path), **options).dataset("train")


def test_folder_without_text_is_explained(tmp_path):
    with pytest.raises(MissingDataError, match=r"an empty folder; put \.txt files there"):
        paragraphs(str(tmp_path))


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"max_length": 4, "min_length": 4}, "data.min_length 4 and data.max_length 4 leave no sequences"),
        ({"holdout": 0.0}, "data.holdout 0.0 is not a share"),
        ({"holdout": 0.6}, "data.holdout 0.6 is not a share between 0 and 0.5"),
        ({"train_limit": 0}, "data.train_limit 0 leaves no sequences"),
    ],
)
def test_impossible_options_are_refused(options, message):
    with pytest.raises(ValueError, match=message):
        TextOptions(**options)


def test_padding_is_the_tokenizers_own_or_what_ends_a_text():
    assert padding_token(tiny.tokenizer("bert")) == 0
    assert padding_token(tiny.tokenizer("llama")) == 2


def test_batches_are_padded_on_the_right():
    rows = [{"input_ids": [5, 6, 7], "attention_mask": [1, 1, 1]}, {"input_ids": [8], "attention_mask": [1]}]
    batch = pad(rows, 9)
    assert batch["input_ids"].tolist() == [[5, 6, 7], [8, 9, 9]]
    assert batch["attention_mask"].tolist() == [[1, 1, 1], [1, 0, 0]]
    assert "token_type_ids" not in batch
