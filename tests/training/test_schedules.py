"""Learning rates at the steps that the original code's settings name."""

from __future__ import annotations

import math

import pytest
import torch

from flexformer.training import ScheduleOptions, factor, scheduler


@pytest.mark.parametrize(
    ("base", "warmup", "steps", "step", "rate"),
    [
        (0.05, 1000, 5000, 1, 0.05 / 1000 / math.sqrt(1000)),
        (0.05, 1000, 5000, 1000, 1.58e-3),
        (0.05, 1000, 5000, 1001, 0.05 / math.sqrt(1001)),
        (0.05, 1000, 5000, 5000, 7.07e-4),
        (0.05, 8000, 20000, 8000, 5.59e-4),
        (0.05, 8000, 5000, 5000, 3.49e-4),
    ],
)
def test_rsqrt_rises_and_falls_as_in_listops_text_and_retrieval(base, warmup, steps, step, rate):
    assert base * factor("rsqrt", step, warmup, steps) == pytest.approx(rate, rel=2e-3)


@pytest.mark.parametrize(
    ("step", "rate"),
    [
        (1, 5e-4 / 175),
        (175, 5e-4),
        (176, 5e-4 * 0.5 * (1 + math.cos(math.pi / 35000))),
        (17675, 2.5e-4),
        (35000, 5e-4 * 0.5 * (1 + math.cos(math.pi * 34825 / 35000))),
    ],
)
def test_cosine_rises_and_falls_as_in_image(step, rate):
    assert 5e-4 * factor("cosine", step, 175, 35000) == pytest.approx(rate, rel=1e-9)


@pytest.mark.parametrize(("step", "rate"), [(1, 1.25e-7), (4000, 5e-4), (4001, 5e-4), (100_000, 1e-4)])
def test_inverse_sqrt_rises_and_falls_as_in_language_modelling(step, rate):
    assert 5e-4 * factor("inverse-sqrt", step, 4000, 100_000) == pytest.approx(rate, rel=1e-3)


@pytest.mark.parametrize(
    ("step", "rate"), [(1, 1e-5 / 320), (320, 1e-5), (321, 1e-5), (2829, 0.5e-5), (5336, 1e-5 / 5016), (5337, 0.0)]
)
def test_linear_rises_and_falls_to_nothing_as_in_fine_tuning(step, rate):
    assert 1e-5 * factor("linear", step, 320, 5336) == pytest.approx(rate, rel=1e-3)


@pytest.mark.parametrize("name", ["rsqrt", "cosine", "inverse-sqrt", "linear", "constant"])
def test_schedules_need_no_warm_up(name):
    assert factor(name, 1, 0, 10) == pytest.approx(1.0, rel=0.03)


def test_unknown_schedule_is_named():
    with pytest.raises(ValueError, match=r"schedule.name 'steps' is unknown; use one of rsqrt, cosine"):
        factor("steps", 1, 0, 10)


def test_first_optimiser_step_is_step_one():
    weight = torch.nn.Parameter(torch.zeros(1))
    optimizer = torch.optim.SGD([weight], lr=8.0)
    schedule = scheduler(optimizer, ScheduleOptions("constant", warmup=4), 10)
    rates = []
    for _ in range(6):
        rates.append(optimizer.param_groups[0]["lr"])
        optimizer.step()
        schedule.step()
    assert rates == [2.0, 4.0, 6.0, 8.0, 8.0, 8.0]
