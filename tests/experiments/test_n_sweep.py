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
    other, steps = FrequencySweep("cpu", tasks=["lm"], multiples=[1], corpus="enwik8").cells(["flexformer-n"], [0])
    assert other.name == "lm-enwik8-flexformer-n-cpu-n32-seed0"
    assert steps.name == "lm-enwik8-flexformer-n-cpu-steps-n32"


@pytest.mark.parametrize(("task", "twin"), [("lm", "table2"), ("image", "table1")])
def test_as_many_frequencies_as_a_head_is_wide_is_the_run_of_the_other_tables(tmp_path, task, twin):
    cell, _ = FrequencySweep("cpu", tasks=[task], multiples=[1]).cells(["flexformer-n"], [0])
    assert cell.finished(tmp_path) is None
    there = made(twin, cell.twin.name, dict(cell.twin.labels), "cpu", 0, digest=cell.twin.digest)
    write(cell.twin.path(tmp_path), there)
    shown = replace(there, table="n-sweep", cell=cell.name, labels=dict(cell.labels))
    assert cell.finished(tmp_path) == shown
    assert finish([cell], Places(tmp_path, tmp_path, sys.stderr)) == [shown] == read_all(tmp_path, "n-sweep", "cpu")


def measured(cell, seconds):
    """The cell's file as it would be with these times of a step, by number of frequencies."""
    figures = [{"row": str(n), "seconds": {"median": s}, "memory": {"peak_bytes": n * 2**20}, "note": None}
               for n, s in seconds.items()]  # fmt: skip
    return made(
        "n-sweep", cell.name, dict(cell.labels), "cpu", 0, digest=cell.digest, details={"measurements": figures}
    )


def speeds(sweep, results):
    (table,) = sweep.show(results).tables
    column = [column.title for column in table.columns].index("steps / s")
    return {int(row.label): row.values[column] and row.values[column].mean for row in table.rows}


def test_speeds_are_those_measured_in_turn_and_the_measurement_of_most_counts(tmp_path):
    sweep = FrequencySweep("cpu", tasks=["image"], multiples=[0.5, 1])
    first, second, both = sweep.cells(["flexformer-n"], [0])
    for cell in (first, second):
        figures = {"metrics": {"test_accuracy": 0.5}, "step_seconds": 9.0, "peak_memory": 9}
        write(
            cell.path(tmp_path), made("n-sweep", cell.name, dict(cell.labels), "cpu", 0, digest=cell.digest, **figures)
        )
    assert speeds(sweep, tmp_path) == {8: None, 16: None}
    write(both.path(tmp_path), measured(both, {8: 0.25, 16: 0.5}))
    *_, alone = FrequencySweep("cpu", tasks=["image"], multiples=[1]).cells(["flexformer-n"], [0])
    write(alone.path(tmp_path), measured(alone, {16: 0.1}))
    assert speeds(sweep, tmp_path) == {8: 4.0, 16: 2.0}


def test_at_the_papers_scale_speeds_are_those_of_the_runs(tmp_path):
    sweep = FrequencySweep("paper", tasks=["image"], multiples=[1])
    for cell in sweep.cells(["flexformer-n"], [0, 1]):
        figures = {"metrics": {"test_accuracy": 0.5}, "step_seconds": 0.1 + 0.2 * cell.seed}
        kept = made("n-sweep", cell.name, dict(cell.labels), "paper", cell.seed, digest=cell.digest, **figures)
        write(cell.path(tmp_path), kept)
    assert speeds(sweep, tmp_path) == {16: pytest.approx(5.0)}


def test_measurement_does_not_depend_on_where_data_lives():
    here, there = (
        FrequencySweep("cpu", root, tasks=["image"], multiples=[1]).cells(["flexformer-n"], [0])[-1]
        for root in ("here", "there")
    )
    assert here.digest == there.digest
    assert here.jobs(None)[0].arguments["runs"]["16"]["options"]["data"]["root"] == "here"


def test_only_attentions_with_frequencies_are_swept():
    assert FrequencySweep("cpu").rows() == ("flexformer-s", "flexformer-n", "flexformer-c")


def test_multiple_that_leaves_no_frequency_is_refused():
    with pytest.raises(ValueError, match=r"multiple 0.01 of heads of 16 leaves no frequency"):
        FrequencySweep("paper", tasks=["image"], multiples=[0.01]).cells(["flexformer-n"], [0])
