"""The future cannot be seen, not even through rounding."""

import pytest
import torch

from flexformer import kernels
from flexformer.ops import linear_attention, reference_attention


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
