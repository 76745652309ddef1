"""The benchmark page shows what the records hold, and records are written whole."""

import dataclasses
import json
import math
import re
from pathlib import Path

import pytest

from flexformer.bench import (
    AttentionOptions,
    DecodeOptions,
    load,
    name_of,
    new_record,
    page_with_figures,
    read_records,
)
from flexformer.bench.figures import Figures
from flexformer.bench.page import BLOCKS, COMMANDS, SCALING, crossover, growth
from flexformer.bench.record import command_of, describe_machine
from flexformer.files import write_bytes, write_text
from flexformer.provenance import commit

ROOT = Path(__file__).resolve().parents[2]
PAGE = ROOT / "docs" / "benchmarks.md"


def record_of(times, bench="attention", **options):
    """A record with these seconds: {(row, length): seconds}."""
    measurements = [
        {
            "row": row,
            "family": "peer" if row == "theirs" else "other",
            "length": length,
            "pass": "forward+backward",
            "seconds": None if seconds is None else {"median": seconds},
            "memory": {"peak_bytes": length * 2**20},
            "note": "skipped: too slow" if seconds is None else None,
        }
        for (row, length), seconds in times.items()
    ]
    options = {"threads": 1, "passes": ["forward+backward"], **options}
    return new_record(bench, options, {"measurements": measurements}, 1.0)


RECORD = record_of(
    {
        ("softmax", 1024): 1.0,
        ("softmax", 4096): 16.0,
        ("flexformer-n", 1024): 2.0,
        ("flexformer-n", 4096): 8.0,
        ("theirs", 1024): 3.0,
        ("theirs", 4096): None,
        ("limit", 1024): 1.0,
        ("limit", 4096): 5.0,
    }
)
RECORDS = {"attention-1-thread": RECORD}


def test_the_page_in_docs_shows_what_the_results_hold():
    text = PAGE.read_text(encoding="utf-8")
    assert page_with_figures(text, read_records(ROOT / "results" / "bench")) == text, (
        "docs/benchmarks.md and results/bench/ have drifted apart; run flexformer bench report"
    )


def test_the_page_in_docs_has_every_block_and_no_figure_of_speed_outside_them():
    text = PAGE.read_text(encoding="utf-8")
    for name in BLOCKS:
        assert f"<!-- figures: {name} begin -->" in text
    prose = re.sub(r"<!-- figures: ([\w-]+) begin -->.*?<!-- figures: \1 end -->", "", text, flags=re.DOTALL)
    assert not re.findall(r"\b\d+(?:\.\d+)?(?:x\b| ?(?:ms|MiB|GiB|times)\b)", prose)


def test_crossover_is_interpolated_between_the_lengths_around_it():
    assert crossover(Figures(RECORD), "forward+backward") == str(round(math.sqrt(1024 * 4096)))
    always = record_of({("softmax", 8): 2.0, ("flexformer-n", 8): 1.0})
    never = record_of({("softmax", 8): 1.0, ("flexformer-n", 8): 2.0})
    assert crossover(Figures(always), "forward+backward") == "at or below 8"
    assert crossover(Figures(never), "forward+backward") == "above 8"
    assert crossover(Figures(never), "forward") == "not measured"


def test_blocks_give_ratios_notes_and_losses():
    assert "| theirs | 0.33x | skipped |" in BLOCKS["speed"](RECORDS)
    assert "| **flexformer-n** | 0.50x | 2.00x |" in BLOCKS["speed"](RECORDS)
    assert "| theirs | bidirectional | 1.50x | skipped |" in BLOCKS["peers"](RECORDS)
    assert "| 2.00x | 1.60x |" in BLOCKS["limit"](RECORDS)
    assert "| softmax | 1024 (2.0x) |" in BLOCKS["losses"](RECORDS)
    measured = BLOCKS["kernels"]({"kernels/attention-causal-1-thread": RECORD})
    assert "| softmax | causal | 0.50x | 2.00x |" in measured


@pytest.mark.parametrize("name", BLOCKS)
def test_a_block_without_its_run_says_which_command_is_missing(name):
    text = BLOCKS[name]({})
    assert any(f"`{command}`" in text for command in COMMANDS.values())


def test_blocks_are_replaced_and_the_rest_of_the_page_is_left_alone():
    page = "before\n<!-- figures: crossover begin -->\nold\n<!-- figures: crossover end -->\nafter\n"
    new = page_with_figures(page, RECORDS)
    assert new.startswith("before\n<!-- figures: crossover begin -->\n\n| setting")
    assert new.endswith("<!-- figures: crossover end -->\nafter\n")
    assert "old" not in new
    assert page_with_figures(new, RECORDS) == new


