"""Runs of `bench attention`, `scaling`, `decode` and `model`, small enough to mean nothing but that they work."""

import dataclasses
import math

import pytest
import torch

from flexformer import MultiheadAttention
from flexformer.bench import (
    AttentionOptions,
    DecodeOptions,
    ModelOptions,
    ScalingOptions,
    attention,
    measure_attention,
    measure_decode,
    measure_model,
    measure_scaling,
)
from flexformer.bench.attention import Forecast, Key
from flexformer.bench.decode import PREALLOCATED, step_after
from flexformer.bench.model import training_step, unfused_softmax
from flexformer.bench.operations import Operation, Row, own_rows
from flexformer.bench.scaling import drift, slope, slopes

TINY = AttentionOptions(
    lengths=(128, 64),
    rows=("softmax", "flexformer-n"),
    heads=2,
    head_dim=16,
    frequencies=16,
    rounds=2,
    seconds=0.05,
    memory=False,
)


def by_key(found):
    return {(m["row"], m["length"], m["pass"]): m for m in found["measurements"]}


def test_every_row_length_and_pass_has_a_figure_and_so_has_the_limit():
    found = by_key(measure_attention(TINY))
    expected = {
        (row, length, direction)
        for row in ("softmax", "flexformer-n", "limit")
        for length in (64, 128)
        for direction in ("forward", "forward+backward")
    }
    assert set(found) == expected
    for this in found.values():
        assert this["seconds"]["median"] > 0
        assert this["note"] is None
    limit = found["limit", 128, "forward"]
    total = sum(part["times"] * part["seconds"] for part in limit["parts"].values())
    assert math.isclose(total, limit["seconds"]["median"])


def test_the_same_call_is_timed_beside_each_length():
    found = measure_attention(TINY)
    assert [each["length"] for each in found["pace"]] == [64, 128]
    assert drift(found) >= 1.0
    assert drift({"pace": [{"seconds": 0.002}, {"seconds": 0.005}, {"seconds": 0.004}]}) == 2.5
    assert drift({}) == 1.0


def test_memory_stands_beside_time_where_it_is_asked_for():
    options = dataclasses.replace(TINY, lengths=(512,), rows=("flexformer-n",), passes=("forward",), memory=True)
    this = by_key(measure_attention(options))["flexformer-n", 512, "forward"]
    assert this["memory"]["input_bytes"] == 3 * 512 * 32 * 4
    assert this["memory"]["output_bytes"] == 512 * 32 * 4
    assert this["seconds"]["samples"] == 2


def test_a_row_over_the_budget_is_skipped_and_says_so():
    found = by_key(measure_attention(dataclasses.replace(TINY, budget=1e-6)))
    assert found["flexformer-n", 64, "forward"]["seconds"]  # the first length is tried: nothing is known before
    skipped = found["flexformer-n", 128, "forward"]
    assert skipped["seconds"] is None
    assert skipped["note"].startswith("skipped: about")


def test_a_row_that_raises_is_reported_and_the_others_are_measured(monkeypatch):
    def build(case):
        def attend(inputs):
            raise RuntimeError("not today")

        return Operation(attend)

    monkeypatch.setattr(attention, "own_rows", lambda: [*own_rows(), Row("broken", "other", build)])
    found = by_key(measure_attention(dataclasses.replace(TINY, rows=("broken", "softmax"), lengths=(64,))))
    assert found["broken", 64, "forward"]["note"] == "failed: not today"
    assert found["softmax", 64, "forward"]["seconds"]


def test_threads_are_left_as_they_were():
    before = torch.get_num_threads()
    measure_attention(dataclasses.replace(TINY, rows=("softmax",), lengths=(64,), threads=2))
    assert torch.get_num_threads() == before


@pytest.mark.parametrize(
    ("option", "value", "message"),
    [
        ("lengths", (), "lengths"),
        ("lengths", (64, 0), "each at least 1"),
        ("heads", 0, "heads 0 is too small"),
        ("budget", 0.0, "budget 0.0 is not a time"),
    ],
)
def test_options_without_meaning_are_refused(option, value, message):
    with pytest.raises(ValueError, match=message):
        AttentionOptions(**{option: value})


def test_the_forecast_goes_on_growing_as_it_grew():
    forecast, key = Forecast(), Key("row", "forward")
    assert forecast.seconds(key, 100) == 0.0
    forecast.add(key, 100, 1.0)
    assert forecast.seconds(key, 200) == 2.0
    forecast.add(key, 200, 4.0)
    assert math.isclose(forecast.seconds(key, 400), 16.0)


