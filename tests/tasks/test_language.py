"""Blocks of text: every token is predicted once; batches, metrics and tokenizers."""

from __future__ import annotations

import math

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from transformers import AutoTokenizer

from flexformer.tasks.language import Blocks, LanguageModelling
from flexformer.tasks.tokens import SPECIALS


@pytest.fixture(scope="module")
def words(tmp_path_factory):
    folder = tmp_path_factory.mktemp("words")
    path = folder / "text.txt"
    path.write_text("the cat sat on the mat\nthe dog saw the cat\n" * 40)
    task = LanguageModelling(folder, source=str(path), unit="word", length=16)
    task.prepare()
    return task


@pytest.fixture(scope="module")
def letters(tmp_path_factory):
    folder = tmp_path_factory.mktemp("bytes")
    path = folder / "text.txt"
    path.write_text("the cat sat on the mat\nthe dog saw the cät\n" * 40)
    task = LanguageModelling(folder, source=str(path), length=16)
    task.prepare()
    return task


@given(st.integers(1, 200), st.integers(1, 50))
def test_every_token_is_scored_once_and_seen_one_place_later(count, length):
    tokens = np.arange(count, dtype=np.uint16)
    blocks = Blocks(tokens, length, before=777)
    items = [blocks[i] for i in range(len(blocks))]
    assert torch.cat([item["labels"] for item in items]).tolist() == list(range(count))
    assert torch.cat([item["input_ids"] for item in items]).tolist() == [777, *range(count - 1)]
    assert all(len(item["labels"]) == length for item in items[:-1])


def test_dataset_is_a_sequence_with_an_end(words):
    blocks = words.dataset("train")
    assert len(list(blocks)) == len(blocks)
    assert blocks[-1]["labels"].tolist() == blocks[len(blocks) - 1]["labels"].tolist()
    with pytest.raises(IndexError, match="outside a dataset"):
        blocks[len(blocks)]


def test_limit_takes_blocks_from_all_over_the_text_and_always_the_same(words):
    some, again = (words.dataset("train", limit=5) for _ in range(2))
    assert len(some) == 5
    assert some.indices.tolist() == again.indices.tolist() != list(range(5))
    assert len(words.dataset("train", limit=10_000)) == len(words.dataset("train"))
    with pytest.raises(ValueError, match="limit 0 leaves no blocks"):
        words.dataset("train", limit=0)
    with pytest.raises(ValueError, match="split 'valid' is unknown"):
        words.dataset("valid")


def test_short_block_is_padded_and_not_scored(words):
    blocks = words.dataset("test")
    batch = words.collate([blocks[0], blocks[len(blocks) - 1]])
    short = len(blocks[len(blocks) - 1]["labels"])
    assert 0 < short < 16
    assert batch["input_ids"].shape == batch["shift_labels"].shape == batch["key_mask"].shape == (2, 16)
    assert batch["input_ids"][1, short:].eq(SPECIALS.index("<pad>")).all()
    assert batch["shift_labels"][1, short:].eq(-100).all()
    assert batch["key_mask"].sum().item() == 16 + short


def test_perplexity_is_of_all_tokens_together(words, letters):
    surprise, counts = np.array([10.0, 1.0]), np.array([10, 1])
    assert words.metrics(surprise, counts) == {"loss": 1.0, "perplexity": pytest.approx(math.e)}
    found = letters.metrics(torch.tensor([2.0, 3.0]), torch.tensor([1, 4]))
    assert found["loss"] == 1.0
    assert found["bits_per_byte"] == pytest.approx(1 / math.log(2))
    assert letters.metrics(np.array([1e4]), np.array([1]))["perplexity"] == math.inf


def test_word_tokenizer_says_what_the_token_files_say(words, tmp_path):
    words.tokenizer().save_pretrained(tmp_path)
    tokenizer = AutoTokenizer.from_pretrained(tmp_path)
    ids = tokenizer("the cat sat on the mat\nthe dog saw the cat\n").input_ids
    assert ids == words.tokens.read("train")[: len(ids)].tolist()
    assert tokenizer.decode(ids) == " the cat sat on the mat\n the dog saw the cat\n"
    unknown = tokenizer("a unicorn saw the cat").input_ids
    assert unknown.count(tokenizer.unk_token_id) == 2
    assert tokenizer(["the cat", "the"], padding=True).attention_mask == [[1, 1], [0, 1]]


@pytest.fixture(scope="module")
def byte_tokenizer(letters):
    return letters.tokenizer()


@given(st.text(max_size=40))
def test_byte_tokenizer_gives_bytes_and_takes_them_back(byte_tokenizer, text):
    ids = byte_tokenizer(text).input_ids
    assert ids == list(text.encode())
    assert byte_tokenizer.decode(ids) == text


def test_saved_byte_tokenizer_is_the_same(letters, tmp_path):
    letters.tokenizer().save_pretrained(tmp_path)
    assert AutoTokenizer.from_pretrained(tmp_path)("cät\n").input_ids == list("cät\n".encode())


def test_letters_that_tokenizers_use_for_bytes_are_letters_all_the_same(byte_tokenizer):
    text = "Ābols, Ġ, żółć\n"
    assert byte_tokenizer(text).input_ids == list(text.encode())
    assert byte_tokenizer.decode(list(text.encode())) == text
    assert (byte_tokenizer.pad_token_id, len(byte_tokenizer)) == (0, 256)
    assert byte_tokenizer.decode([0, 0, 97], skip_special_tokens=True) == "a"
