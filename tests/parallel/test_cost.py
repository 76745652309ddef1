"""What a divided sequence costs: the formula beside what ranks really send, and the page beside the record."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from flexformer.bench import page_with_figures, read_records
from flexformer.bench.ranks import RanksOptions
from flexformer.cli.main import main
from flexformer.parallel import cost

ROOT = Path(__file__).resolve().parents[2]
SHAPE = cost.Shape(heads=8, dim=64, features=128)
SPEEDS = cost.Speeds(per_token=1e-5, per_pair=1e-9, bandwidth=1e9, latency=1e-5)


def test_bytes_of_the_formula_are_those_that_ranks_send(tmp_path, capsys):
    assert main(["bench", "ranks", "--smoke", "--ranks", "[1,2]", "--output", str(tmp_path), "--json"]) == 0
    record = json.loads(capsys.readouterr().out)
    assert json.loads((tmp_path / "ranks-1-thread-smoke.json").read_text()) == record
    rows = record["measurements"]
    assert {(row["row"], row["ranks"]) for row in rows} == {(n, r) for n in ("whole", "causal", "ring") for r in (1, 2)}
    for row in rows:
        assert row["bytes_sent"] == row["foretold_bytes"], row
        assert (row["bytes_sent"] == 0) == (row["ranks"] == 1)
    assert len(record["foretold"]) == 2 * 2 * 4


@pytest.mark.parametrize("is_causal", [False, True])
def test_ours_sends_far_less_than_a_ring_once_sequences_are_long(is_causal):
    for ranks in (8, 64, 512):
        ours, ring = cost.bytes_sent(SHAPE, ranks, is_causal), cost.ring_bytes_sent(SHAPE, ranks, 2**20)
        assert 100 * ours < ring
        shorter, longer = (cost.seconds(SHAPE, SPEEDS, ranks, length, is_causal) for length in (2**20, 2**21))
        assert longer - shorter == pytest.approx(SPEEDS.per_token * 2**20 / ranks)  # computing alone


@pytest.mark.parametrize(("ranks", "expected"), [(1, 0), (2, 2), (3, 4), (4, 6), (5, 6), (8, 8), (9, 8), (512, 20)])
def test_causal_ranks_know_all_before_them_after_a_logarithmic_number_of_rounds(ranks, expected):
    assert cost.rounds(ranks, is_causal=True) == expected


@pytest.mark.parametrize(("ranks", "expected"), [(1, [0]), (2, [1, 1]), (3, [1, 3, 2]), (5, [1, 4, 5, 5, 3])])
def test_messages_of_each_rank_are_counted(ranks, expected):
    assert [cost.causal_messages(rank, ranks) for rank in range(ranks)] == expected


@pytest.mark.parametrize(
    ("options", "reason"),
    [
        ({"ranks": (2,)}, "1 and 2 are needed"),
        ({"lengths": ()}, "use one or more"),
        ({"bandwidth": 0.0}, "bandwidth 0.0 is too small"),
    ],
)
def test_options_without_meaning_are_refused(options, reason):
    with pytest.raises(ValueError, match=reason):
        RanksOptions(**options)


def test_the_page_shows_what_the_record_holds():
    page = ROOT / "docs" / "scaling.md"
    text = page.read_text(encoding="utf-8")
    assert page_with_figures(text, read_records(ROOT / "results" / "ranks")) == text, (
        "docs/scaling.md and results/ranks have drifted apart; run flexformer bench report --results results/ranks "
        "--page docs/scaling.md"
    )
