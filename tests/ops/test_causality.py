"""The future cannot be seen, not even through rounding."""

import pytest
import torch
from torch.utils.flop_counter import FlopCounterMode

from flexformer import kernels
from flexformer.ops import linear_attention, reference_attention, traced
from flexformer.ops.arguments import empty_state


@pytest.mark.parametrize("magnitude", [1.0, 1e4])
@pytest.mark.parametrize("position", [0, 1, 40, 63, 64, 129])
def test_changing_a_token_leaves_earlier_outputs_bit_identical(kernel_name, position, magnitude):
    kernel = kernels.build(kernel_name, 2, 16)
    q, k, v = torch.randn(3, 2, 2, 130, 16)
    changed = [x.clone() for x in (q, k, v)]
    for x in changed:
        replacement = torch.randn(16)
        x[:, :, position] = replacement / replacement.norm() * magnitude
    for chunk in (16, 64, 200):
        before = linear_attention(q, k, v, kernel, True, chunk_size=chunk)
        after = linear_attention(*changed, kernel, True, chunk_size=chunk)
        assert torch.equal(before[:, :, :position], after[:, :, :position])
        assert not torch.equal(before[:, :, position], after[:, :, position])


def test_changing_a_token_leaves_earlier_outputs_bit_identical_when_packed_or_grouped(kernel_name):
    kernel = kernels.build(kernel_name, 2, 16)
    q, k, v = torch.randn(1, 6, 130, 16), *torch.randn(2, 1, 2, 130, 16)
    changed = [x.clone() for x in (q, k, v)]
    for x in changed:
        x[:, :, 90] = 1e4
    for boundaries in (None, torch.tensor([0, 50, 130])):
        before = linear_attention(q, k, v, kernel, True, cu_seqlens=boundaries)
        after = linear_attention(*changed, kernel, True, cu_seqlens=boundaries)
        assert torch.equal(before[:, :, :90], after[:, :, :90])


def test_packed_sequences_do_not_see_each_other(kernel_name):
    kernel = kernels.build(kernel_name, 2, 16)
    q, k, v = torch.randn(3, 1, 2, 130, 16)
    boundaries = torch.tensor([0, 30, 70, 130])
    for is_causal in (False, True):
        before = linear_attention(q, k, v, kernel, is_causal, cu_seqlens=boundaries)
        k2, v2 = k.clone(), v.clone()
        k2[:, :, 30:70], v2[:, :, 30:70] = 1e4, 1e4
        after = linear_attention(q, k2, v2, kernel, is_causal, cu_seqlens=boundaries)
        assert torch.equal(before[:, :, :30], after[:, :, :30])
        assert torch.equal(before[:, :, 70:], after[:, :, 70:])


@pytest.mark.parametrize("name", ["flexformer-s", "flexformer-n", "performer"])
def test_a_huge_later_key_does_not_drown_earlier_rows(name):
    """The running maximum is each row's own: with one for the whole sequence these rows would be zero."""
    kernel = kernels.build(name, 1, 16).double()
    q, k, v = torch.randn(3, 1, 1, 130, 16, dtype=torch.float64)
    k[:, :, 100] *= 1e3
    expected = reference_attention(q[:, :, :100], k[:, :, :100], v[:, :, :100], kernel, True)
    out = linear_attention(q.float(), k.float(), v.float(), kernel, True)
    torch.testing.assert_close(out[:, :, :100].double(), expected, rtol=1e-4, atol=1e-5)


@pytest.mark.parametrize("count", [64, 65, 96, 131])
def test_many_chunks_in_plain_operations_equal_the_definition(kernel_name, count):
    kernel = kernels.build(kernel_name, 2, 8).double()
    leaves = [torch.randn(2, 2, 2 * count, 8, dtype=torch.float64, requires_grad=True) for _ in range(3)]
    mask = torch.rand(2, 2 * count) > 0.3
    mask[0, : count + 9] = False
    positions = torch.arange(2 * count) if kernel.uses_positions else None
    state = empty_state(kernel, *leaves)
    out, after = traced.causal(*leaves, kernel, mask, state, kernel.floor, positions, 2)
    expected = reference_attention(*leaves, kernel, True, mask)
    torch.testing.assert_close(out, expected, rtol=1e-9, atol=1e-10)
    cotangent = torch.randn_like(out)
    found, wanted = (torch.autograd.grad(each, leaves, cotangent) for each in (out, expected))
    torch.testing.assert_close(found, wanted, rtol=1e-7, atol=1e-9)
    _, whole = linear_attention(*leaves, kernel, True, mask, return_state=True)
    for mine, other in zip(after[:4], whole[:4], strict=True):
        torch.testing.assert_close(mine, other, rtol=1e-9, atol=1e-10)


def test_plain_operations_take_time_in_proportion_to_the_length():
    def flops(length):
        kernel = kernels.build("flexformer-n", 1, 64).to("meta")
        q = torch.empty(1, 1, length, 64, device="meta")
        with FlopCounterMode(display=False) as counter:
            traced.causal(q, q, q, kernel, None, empty_state(kernel, q, q, q), kernel.floor, None, 64)
        return counter.get_total_flops() / length

    assert flops(2**18) < 1.2 * flops(2**14)
