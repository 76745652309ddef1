"""The sweep over numbers of frequencies."""

from __future__ import annotations

import sys
from dataclasses import replace

import pytest
from made_cells import made

from flexformer.experiments.frequencies import FrequencySweep
from flexformer.experiments.grid import Places, finish
from flexformer.experiments.results import read_all, write


def test_plan_has_a_run_for_every_task_multiple_and_seed():
    cells = FrequencySweep("paper", tasks=["image", "listops"], multiples=[0.5, 2]).cells(["flexformer-s"], [0, 1])
    counts = [(cell.labels["task"], cell.labels["n"], cell.seed) for cell in cells]
    first = [("image", 8, 0), ("image", 32, 0), ("listops", 32, 0), ("listops", 128, 0)]
    assert counts == first + [(task, n, 1) for task, n, _ in first]
    assert {cell.stage.options.attention for cell in cells} == {"flexformer-s"}
    assert cells[0].stage.options.model.attention_options == {"num_frequencies": 8}
    assert cells[0].name == "image-flexformer-s-paper-n8-seed0"


def test_language_models_read_the_text_of_table_2():
    sweep = FrequencySweep("cpu", tasks=["lm"], multiples=[1])
    assert sweep.cells(["flexformer-n"], [0])[0].stage.options.data.source == "wikitext2"
    (other,) = FrequencySweep("cpu", tasks=["lm"], multiples=[1], corpus="enwik8").cells(["flexformer-n"], [0])
    assert other.name == "lm-enwik8-flexformer-n-cpu-n32-seed0"


@pytest.mark.parametrize(("task", "twin"), [("lm", "table2"), ("image", "table1")])
def test_as_many_frequencies_as_a_head_is_wide_is_the_run_of_the_other_tables(tmp_path, task, twin):
    (cell,) = FrequencySweep("cpu", tasks=[task], multiples=[1]).cells(["flexformer-n"], [0])
    assert cell.finished(tmp_path) is None
    there = made(twin, cell.twin.name, dict(cell.twin.labels), "cpu", 0, digest=cell.twin.digest)
    write(cell.twin.path(tmp_path), there)
    shown = replace(there, table="n-sweep", cell=cell.name, labels=dict(cell.labels))
    assert cell.finished(tmp_path) == shown
    assert finish([cell], Places(tmp_path, tmp_path, sys.stderr)) == [shown] == read_all(tmp_path, "n-sweep", "cpu")


def test_only_attentions_with_frequencies_are_swept():
    assert FrequencySweep("cpu").rows() == ("flexformer-s", "flexformer-n", "flexformer-c")


def test_multiple_that_leaves_no_frequency_is_refused():
    with pytest.raises(ValueError, match=r"multiple 0.01 of heads of 16 leaves no frequency"):
        FrequencySweep("paper", tasks=["image"], multiples=[0.01]).cells(["flexformer-n"], [0])
