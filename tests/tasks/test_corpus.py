"""Text for language models: where it comes from, how it is divided, and that its tokens are the published ones."""

from __future__ import annotations

import json
import os
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from flexformer.tasks import CorruptDataError, MissingDataError
from flexformer.tasks.corpus import FileText, find
from flexformer.tasks.language import LanguageModelling
from flexformer.tasks.tokens import EOS, SPECIALS, UNK, TokenFiles, vocabulary

TEXT = "the cat sat on the mat\n\nthe dog saw the cat\n"


def wikitext(folder: Path, **texts: str) -> Path:
    folder.mkdir(parents=True)
    for split in ("train", "valid", "test"):
        (folder / f"wiki.{split}.tokens").write_text(texts.get(split, TEXT), encoding="utf-8")
    return folder


def decoded(task: LanguageModelling, split: str) -> str:
    words = task.words
    return " ".join(words[i] for i in task.tokens.read(split))


@pytest.mark.data
def test_wikitext2_has_the_published_number_of_tokens(data_folder, tmp_path):
    if not Path(data_folder, "wikitext2").is_dir():
        pytest.skip("FLEXFORMER_DATA has no wikitext2")
    task = LanguageModelling(tmp_path, source=str(Path(data_folder, "wikitext2")))
    task.prepare()
    counts = {split: len(task.tokens.read(split)) for split in ("train", "validation", "test")}
    assert counts == {"train": 2_088_628, "validation": 217_646, "test": 245_569}
    assert task.vocab_size == 33_280  # 33,278 with <unk> and the end of line, <s> and <pad>; a multiple of 8 already
    assert task.words[:6] == [*SPECIALS, "the", ","]
    assert (task.tokens.read("test") < task.vocab_size).all()


@pytest.mark.data
def test_enwik8_is_divided_as_everywhere(data_folder, tmp_path):
    if not Path(data_folder, "enwik8").exists():
        pytest.skip("FLEXFORMER_DATA has no enwik8")
    corpus = find("enwik8", Path(data_folder))
    assert {split: text.size for split, text in corpus.texts.items()} == {
        "train": 90_000_000,
        "validation": 5_000_000,
        "test": 5_000_000,
    }
    assert corpus.unit == "byte"


def test_tokens_are_words_and_ends_of_lines(tmp_path):
    wikitext(tmp_path / "wikitext2", valid="the cat saw a unicorn\n", test="no newline")
    task = LanguageModelling(tmp_path, source="wikitext2")
    task.prepare()
    assert task.unit == "word"
    assert decoded(task, "train") == "the cat sat on the mat </s> </s> the dog saw the cat </s>"
    assert decoded(task, "validation") == "the cat saw <unk> <unk> </s>"
    assert decoded(task, "test") == "<unk> <unk> </s>"
    assert len(task.tokens.read("train")) == len(TEXT.split()) + TEXT.count("\n")


def test_vocabulary_is_sorted_by_frequency_then_alphabet_and_filled_up(tmp_path):
    path = tmp_path / "text"
    path.write_text(TEXT + "<unk> </s> <pad>")
    words = vocabulary(FileText([path]), None, 1)
    assert words[:6] == [*SPECIALS, "the", "cat"]
    assert words[6:11] == sorted(words[6:11]) == ["dog", "mat", "on", "sat", "saw"]
    assert words[11:] == ["<unused0>", "<unused1>", "<unused2>", "<unused3>", "<unused4>"]
    assert vocabulary(FileText([path]), 1, 1)[4:6] == ["the", "<unused0>"]
    assert vocabulary(FileText([path]), None, 2)[4:7] == ["the", "cat", "<unused0>"]


@settings(deadline=None, max_examples=60)
@given(text=st.text(st.sampled_from("ab\n \t\r\u00a0é\u3000"), max_size=60), size=st.integers(1, 7))
def test_lines_and_words_do_not_depend_on_where_a_file_was_read(tmp_path_factory, text, size):
    path = tmp_path_factory.mktemp("text") / "file"
    path.write_bytes(text.encode())
    whole = FileText([path])

    class Cut(FileText):
        def pieces(self):
            content = path.read_bytes()
            for start in range(0, len(content), size):
                yield content[start : start + size], size

    expected = text.split("\n")[:-1] + ([text.split("\n")[-1]] if not text.endswith("\n") and text else [])
    for reader in (whole, Cut([path])):
        found = [line.decode() for lines, _ in reader.lines() for line in lines]
        assert found == expected


