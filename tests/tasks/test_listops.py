"""ListOps: the generator keeps what the benchmark says, and every label is what another evaluator finds."""

from __future__ import annotations

import hashlib
import time
from statistics import median

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from flexformer import tasks
from flexformer.tasks.listops_trees import SYMBOLS, VOCAB_SIZE, TreeSettings, decode, draw_chunk, encode

SHORT = {"train": 60, "validation": 20, "test": 20, "min_length": 10, "max_length": 60}


def evaluate(words: list[str]) -> int:
    """The value by reduction on a stack, sharing nothing with the generator."""
    rules = {
        "[MIN": min,
        "[MAX": max,
        "[MED": lambda values: int(median(values)),
        "[SM": lambda values: sum(values) % 10,
    }
    stack: list[list] = [[]]
    for word in words:
        if word in rules:
            stack.append([rules[word]])
        elif word == "X":
            rule, *values = stack.pop()
            stack[-1].append(rule(values))
        else:
            stack[-1].append(int(word))
    ((value,),) = stack
    return value


def nesting(words: list[str]) -> int:
    depth = deepest = 0
    for word in words:
        depth += word.startswith("[") - (word == "X")
        deepest = max(deepest, depth)
    return deepest


@pytest.fixture(scope="module")
def chunk():
    return draw_chunk(TreeSettings(), 0)


def test_benchmark_lengths_are_strictly_between_500_and_2000(chunk):
    lengths = [len(tokens) for tokens, _ in chunk]
    assert min(lengths) > 500
    assert max(lengths) < 2000
    assert 900 < np.mean(lengths) < 1170  # 1035 in the long run


def test_labels_are_what_a_second_evaluator_finds(chunk):
    for tokens, value in chunk:
        assert evaluate(decode(np.frombuffer(tokens, np.uint8)).split()) == value


def test_operators_nest_at_most_nine_deep(chunk):
    depths = {nesting(decode(np.frombuffer(tokens, np.uint8)).split()) for tokens, _ in chunk}
    assert max(depths) == 9


def test_label_shares_are_those_of_the_algorithm():
    labels = np.array([value for number in range(8) for _, value in draw_chunk(TreeSettings(50, 200), number)])
    shares = np.bincount(labels, minlength=10) / len(labels)
    assert shares.sum() == 1
    assert shares[[0, 9]].min() > 0.12  # minima and maxima make the extremes the likeliest
    assert shares.min() > 0.04
    assert shares.max() < 0.22


@settings(max_examples=10, deadline=None)
@given(
    low=st.integers(0, 30),
    span=st.integers(20, 200),
    depth=st.integers(5, 10),
    args=st.integers(5, 10),
    seed=st.integers(0, 2**40),
    number=st.integers(0, 1000),
)
def test_any_lengths_vocabulary_and_arguments_are_kept_within_bounds(low, span, depth, args, seed, number):
    chosen = TreeSettings(low, low + span, depth, args, seed)
    for tokens, value in draw_chunk(chosen, number):
        ids = np.frombuffer(tokens, np.uint8)
        words = decode(ids).split()
        assert low < len(ids) < low + span
        assert ids.min() >= 1
        assert ids.max() <= len(SYMBOLS)
        assert nesting(words) < depth
        assert evaluate(words) == value


def test_argument_counts_run_from_two_to_ten(chunk):
    counts = set()
    for tokens, _ in chunk[:50]:
        stack = [0]
        for word in decode(np.frombuffer(tokens, np.uint8)).split():
            if word.startswith("["):
                stack.append(0)
                continue
            if word == "X":
                counts.add(stack.pop())
            stack[-1] += 1
    assert counts == set(range(2, 11))


def test_same_seed_gives_the_same_trees_and_another_seed_others():
    assert draw_chunk(TreeSettings(10, 60), 3) == draw_chunk(TreeSettings(10, 60), 3)
    assert draw_chunk(TreeSettings(10, 60), 3) != draw_chunk(TreeSettings(10, 60), 4)
    assert draw_chunk(TreeSettings(10, 60), 3) != draw_chunk(TreeSettings(10, 60, seed=1), 3)


