"""The ops compile without graph breaks and export with their state."""

import pytest
import torch

from flexformer import kernels
from flexformer.ops import State, linear_attention


@pytest.fixture(autouse=True)
def fresh_compiler():
    torch.compiler.reset()
    yield
    torch.compiler.reset()


COMPILED_FORMS = ("bidirectional", "causal", "masked", "packed", "state")
# Tracing takes seconds a case: the quick slice has every form once and every kernel once.
QUICK = {("flexformer-n", form) for form in COMPILED_FORMS} | {(name, "causal") for name in kernels.names()}


@pytest.mark.parametrize(
    ("kernel_name", "form"),
    [
        pytest.param(name, form, marks=() if (name, form) in QUICK else pytest.mark.slow)
        for name in kernels.names()
        for form in COMPILED_FORMS
    ],
)
def test_compiling_breaks_no_graph_and_changes_no_result(kernel_name, form):
    kernel = kernels.build(kernel_name, 2, 8)
    arguments = {"is_causal": form in ("causal", "packed", "state")}
    if form == "masked":
        arguments["key_mask"] = torch.rand(1, 70) > 0.3
    if form == "packed":
        arguments["cu_seqlens"] = torch.tensor([0, 30, 70])
    if form == "state":
        arguments["initial_state"] = linear_attention(*torch.randn(3, 1, 2, 9, 8), kernel, return_state=True)[1]
        arguments["return_state"] = True
    inputs = torch.randn(3, 1, 2, 70, 8)
    eager, eager_gradient = with_gradient(linear_attention, inputs, kernel, arguments)
    compiled = torch.compile(linear_attention, fullgraph=True, backend="aot_eager")
    out, gradient = with_gradient(compiled, inputs, kernel, arguments)
    torch.testing.assert_close(out, eager, rtol=1e-5, atol=1e-5)
    torch.testing.assert_close(gradient, eager_gradient, rtol=1e-5, atol=1e-5)


def with_gradient(attention, inputs, kernel, arguments):
    leaf = inputs.clone().requires_grad_()
    out = attention(*leaf, kernel, **arguments)
    out = out[0] if isinstance(out, tuple) else out
    return out.detach(), torch.autograd.grad(out.square().sum(), leaf)[0]


@pytest.mark.parametrize("is_causal", [False, pytest.param(True, marks=pytest.mark.slow)])
def test_one_graph_serves_many_lengths(is_causal):
    kernel = kernels.build("flexformer-n", 2, 8)
    graphs = []

    def count(graph, inputs):
        graphs.append(graph)
        return graph

    compiled = torch.compile(linear_attention, fullgraph=True, backend=count, dynamic=True)
    for length in (70, 130, 200, 333, 512, 700, 900, 1025, 1500, 2000, 4160, 5000, 7000, 8191):
        q, k, v = torch.randn(3, 1, 2, length, 8)
        expected = linear_attention(q, k, v, kernel, is_causal)
        torch.testing.assert_close(compiled(q, k, v, kernel, is_causal), expected, rtol=1e-4, atol=1e-5)
        if length <= 4096:
            short = len(graphs)
    assert short <= 3
    assert len(graphs) <= short + 2 * is_causal


@pytest.mark.slow
@pytest.mark.parametrize("is_causal", [False, True])
@pytest.mark.parametrize("name", ["flexformer-n", "flexformer-s", "performer"])
def test_inductor_changes_no_result(name, is_causal):
    kernel = kernels.build(name, 2, 8)
    inputs = torch.randn(3, 1, 2, 70, 8)
    arguments = {"is_causal": is_causal}
    eager, eager_gradient = with_gradient(linear_attention, inputs, kernel, arguments)
    out, gradient = with_gradient(torch.compile(linear_attention, fullgraph=True), inputs, kernel, arguments)
    torch.testing.assert_close(out, eager, rtol=1e-4, atol=1e-5)
    torch.testing.assert_close(gradient, eager_gradient, rtol=1e-4, atol=1e-4)


class Step(torch.nn.Module):
    """One token in, one out, the state explicit."""

    def __init__(self, kernel):
        super().__init__()
        self.kernel = kernel

    def forward(self, q, k, v, S, z, w, m, length):
        state = State(S, z, w, m, length)
        out, state = linear_attention(q, k, v, self.kernel, True, initial_state=state, return_state=True)
        return (out, *state)


def test_a_decoding_step_exports_with_explicit_state(kernel_name):
    kernel = kernels.build(kernel_name, 2, 8)
    q, k, v = torch.randn(3, 1, 2, 12, 8)
    expected = linear_attention(q, k, v, kernel, True)
    state = State.empty(1, 2, kernel.num_features, 8)
    example = (q[:, :, :1], k[:, :, :1], v[:, :, :1], *state)
    step = torch.export.export(Step(kernel), example).module()
    for t in range(12):
        here = slice(t, t + 1)
        out, *state = step(q[:, :, here], k[:, :, here], v[:, :, here], *state)
        torch.testing.assert_close(out, expected[:, :, here], rtol=1e-4, atol=1e-5)


class Whole(torch.nn.Module):
    def __init__(self, kernel):
        super().__init__()
        self.kernel = kernel

    def forward(self, q, k, v):
        return linear_attention(q, k, v, self.kernel, True)


def test_a_whole_sequence_exports_with_its_length():
    module = Whole(kernels.build("flexformer-n", 2, 8))
    qkv = tuple(torch.randn(3, 1, 2, 200, 8))
    exported = torch.export.export(module, qkv).module()
    torch.testing.assert_close(exported(*qkv), module(*qkv), rtol=1e-4, atol=1e-5)