@pytest.mark.parametrize(
    ("page", "message"),
    [
        ("<!-- figures: nonsense begin --><!-- figures: nonsense end -->", "block 'nonsense' is unknown"),
        ("<!-- figures: crossover begin -->", "does not end"),
    ],
)
def test_a_page_with_a_wrong_block_is_refused(page, message):
    with pytest.raises(ValueError, match=message):
        page_with_figures(page, RECORDS)


def test_files_are_named_by_what_distinguishes_a_run():
    assert name_of("attention", {"threads": 1, "dtype": "float32"}) == "attention-1-thread"
    assert name_of("attention", {"threads": 2, "dtype": "bfloat16", "is_causal": True}) == (
        "attention-causal-bfloat16-2-threads"
    )
    assert name_of("model", {"threads": 1, "smoke": True}) == "model-1-thread-smoke"


def test_records_say_what_ran_where_and_smoke_runs_are_left_out(tmp_path):
    assert RECORD["command"].startswith("flexformer bench attention")
    assert {"cpu", "cores", "memory_bytes"} <= set(RECORD["machine"])
    assert {"flexformer", "python", "torch"} <= set(RECORD["versions"])
    write_text(tmp_path / "a.json", json.dumps(RECORD))
    write_text(tmp_path / "b.json", json.dumps(record_of({}, smoke=True)))
    (tmp_path / "kernels").mkdir()
    write_text(tmp_path / "kernels" / "a.json", json.dumps(RECORD))
    assert read_records(tmp_path) == {"a": RECORD, "kernels/a": RECORD}


def test_the_commit_is_that_of_this_checkout():
    found = commit()
    assert found is None or re.fullmatch(r"[0-9a-f]{40}(-dirty)?", found)
    assert describe_machine()["cpu"]


def test_a_file_that_cannot_be_written_leaves_nothing_behind(tmp_path, monkeypatch):
    write_bytes(tmp_path / "new" / "file", b"first")

    def full(*_):
        raise OSError(28, "No space left on device")

    monkeypatch.setattr("os.replace", full)
    with pytest.raises(OSError, match="No space left"):
        write_bytes(tmp_path / "new" / "file", b"second")
    assert [path.name for path in (tmp_path / "new").iterdir()] == ["file"]
    assert (tmp_path / "new" / "file").read_bytes() == b"first"


def test_the_command_of_a_record_names_what_is_not_the_default():
    given = dataclasses.asdict(AttentionOptions(lengths=(8, 16), is_causal=True, memory=False, passes=("forward",)))
    given = {key: list(value) if isinstance(value, tuple) else value for key, value in given.items()}
    expected = "flexformer bench attention --lengths=[8,16] --is-causal --direction=forward --memory=false"
    assert command_of("attention", given) == expected
    assert command_of("decode", dataclasses.asdict(DecodeOptions())) == "flexformer bench decode"


def test_the_machine_s_load_is_a_number_where_the_system_tells_it():
    assert load() is None or load() >= 0


def test_growth_says_how_steady_the_machine_was():
    fits = [{"row": "linear", "pass": "forward", "time": 1.0, "memory": None}]
    pace = [{"length": 4, "seconds": 0.001}, {"length": 8, "seconds": 0.0012}]
    measured = [{"row": "linear", "pass": "forward", "length": 8, "seconds": {"median": 1.0}}]
    record = {"slopes": fits, "measurements": measured, "options": {"fit_from": 4}, "pace": pace}
    text = growth({SCALING: record})
    assert "The same call took at most 1.20 times as long beside one length as beside another." in text
    assert "The same call" not in growth({SCALING: record | {"pace": []}})


def test_growth_says_how_far_each_row_was_measured():
    fits = [{"row": row, "pass": "forward", "time": time, "memory": None} for row, time in (("a", 1.0), ("b", 1.1))]
    fits.append({"row": "softmax", "pass": "forward", "time": None, "memory": None})
    lengths = {"a": (4, 8, 16), "b": (4, 8), "softmax": (4,)}
    measured = [
        {"row": row, "pass": "forward", "length": n, "seconds": {"median": 1.0} if n in own else None}
        for row, own in lengths.items()
        for n in (4, 8, 16, 32)
    ]
    text = growth({SCALING: {"slopes": fits, "measurements": measured, "options": {"fit_from": 4}}})
    assert "Fitted from N = 4 to 16, where three lengths were measured. Of b, forward, the longest was 8." in text
    assert "softmax, forward, the longest" not in text
