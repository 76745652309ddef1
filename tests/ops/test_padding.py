"""Padding counts for nothing, whatever it holds."""

import pytest
import torch

from flexformer import kernels
from flexformer.ops import linear_attention, reference_attention


def masks(length):
    left, right = torch.ones(2, length, dtype=torch.bool), torch.ones(2, length, dtype=torch.bool)
    left[0, :20], right[1, -25:] = False, False
    holes = torch.arange(2 * length).reshape(2, length) % 3 > 0
    return {"left": left, "right": right, "holes": holes}


@pytest.mark.parametrize("side", ["left", "right", "holes"])
@pytest.mark.parametrize("dtype", [torch.float32, torch.float16, torch.bfloat16])
@pytest.mark.parametrize("is_causal", [False, True])
def test_what_padding_holds_changes_nothing(kernel_name, is_causal, dtype, side):
    kernel = kernels.build(kernel_name, 2, 8)
    q, k, v = (torch.randn(2, 2, 70, 8).to(dtype) for _ in range(3))
    key_mask = masks(70)[side]
    hidden = ~key_mask[:, None, :, None]
    expected = linear_attention(q, k, v, kernel, is_causal, key_mask)
    for garbage in (min(1e9, torch.finfo(dtype).max), torch.finfo(dtype).max, torch.finfo(dtype).min):
        k2 = k.masked_fill(hidden, garbage).requires_grad_()
        v2 = v.masked_fill(hidden, garbage).requires_grad_()
        out = linear_attention(q, k2, v2, kernel, is_causal, key_mask)
        assert torch.equal(out, expected)
        out.sum().backward()
        for x in (k2, v2):
            assert torch.isfinite(x.grad).all()
            assert not x.grad.masked_select(hidden).any()


@pytest.mark.parametrize("is_causal", [False, True])
def test_a_row_with_no_visible_key_gives_zero_and_zero_gradients(kernel_name, is_causal):
    kernel = kernels.build(kernel_name, 2, 8)
    q, k, v = (torch.randn(2, 2, 70, 8, requires_grad=True) for _ in range(3))
    key_mask = torch.ones(2, 70, dtype=torch.bool)
    key_mask[0] = False
    for attention in (linear_attention, reference_attention):
        out = attention(q, k, v, kernel, is_causal, key_mask)
        assert not out[0].any()
        for gradient in torch.autograd.grad(out[0].sum(), (q, k, v)):
            assert not gradient.any()


@pytest.mark.parametrize("is_causal", [False, True])
def test_keys_that_are_all_masked_leave_the_initial_state_in_charge(kernel_name, is_causal):
    kernel = kernels.build(kernel_name, 2, 8).double()
    q, k, v = torch.randn(3, 1, 2, 20, 8, dtype=torch.float64)
    _, state = linear_attention(q, k, v, kernel, is_causal, return_state=True)
    nothing = torch.zeros(1, 20, dtype=torch.bool)
    out, after = linear_attention(
        q, k * 1e9, v * 1e9, kernel, is_causal, nothing, initial_state=state, return_state=True
    )
    assert torch.isfinite(out).all()
    for before, now in zip(state[:4], after[:4], strict=True):
        assert torch.equal(before, now)


def test_a_mask_that_hides_nothing_changes_nothing(kernel_name):
    kernel = kernels.build(kernel_name, 2, 8).double()
    q, k, v = torch.randn(3, 2, 2, 70, 8, dtype=torch.float64)
    everything = torch.ones(2, 70, dtype=torch.bool)
    for is_causal in (False, True):
        torch.testing.assert_close(
            linear_attention(q, k, v, kernel, is_causal, everything),
            linear_attention(q, k, v, kernel, is_causal),
        )
