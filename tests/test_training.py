"""The byte model of examples/byte_lm.py learns with every causal attention, and the literal formulas do not."""

import functools
import importlib.util
import math
from pathlib import Path
from typing import NamedTuple

import pytest
import torch

from flexformer import kernels

EXAMPLE = Path(__file__).resolve().parent.parent / "examples" / "byte_lm.py"
CAUSAL = ("softmax", *kernels.names())
LITERAL = {"frequency_scale": 1.0, "policy": "raw"}
FULL = 400


def load_example():
    spec = importlib.util.spec_from_file_location("byte_lm", EXAMPLE)
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


byte_lm = load_example()


class Run(NamedTuple):
    losses: list
    norms: list
    validation: float


@functools.cache
def run(attention, steps, options=()):
    torch.manual_seed(0)
    training, validation = byte_lm.standard_library()
    model = byte_lm.ByteLM(attention, **dict(options))
    norms = []
    losses = byte_lm.train(model, training, steps, on_step=lambda step, loss, norm: norms.append(norm))
    return Run(losses, norms, byte_lm.validate(model, validation))


def largest_jump(losses, window=20):
    """By how much a step's loss exceeds the mean of the steps before it, at worst."""
    return max(losses[i] - sum(losses[i - window : i]) / window for i in range(window, len(losses)))


@pytest.mark.parametrize("attention", ["flexformer-s", "flexformer-n"])
def test_the_byte_model_starts_to_learn(attention):
    found = run(attention, 40)
    assert math.isfinite(found.validation)
    assert found.validation < 3.6 < found.losses[0]
    assert largest_jump(found.losses) < 1.0


@pytest.mark.slow
@pytest.mark.parametrize("attention", CAUSAL)
def test_the_byte_model_trains_without_a_spike(attention):
    found = run(attention, FULL)
    assert largest_jump(found.losses) < 1.0
    assert found.validation < 2.6


@pytest.mark.slow
@pytest.mark.parametrize("attention", ["flexformer-s", "flexformer-n"])
def test_flexformer_ends_within_a_percent_of_softmax(attention):
    assert run(attention, FULL).validation < 1.01 * run("softmax", FULL).validation


@pytest.mark.slow
@pytest.mark.parametrize("attention", ["flexformer-s", "flexformer-n"])
def test_the_literal_formulas_fail(attention):
    """Frequencies as the paper starts them and no floor: weights cancel, gradients explode, little is learned."""
    literal = run(attention, FULL, tuple(LITERAL.items()))
    recipe = run(attention, FULL)
    assert literal.validation > 1.1 * recipe.validation
    assert max(literal.norms) > 10 * max(recipe.norms)


@pytest.mark.slow
def test_the_literal_formulas_start_badly():
    """The short version of the test above."""
    literal, recipe = run("flexformer-n", 40, tuple(LITERAL.items())), run("flexformer-n", 40)
    assert max(literal.norms) > 10 * max(recipe.norms)
    assert literal.validation > recipe.validation
    assert recipe.validation < 1.02 * run("softmax", 40).validation


def test_the_model_writes_from_a_carried_state():
    torch.manual_seed(0)
    model = byte_lm.ByteLM("flexformer-n").eval()
    text = byte_lm.write(model, "def ", 300, temperature=1.0)
    assert text.startswith("def ")
    tokens = torch.randint(256, (1, 40))
    whole, _ = model(tokens)
    first, states = model(tokens[:, :25])
    second, _ = model(tokens[:, 25:], states, start=25)
    torch.testing.assert_close(torch.cat((first, second), 1), whole, rtol=1e-4, atol=1e-4)