def test_bytes_are_those_of_this_version_of_the_generator():
    # Where this fails on purpose, raise ListOps.version: caches made before must not pass for the new set.
    content = b"".join(tokens + bytes([value]) for tokens, value in draw_chunk(TreeSettings(10, 60), 0))
    assert hashlib.sha256(content).hexdigest()[:16] == "f15bb7ac463fe5bf"


def test_notation_of_the_benchmark_is_read_with_and_without_parentheses():
    ids = encode("( ( ( [MAX 3 ) 4 ) ] )")
    assert ids.tolist() == encode("[MAX 3 4 X").tolist() == [12, 4, 5, 15]
    assert encode("[FIRST 1 ]").tolist() == [16, 2, 15]
    assert VOCAB_SIZE == 17


def test_prepared_set_has_its_sizes_and_no_expression_twice(tmp_path):
    task = tasks.build("listops", tmp_path, **SHORT)
    seen = []
    task.prepare(lambda done, total: seen.append((done, total)))
    sets = {split: task.dataset(split) for split in ("train", "validation", "test")}
    assert {split: len(dataset) for split, dataset in sets.items()} == {"train": 60, "validation": 20, "test": 20}
    rows = [tuple(dataset[i]["input_ids"].tolist()) for dataset in sets.values() for i in range(len(dataset))]
    assert len(set(rows)) == 100
    assert seen[-1] == (100, 100)
    item = sets["test"][3]
    assert evaluate(decode(item["input_ids"].numpy()).split()) == item["labels"]


def test_bytes_do_not_depend_on_the_number_of_workers(tmp_path):
    sizes = SHORT | {"train": 700}
    folders = []
    for workers in (1, 2):
        task = tasks.build("listops", tmp_path / str(workers), **sizes)
        task.prepare(workers=workers)
        folders.append({path.name: path.read_bytes() for path in task.files()})
    assert folders[0] == folders[1]


def test_duplicates_are_replaced_as_long_as_there_are_other_expressions(tmp_path):
    task = tasks.build("listops", tmp_path, train=300, validation=5, test=5, min_length=3, max_length=6)
    task.prepare()
    rows = {tuple(item["input_ids"].tolist()) for item in task.dataset("train")}
    assert len(rows) == 300


def test_more_expressions_than_there_are_is_an_error(tmp_path):
    task = tasks.build("listops", tmp_path, train=20, validation=1, test=1, min_length=0, max_length=2)
    with pytest.raises(ValueError, match="only 10 distinct expressions, not 22; widen the lengths"):
        task.prepare()


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"min_length": 500, "max_length": 501}, "no length is strictly between min_length 500 and max_length 501"),
        ({"max_args": 1}, "max_args 1 allow no operator"),
        ({"train": 0}, "train 0 leaves no examples"),
        ({"depth": 3}, "listops has no option 'depth'"),
    ],
)
def test_impossible_options_are_refused(tmp_path, options, message):
    with pytest.raises(ValueError, match=message):
        tasks.build("listops", tmp_path, **options)


def test_lengths_that_never_occur_are_given_up(monkeypatch):
    monkeypatch.setattr("flexformer.tasks.listops_trees._PATIENCE", 500)
    with pytest.raises(ValueError, match=r"500 expressions in a row .* min_length 5000"):
        draw_chunk(TreeSettings(5000, 6000, max_depth=3), 0)


def test_expressions_cannot_be_cut(tmp_path):
    task = tasks.build("listops", tmp_path, **SHORT)
    with pytest.raises(ValueError, match="max_length 20 would cut expressions"):
        task.dataset("train", max_length=20)


def test_shorter_lengths_are_marked_as_not_the_benchmark(tmp_path):
    assert any("cannot be compared" in note for note in tasks.build("listops", tmp_path, **SHORT).describe().notes)
    assert not any("cannot be compared" in note for note in tasks.build("listops", tmp_path, seed=5).describe().notes)


@pytest.mark.slow
def test_ten_thousand_examples_take_less_than_forty_seconds(tmp_path):
    task = tasks.build("listops", tmp_path, train=9_600, validation=200, test=200)
    started = time.perf_counter()
    task.prepare(workers=2)
    assert time.perf_counter() - started < 40
    labels = np.concatenate([task.dataset(split).labels for split in ("train", "validation", "test")])
    shares = np.bincount(labels, minlength=10) / len(labels)
    assert shares[[0, 9]] == pytest.approx([0.168, 0.170], abs=0.015)
