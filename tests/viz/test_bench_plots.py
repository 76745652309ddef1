"""Plots of benchmark records."""

import itertools

import pytest

from flexformer.viz import plot_of
from flexformer.viz.style import label_ends, new_figure, style

matplotlib = pytest.importorskip("matplotlib")


COSTS = {"softmax": 2e-6, "softmax-unfused": 3e-6, "flexformer-n": 1e-6, "rfa": 4e-6, "limit": 5e-7}


def timing(seconds):
    return {"median": seconds, "lower": 0.9 * seconds, "upper": 1.1 * seconds, "samples": 3}


def record_of(bench, **options):
    measurements = [
        {
            "row": row,
            "length": length,
            "context": length,
            "pass": direction,
            "seconds": None if row == "softmax-unfused" and length > 512 else timing(length * cost),
            "memory": None if row == "limit" else {"peak_bytes": 1000 * length},
            "state_bytes": 100 * length,
        }
        for row, cost in COSTS.items()
        for length in (256, 512, 1024)
        for direction in ("forward", "forward+backward")
    ]
    options = {"passes": ["forward", "forward+backward"], **options}
    machine = {"cpu": "Some CPU"}
    return {"bench": bench, "options": options, "machine": machine, "threads": 1, "measurements": measurements}


SHAPE = {"is_causal": False, "dtype": "float32", "head_dim": 64, "heads": 8, "batch": 1}
RECORDS = {
    "attention": record_of("attention", **SHAPE),
    "scaling": record_of("scaling", **SHAPE),
    "decode": record_of("decode", head_dim=64, heads=8, batch=1),
    "model": record_of("model", pairs=1, length=256, layers=4),
}


@pytest.mark.parametrize("bench", RECORDS)
def test_a_record_becomes_a_picture_and_the_same_one_each_time(bench):
    picture = plot_of(RECORDS[bench])
    assert picture.startswith(b"\x89PNG")
    assert picture == plot_of(RECORDS[bench])


def test_a_record_without_memory_or_with_a_single_length_can_be_drawn():
    record = record_of("scaling", **SHAPE)
    record["measurements"] = [{**m, "memory": None} for m in record["measurements"] if m["length"] == 256]
    assert plot_of(record).startswith(b"\x89PNG")


def test_settings_of_the_caller_are_left_alone():
    before = dict(matplotlib.rcParams)
    plot_of(RECORDS["model"])
    assert dict(matplotlib.rcParams) == before


def test_names_at_the_ends_of_lines_do_not_overlap():
    with style():
        figure = new_figure(4, 3)
        axes = figure.subplots()
        axes.set(xlim=(0, 1), ylim=(0, 1))
        label_ends(axes, [(1, 0.98, "a", "red"), (1, 0.99, "b", "green"), (1, 1.0, "c", "blue")], gap=0.05)
        heights = sorted(text.xy[1] for text in axes.texts)
    assert all(b - a >= 0.05 - 1e-9 for a, b in itertools.pairwise(heights))
    assert heights[-1] <= 1.0