@settings(deadline=None, max_examples=30)
@given(sizes=st.lists(st.integers(0, 50), min_size=1, max_size=5), unit=st.sampled_from(["word", "byte"]))
def test_folder_is_divided_without_loss(tmp_path_factory, sizes, unit):
    folder = tmp_path_factory.mktemp("folder")
    generator = np.random.default_rng(sum(sizes))
    for number, size in enumerate(sizes):
        (folder / f"{number}.txt").write_bytes(bytes(generator.choice([97, 10, 32], size).astype(np.uint8)))
    pieces = [(folder / f"{number}.txt").read_bytes() for number in range(len(sizes))]
    ended = [piece + b"\n" if piece and not piece.endswith(b"\n") else piece for piece in pieces[:-1]]
    everything = b"".join([*ended, pieces[-1]])
    try:
        corpus = find(str(folder), folder, unit)
    except CorruptDataError:
        return
    parts = [b"".join(piece for piece, _ in text.pieces()) for text in corpus.texts.values()]
    assert b"".join(parts) == everything
    if unit == "word":
        assert all(part.endswith(b"\n") for part in parts[:2])
    else:
        assert len(parts[0]) == round(0.9 * len(everything))


def test_hidden_folders_are_no_text(tmp_path):
    (tmp_path / "text/.git").mkdir(parents=True)
    (tmp_path / "text/.git/object").write_text("hidden " * 100)
    (tmp_path / "text/a.txt").write_text("seen " * 100)
    texts = find(str(tmp_path / "text"), tmp_path).texts.values()
    assert b"hidden" not in b"".join(piece for text in texts for piece, _ in text.pieces())


def test_half_divided_folder_is_not_divided_anew(tmp_path):
    for name in ("train", "valid"):
        (tmp_path / f"{name}.txt").write_text("a b c\n" * 10)
    with pytest.raises(MissingDataError, match=r"has train\.txt and valid\.txt and no test\.txt"):
        find(str(tmp_path), tmp_path)


def test_default_is_pythons_own_sources(tmp_path):
    task = LanguageModelling(tmp_path)
    task.prepare()
    text = bytes(np.concatenate([task.tokens.read(split) for split in ("train", "validation", "test")])).decode(
        errors="replace"
    )
    source = Path(os.__file__).read_text(encoding="utf-8")
    assert source in text
    assert task.vocab_size == 256


def test_datasets_id_or_folder_is_read_by_rows(tmp_path):
    pytest.importorskip("datasets")
    folder = tmp_path / "data" / "set"
    folder.mkdir(parents=True)
    rows = [{"text": f"row {n}\n" if n % 2 else f"row {n}"} for n in range(40)]
    (folder / "train.jsonl").write_text("\n".join(json.dumps(row) for row in rows))
    from flexformer.tasks.corpus import _of_hub

    corpus = _of_hub(str(folder), "word")
    texts = {split: b"".join(p for p, _ in text.pieces()).decode() for split, text in corpus.texts.items()}
    assert texts["train"] == "".join(f"row {n}\n" for n in range(36))
    assert texts["validation"] == "row 36\nrow 37\n"
    files = TokenFiles(tmp_path / "tokens", corpus, "word")
    files.build()
    assert len(files.read("train")) == 36 * 3


def test_token_files_are_built_once_and_follow_the_text(tmp_path):
    path = tmp_path / "text.txt"
    path.write_text("abc " * 100)
    steps = []
    first = LanguageModelling(tmp_path / "root", source=str(path))
    first.prepare(lambda done, total: steps.append((done, total)))
    assert steps[-1][0] == steps[-1][1] == 400
    again = LanguageModelling(tmp_path / "root", source=str(path))
    again.prepare(lambda done, total: pytest.fail("built twice"))
    path.write_text("abd " * 100)
    other = LanguageModelling(tmp_path / "root", source=str(path))
    other.prepare()
    assert other.tokens.cache.folder != first.tokens.cache.folder
    assert bytes(other.tokens.read("train"))[:4] == b"abd "
    assert isinstance(other.tokens.read("train"), np.memmap)


