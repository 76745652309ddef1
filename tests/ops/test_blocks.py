"""What block-wise attention keeps in memory, and the paths that depend on the machine."""

from __future__ import annotations

import weakref

import pytest
import torch

from flexformer import kernels, linear_attention, reference_attention
from flexformer.kernels.workspace import Workspace, fast_products
from flexformer.ops import blockwise_packed as packed_module
from flexformer.ops import recompute


def inputs(length, heads=2, dim=8, dtype=torch.float64, group=1, grad=True):
    q = torch.randn(1, heads * group, length, dim, dtype=dtype, requires_grad=grad)
    k, v = (torch.randn(1, heads, length, dim, dtype=dtype, requires_grad=grad) for _ in range(2))
    return q, k, v


def test_workspace_gives_the_same_memory_for_the_same_name():
    workspace = Workspace(torch.float32, torch.device("cpu"))
    first, smaller = workspace("a", 4, 5), workspace("a", 2, 5)
    assert workspace("a", 4, 5) is first
    assert smaller.data_ptr() == first.data_ptr()
    assert workspace("b", 4, 5).data_ptr() != first.data_ptr()


def test_workspace_lets_go_of_memory_that_became_too_small():
    workspace = Workspace(torch.float32, torch.device("cpu"))
    old = weakref.ref(workspace("a", 4))
    assert workspace("a", 8).shape == (8,)
    assert old() is None


@pytest.mark.parametrize("is_causal", [False, True])
def test_results_do_not_depend_on_the_block_length(kernel_name, is_causal, monkeypatch):
    kernel = kernels.build(kernel_name, num_heads=2, head_dim=8).double()
    q, k, v = inputs(300)
    results = []
    for numbers in (1, 2**12, 2**20):
        monkeypatch.setitem(recompute.BLOCK_NUMBERS, "cpu", numbers)
        out = linear_attention(q, k, v, kernel, is_causal=is_causal)
        results.append((out, *torch.autograd.grad(out.square().sum(), (q, k, v))))
    for other in results[1:]:
        for a, b in zip(results[0], other, strict=True):
            torch.testing.assert_close(a, b, rtol=1e-9, atol=1e-11)


def lengths_to_bounds(lengths):
    return torch.tensor([0, *lengths]).cumsum(0)


@pytest.mark.parametrize("lengths", [[7, 60, 1, 30], [70, 5, 0, 5, 90], [100], [0, 3], [40, 40, 40]])
def test_packed_groups_equal_separate_sequences(kernel_name, lengths, monkeypatch):
    monkeypatch.setattr(packed_module, "GROUP", 64)
    kernel = kernels.build(kernel_name, num_heads=2, head_dim=8).double()
    q, k, v = inputs(sum(lengths), group=2)
    bounds = lengths_to_bounds(lengths)
    visible = torch.rand(1, sum(lengths)) > 0.2
    parameters = kernel.trained_parameters()
    packed = linear_attention(q, k, v, kernel, key_mask=visible, cu_seqlens=bounds)
    separate = torch.cat(
        [
            reference_attention(q[:, :, a:b], k[:, :, a:b], v[:, :, a:b], kernel, key_mask=visible[:, a:b])
            for a, b in zip(bounds.tolist(), bounds[1:].tolist(), strict=False)
            if b > a
        ],
        dim=2,
    )
    torch.testing.assert_close(packed, separate, rtol=1e-8, atol=1e-10)
    cotangent = torch.randn_like(packed)
    expected = torch.autograd.grad(separate, (q, k, v, *parameters), cotangent)
    for a, b in zip(torch.autograd.grad(packed, (q, k, v, *parameters), cotangent), expected, strict=True):
        torch.testing.assert_close(a, b, rtol=1e-7, atol=1e-9)


def test_a_redraw_between_forward_and_backward_leaves_packed_gradients_alone(monkeypatch):
    monkeypatch.setattr(packed_module, "GROUP", 64)
    kernel = kernels.build("performer", num_heads=2, head_dim=8).double()
    q, k, v = inputs(80)
    bounds = lengths_to_bounds([20, 20, 40])
    expected = torch.autograd.grad(linear_attention(q, k, v, kernel, cu_seqlens=bounds).sum(), (q, k, v))
    out = linear_attention(q, k, v, kernel, cu_seqlens=bounds)
    kernel.redraw()
    for a, b in zip(torch.autograd.grad(out.sum(), (q, k, v)), expected, strict=True):
        torch.testing.assert_close(a, b)


@pytest.mark.parametrize("is_causal", [False, True])
def test_products_in_bfloat16_lose_only_what_rounding_takes(kernel_name, is_causal, monkeypatch):
    """What runs where a machine multiplies bfloat16 matrices fast, whatever this one does."""
    kernel = kernels.build(kernel_name, num_heads=2, head_dim=16)
    half = [x.detach().requires_grad_() for x in inputs(300, dim=16, dtype=torch.bfloat16)]
    exact = [x.detach().double().requires_grad_() for x in half]
    expected = reference_attention(*exact, kernel.double(), is_causal=is_causal)
    kernel.float()
    for module in ("blockwise_bidirectional", "blockwise_causal"):
        monkeypatch.setattr(f"flexformer.ops.{module}.fast_products", lambda dtype, device: dtype)
    out = linear_attention(*half, kernel, is_causal=is_causal)
    assert rms_error(out, expected) < 1e-2
    cotangent = torch.randn(out.shape).bfloat16()
    wanted = torch.autograd.grad(expected, exact, cotangent.double())
    for actual, reference in zip(torch.autograd.grad(out, half, cotangent), wanted, strict=True):
        assert rms_error(actual, reference) < 3e-2


def rms_error(actual, expected):
    return ((actual.double() - expected).square().mean() / expected.square().mean()).sqrt().item()


def test_products_stay_exact_on_cpus_and_in_float16():
    cpu = torch.device("cpu")
    for dtype in (torch.float32, torch.float16, torch.bfloat16):
        assert fast_products(dtype, cpu) is None  # whatever instructions it has
    assert fast_products(torch.float16, torch.device("cuda")) is None
    assert fast_products(torch.bfloat16, torch.device("cuda")) is torch.bfloat16
