"""Calls are timed in turn."""

import time

import pytest
import torch

from flexformer.bench import timing
from flexformer.bench.timing import Failure, Timing, alternate, fixed_threads


def recorded(monkeypatch, shortest=0.0):
    monkeypatch.setattr(timing, "SHORTEST_SAMPLE", shortest)
    seen = []
    return seen, {name: lambda name=name: seen.append(name) for name in "abc"}


def test_calls_warm_up_then_take_turns_beginning_one_further_each_round(monkeypatch):
    seen, calls = recorded(monkeypatch)
    told = []
    alternate(calls, rounds=3, seconds=1.0, on_sample=lambda done, total: told.append((done, total)))
    assert "".join(seen) == "abc" + "abc" + "bca" + "cab"
    assert told == [(done, 12) for done in range(12)]


def test_quick_calls_are_repeated_until_a_sample_is_long_enough(monkeypatch):
    count = 0

    def quick():
        nonlocal count
        count += 1

    monkeypatch.setattr(time, "perf_counter", lambda: 0.001 * count)  # a clock that no other work disturbs

    found = alternate({"quick": quick}, rounds=2, seconds=1.0)["quick"]
    assert count > 8
    assert isinstance(found, Timing)
    assert (found.lower, found.median, found.upper) == pytest.approx((0.001, 0.001, 0.001))
    assert found.samples == 2


def test_a_call_that_raises_is_reported_in_one_line_and_stops_no_other():
    def broken():
        raise RuntimeError("no\nway")

    found = alternate({"broken": broken, "fine": lambda: None}, rounds=2, seconds=1.0)
    assert found["broken"] == Failure("failed: no way")
    assert isinstance(found["fine"], Timing)


def test_a_call_that_fails_later_is_reported_too(monkeypatch):
    monkeypatch.setattr(timing, "SHORTEST_SAMPLE", 0.0)
    answers = iter([None, None])
    found = alternate({"ends": lambda: next(answers)}, rounds=3, seconds=1.0)
    assert isinstance(found["ends"], Failure)


def test_slow_calls_leave_later_rounds_with_three_samples():
    found = alternate({"slow": lambda: time.sleep(0.02), "quick": lambda: None}, rounds=6, seconds=0.01)
    assert found["slow"].samples == 3
    assert alternate({"slow": lambda: time.sleep(0.02)}, rounds=6, seconds=10.0)["slow"].samples == 6


def test_median_and_quartiles_are_those_of_the_samples():
    assert Timing.of([3.0, 1.0, 2.0, 5.0, 4.0]) == Timing(3.0, 2.0, 4.0, 5)
    assert Timing.of([7.0]) == Timing(7.0, 7.0, 7.0, 1)


def test_threads_are_what_was_asked_for_and_afterwards_what_they_were():
    before = torch.get_num_threads()
    with fixed_threads(before + 1):
        assert torch.get_num_threads() == before + 1
    assert torch.get_num_threads() == before