def test_corrupt_token_file_is_noticed_and_the_remedy_named(tmp_path):
    task = LanguageModelling(tmp_path)
    task.prepare()
    path = task.tokens.cache.folder / "train.npy"
    content = bytearray(path.read_bytes())
    content[-1] ^= 1
    path.write_bytes(content)
    with pytest.raises(CorruptDataError, match=r"does not have the checksum.*delete .*python-byte.*train once more"):
        LanguageModelling(tmp_path).prepare()
    path.write_bytes(content[:-5])
    with pytest.raises(CorruptDataError, match="bytes instead of"):
        LanguageModelling(tmp_path).dataset("train")


def test_interrupted_building_leaves_nothing(tmp_path):
    wikitext(tmp_path / "wikitext2")

    def stop(done, total):
        raise KeyboardInterrupt

    task = LanguageModelling(tmp_path, source="wikitext2")
    with pytest.raises(KeyboardInterrupt):
        task.prepare(stop)
    assert list((tmp_path / "lm").iterdir()) == []


def test_what_a_killed_process_left_is_cleared_away(tmp_path):
    left, fresh = tmp_path / "lm" / ".partial-old", tmp_path / "lm" / ".partial-new"
    for folder in (left, fresh):
        folder.mkdir(parents=True)
        (folder / "train").write_text("half")
    os.utime(left, (0, 0))
    task = LanguageModelling(tmp_path)
    task.tokens.cache.folder.mkdir()  # a set that lost its manifest
    (task.tokens.cache.folder / "train.npy").write_text("half")
    task.prepare()
    assert not left.exists()
    assert fresh.exists()  # it may be somebody's who is still writing
    task.tokens.cache.verify()


def test_empty_corpus_is_refused_and_nothing_written(tmp_path):
    (tmp_path / "empty.txt").touch()
    with pytest.raises(CorruptDataError, match="has no text for train; use a longer text"):
        LanguageModelling(tmp_path, source=str(tmp_path / "empty.txt")).prepare()
    (tmp_path / "folder").mkdir()
    with pytest.raises(CorruptDataError, match="has no text for train"):
        LanguageModelling(tmp_path, source=str(tmp_path / "folder")).prepare()
    wikitext(tmp_path / "wikitext2", train="\n\n\n")
    with pytest.raises(CorruptDataError, match="no word of the training text occurs 1 times"):
        LanguageModelling(tmp_path, source="wikitext2").prepare()
    assert not any((tmp_path / "lm").iterdir())


def test_bytes_that_are_no_text_do_not_stop_words(tmp_path):
    path = tmp_path / "bytes.txt"
    path.write_bytes(b"good \xff\xfe bad\n" * 50)
    task = LanguageModelling(tmp_path, source=str(path), unit="word")
    task.prepare()
    assert decoded(task, "train").startswith("good �� bad </s>")


@pytest.mark.parametrize(
    ("source", "message"),
    [
        ("wikitext103", r"wikitext103 is not in .*: get wikitext-103-v1"),
        ("enwik8", r"enwik8 is not in .*: get enwik8.zip"),
        ("nowhere.txt", r"source 'nowhere.txt' is neither a file nor a folder; put text there, or use python"),
        ("./nowhere/at/all", r"neither a file nor a folder"),
        ("nowhere/novel.txt", r"neither a file nor a folder"),
    ],
)
def test_missing_text_says_where_to_get_it(source, message, tmp_path):
    with pytest.raises(MissingDataError, match=message):
        LanguageModelling(tmp_path, source=source).prepare()


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"unit": "letter"}, "unit 'letter' is unknown; use one of word, byte"),
        ({"length": 0}, "length 0 is too small"),
        ({"min_count": 0}, "min_count 0 is too small"),
    ],
)
def test_wrong_options_are_refused(options, message):
    with pytest.raises(ValueError, match=message):
        LanguageModelling(**options)


def test_words_that_look_like_fillers_keep_their_ids(tmp_path):
    path = tmp_path / "text.txt"
    path.write_text("a b <unused0> c\n" * 50)
    task = LanguageModelling(tmp_path, source=str(path), unit="word")
    task.prepare()
    assert len(set(task.words)) == len(task.words) == 8


def test_ids_are_as_narrow_as_the_vocabulary(tmp_path):
    path = tmp_path / "many.txt"
    path.write_text("\n".join(f"w{number}" for number in range(80_000)))
    task = LanguageModelling(tmp_path, source=str(path), unit="word")
    task.prepare()
    assert task.tokens.read("train").dtype == np.int32
    assert task.tokens.read("train")[1] == EOS
    assert (task.tokens.read("test")[::2] == UNK).all()
