"""Peak memory is the high-water mark of a process of its own above what it held before."""

import os
import sys

import pytest

from flexformer.bench import AttentionOptions
from flexformer.bench.memory import Memory, Probe
from flexformer.bench.timing import Failure

pytestmark = pytest.mark.skipif(not hasattr(os, "fork"), reason="children are forked")
linux = pytest.mark.skipif(not sys.platform.startswith("linux"), reason="reads /proc")

MIB = 2**20


@pytest.fixture(scope="module")
def probe():
    with Probe(threads=1, timeout=60) as probe:
        yield probe


@linux
def test_peak_counts_what_was_given_back_before_the_call_returned(probe):
    memory = probe.measure("probe_targets:allocate", mebibytes=64)
    assert isinstance(memory, Memory)
    assert 63 * MIB <= memory.peak_bytes <= 72 * MIB
    assert (memory.input_bytes, memory.output_bytes) == (MIB, 16)


@linux
def test_jobs_do_not_find_memory_that_earlier_ones_left(probe):
    large, small = (probe.measure("probe_targets:allocate", mebibytes=size) for size in (64, 8))
    assert 7 * MIB <= small.peak_bytes <= 16 * MIB < large.peak_bytes


@linux
def test_attention_that_forms_all_weights_shows_them(probe):
    options = AttentionOptions(heads=2, head_dim=16, frequencies=16)
    found = {}
    for row in ("softmax-unfused", "flexformer-n"):
        case = vars(options.case(2048))
        found[row] = probe.measure("flexformer.bench.attention:probe_call", row=row, case=case, direction="forward")
    weights = 2 * 2048 * 2048 * 4
    assert found["softmax-unfused"].peak_bytes >= weights
    assert found["flexformer-n"].peak_bytes < weights / 4
    assert found["flexformer-n"].input_bytes == 3 * 2048 * 32 * 4


@pytest.mark.parametrize(
    ("target", "reason"),
    [
        ("fail", "failed: this was never going to work"),
        ("die", "failed: ended by signal 9"),
        ("not_a_number", "failed: outputs or gradients are not finite"),
        ("too_much", "failed: "),
        ("missing", "failed: "),
    ],
)
def test_a_job_that_fails_says_why_and_the_next_one_runs(probe, target, reason):
    failure = probe.measure(f"probe_targets:{target}")
    assert isinstance(failure, Failure)
    assert failure.reason.startswith(reason)
    assert isinstance(probe.measure("probe_targets:allocate", mebibytes=1), Memory)


def test_what_a_job_prints_does_not_disturb_its_answer(probe):
    assert isinstance(probe.measure("probe_targets:chatty"), Memory)


def test_a_job_that_takes_too_long_is_ended():
    with Probe(threads=1, timeout=1) as probe:
        assert probe.measure("probe_targets:sleep") == Failure("failed: took too long")


def test_a_measuring_process_that_is_gone_is_replaced(probe):
    probe._running().kill()
    probe._running().wait()
    assert probe.measure("probe_targets:chatty") == Failure("failed: the measuring process ended")
    assert isinstance(probe.measure("probe_targets:chatty"), Memory)