def test_slopes_are_the_powers_of_what_grows_as_a_power():
    assert math.isclose(slope([(n, 3 * n**1.5) for n in (10, 100, 1000)]), 1.5)
    assert slope([(1, 1.0), (2, 2.0)]) is None
    measurements = [
        {"row": "r", "pass": "forward", "length": n, "seconds": {"median": n**2}, "memory": {"peak_bytes": 5 * n}}
        for n in (2, 4, 8, 16)
    ] + [{"row": "r", "pass": "forward", "length": 32, "seconds": None, "memory": None}]
    (fit,) = slopes(measurements, fit_from=4)
    assert math.isclose(fit["time"], 2.0)
    assert math.isclose(fit["memory"], 1.0)


def test_scaling_fits_every_row():
    options = ScalingOptions(**{**dataclasses.asdict(TINY), "lengths": (64, 128, 256), "fit_from": 64})
    found = measure_scaling(options)
    assert {(fit["row"], fit["pass"]) for fit in found["slopes"]} >= {
        ("softmax", "forward"),
        ("flexformer-n", "forward"),
    }
    assert all(fit["time"] is not None for fit in found["slopes"])


def test_decoding_keeps_a_state_of_fixed_size_where_softmax_keeps_everything():
    options = DecodeOptions(
        contexts=(8, 32), rows=("softmax", PREALLOCATED, "flexformer-n"), heads=2, head_dim=8, rounds=2
    )
    kept = {(m["row"], m["context"]): m["state_bytes"] for m in measure_decode(options)["measurements"]}
    assert kept["flexformer-n", 8] == kept["flexformer-n", 32]
    assert kept["softmax", 32] == 4 * kept["softmax", 8] == 2 * 32 * 16 * 4


@torch.no_grad()
def test_softmax_decodes_as_after_taking_in_the_context_with_either_cache():
    options = DecodeOptions(heads=2, head_dim=8)
    torch.manual_seed(0)
    module = MultiheadAttention(16, 2, "softmax", is_causal=True).eval()
    x, token = torch.randn(1, 20, 16), torch.randn(1, 1, 16)
    _, state = module(x, return_state=True)
    expected = module(token, state=state)
    step = step_after("softmax", 20, options)
    torch.testing.assert_close(step.call(), expected)
    torch.testing.assert_close(step_after(PREALLOCATED, 20, options).call(), expected)
    assert step.state_bytes == state.k.nbytes + state.v.nbytes


@torch.no_grad()
def test_kernels_decode_as_after_taking_in_the_context_at_once():
    step = step_after("flexformer-n", 5000, DecodeOptions(heads=2, head_dim=8))  # taken in in two pieces
    torch.manual_seed(0)
    module = MultiheadAttention(16, 2, "flexformer-n", is_causal=True).eval()
    x, token = torch.randn(1, 5000, 16), torch.randn(1, 1, 16)
    torch.testing.assert_close(step.call(), module(torch.cat((x, token), 1))[:, -1:], rtol=1e-4, atol=1e-5)


SMALL_MODEL = ModelOptions(
    length=96, rows=("softmax", "softmax-unfused", "flexformer-n"), layers=1, width=32, feed_forward=64, rounds=2,
    seconds=0.05, memory=False,
)  # fmt: skip


def test_a_training_step_is_timed_with_every_attention():
    pytest.importorskip("transformers")
    found = {m["row"]: m for m in measure_model(SMALL_MODEL)["measurements"]}
    assert set(found) == set(SMALL_MODEL.rows)
    assert all(m["seconds"]["median"] > 0 for m in found.values())
    # two heads of sixteen frequencies of width sixteen, twice, and a tau each
    assert found["flexformer-n"]["parameters"] - found["softmax"]["parameters"] == 2 * (2 * 16 * 16 + 1)


def saved_shapes(row):
    step, _ = training_step(row, SMALL_MODEL, SMALL_MODEL.length)
    shapes = set()

    def pack(tensor):
        shapes.add(tuple(tensor.shape[-2:]))
        return tensor

    with torch.autograd.graph.saved_tensors_hooks(pack, lambda tensor: tensor):
        step()
    return shapes


def test_unfused_softmax_keeps_all_weights_for_the_backward_pass_and_fused_does_not():
    pytest.importorskip("transformers")
    tokens = SMALL_MODEL.length + 1  # and the class token
    assert (tokens, tokens) in saved_shapes("softmax-unfused")
    assert (tokens, tokens) in saved_shapes("softmax-unfused-dropout")
    assert (tokens, tokens) not in saved_shapes("softmax")
    assert (tokens, tokens) not in saved_shapes("flexformer-n")


def test_unfused_softmax_ends_with_its_context():
    q = torch.randn(1, 1, 8, 8, requires_grad=True)
    attend = torch.nn.functional.scaled_dot_product_attention
    with unfused_softmax():
        inside = attend(q, q, q).grad_fn.name()
    assert inside != attend(q, q, q).grad_fn.name()
