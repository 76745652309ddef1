"""Kernels by name, from here and from elsewhere."""

import inspect

import pytest
import torch

import flexformer
from flexformer import MultiheadAttention, kernels
from flexformer.kernels.registry import TAKEN


class Square(kernels.Kernel):
    """phi(x) = x^2"""

    def __init__(self, num_heads, head_dim, factor=1.0):
        super().__init__(num_heads, head_dim, head_dim, policy="absolute", floor=1e-6)
        self.factor = factor

    def query_features(self, q, positions=None):
        return q.square() * self.factor

    def key_features(self, k, positions=None):
        return k.square(), None


@pytest.fixture
def square():
    return kernels.register("square")(Square)


def test_a_kernel_from_elsewhere_serves_every_form(square):
    assert "square" in kernels.names()
    assert kernels.options("square") == {"factor": 1.0}
    kernel = kernels.build("square", 2, 8, factor=2.0)
    q, k, v = torch.randn(3, 1, 2, 20, 8)
    for is_causal in (False, True):
        torch.testing.assert_close(
            flexformer.linear_attention(q, k, v, kernel, is_causal),
            flexformer.reference_attention(q, k, v, kernel, is_causal),
        )
    module = flexformer.MultiheadAttention(16, 2, attention="square", is_causal=True, factor=2.0)
    assert module(torch.randn(1, 5, 16)).shape == (1, 5, 16)


def test_a_name_is_given_once(square):
    with pytest.raises(ValueError, match="name 'square' is taken by Square"):
        kernels.register("square")(type("Other", (Square,), {}))


def test_the_same_class_once_more_replaces_itself(square):
    """As when a notebook cell is run again."""
    again = type("Square", (Square,), {"__qualname__": Square.__qualname__, "__module__": Square.__module__})
    assert kernels.register("square")(again) is again
    assert type(kernels.build("square", 2, 8)) is again


def test_options_that_modules_take_themselves_are_refused():
    taken = set(inspect.signature(MultiheadAttention).parameters) - {"options", "num_heads", "head_dim"}
    assert taken == TAKEN

    class Biased(Square):
        def __init__(self, num_heads, head_dim, bias=False):
            super().__init__(num_heads, head_dim)

    with pytest.raises(ValueError, match="Biased has an option 'bias', which MultiheadAttention has too"):
        kernels.register("biased")(Biased)
    assert "biased" not in kernels.names()


def test_only_kernels_register():
    with pytest.raises(TypeError, match=r"not a subclass of flexformer\.kernels\.Kernel"):
        kernels.register("other")(torch.nn.Linear)
    with pytest.raises(ValueError, match="name '' is not a kernel name"):
        kernels.register("")


def test_an_unknown_name_lists_the_known_ones():
    with pytest.raises(ValueError, match=r"kernel 'flexformer' is unknown; use one of .*flexformer-s"):
        kernels.build("flexformer", 2, 8)


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ({"num_features": 8, "policy": "soft", "floor": 1.0}, "policy 'soft' is unknown; use one of floor"),
        ({"num_features": 8, "policy": "floor", "floor": 0.0}, "floor 0.0 is not a positive number"),
        ({"num_features": 0, "policy": "floor", "floor": 0.1}, "num_features 0 is too small"),
    ],
)
def test_a_kernel_checks_what_its_base_is_given(arguments, message):
    with pytest.raises(ValueError, match=message):
        kernels.Kernel(2, 8, **arguments)
