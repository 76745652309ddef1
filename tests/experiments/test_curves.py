"""When a distillation counts as stable."""

from __future__ import annotations

import pytest
from made_cells import kernel_cell

from flexformer.experiments.curves import DistillationCurves, stable_from


@pytest.mark.parametrize(
    ("points", "step"),
    [
        ([(0, 1.0), (10, 0.5), (20, 0.2), (30, 0.13), (40, 0.1)], 30),
        ([(0, 1.0), (10, 0.1), (20, 0.1)], 10),
        ([(0, 1.0), (10, 0.1), (20, 0.4), (30, 0.1)], 30),  # near its end early, but not to stay
        ([(0, 1.0), (10, 1.2)], 10),  # never fell
        ([(0, 1.0), (10, 1.0)], 0),
    ],
)
def test_stable_is_near_the_end_and_stays_there(points, step):
    assert stable_from(points) == step


def result(label, lr, seed, points):
    start, *curve = points
    metrics = {"before_kl": start[1], "after_kl": curve[-1][1]}
    details = {"kl_by_layer": [0.1, 0.2], "curve_by_layer": [[step, [kl, 2 * kl]] for step, kl in curve]}
    return kernel_cell(
        label, lr, seed, "paper", metrics=metrics, curve=[list(point) for point in curve], details=details
    )


def test_table_shows_steps_beside_the_papers():
    found = [
        result("hedgehog", 0.01, 0, [(0, 1.0), (100, 0.2), (200, 0.1)]),
        result("hedgehog", 0.01, 1, [(0, 1.0), (100, 0.11), (200, 0.1)]),
    ]
    study = DistillationCurves("paper", None, "owner/model", "glue:qnli")
    (table,) = study.tables(found)
    first = table.rows[0]
    assert (first.label, first.values[1].mean, first.values[1].runs) == ("hedgehog", 150.0, 2)
    assert first.values[0].mean == 0.01
    assert (first.values[5].mean, first.values[6].mean) == (12_000, 60.0)
    flexformer = next(row for row in table.rows if row.label == "flexformer-n")
    assert flexformer.values[0] is flexformer.values[1] is None
    assert (flexformer.values[5].mean, flexformer.values[6].mean) == (8_000, 40.0)
    pictures = study.plot([table], found)
    assert pictures["png"].startswith(b"\x89PNG")
    assert pictures == study.plot([table], found)


def test_runs_have_the_rate_of_their_preset_and_forty_evaluations():
    cells = DistillationCurves("cpu", None, "owner/model", "glue:qnli").cells(["hedgehog", "flexformer-n"], [0, 1])
    assert [(cell.labels["map"], cell.labels["lr"], cell.seed) for cell in cells] == [
        ("hedgehog", 0.1, 0),
        ("flexformer-n", 0.03, 0),
        ("hedgehog", 0.1, 1),
        ("flexformer-n", 0.03, 1),
    ]
    training = cells[0].stage.options.training
    assert training.steps == 40 * training.evaluate_every
