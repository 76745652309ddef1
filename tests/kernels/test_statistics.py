"""Trouble with signs and denominators is visible."""

import pytest
import torch

from flexformer import kernels
from flexformer.kernels import attention_weights


@pytest.mark.parametrize("is_causal", [False, True])
@pytest.mark.parametrize("policy", ["floor", "raw"])
def test_statistics_count_what_the_definition_shows(is_causal, policy):
    kernel = kernels.build("flexformer-n", 2, 8, frequency_scale=2.0, policy=policy, floor=0.1)
    q, k = torch.randn(2, 4, 300, 8), torch.randn(2, 2, 300, 8)
    key_mask = torch.rand(2, 300) > 0.2
    key_mask[:, 0] = True
    found = kernel.statistics(q, k, is_causal=is_causal, key_mask=key_mask)
    weights, den, w = attention_weights(q, k, kernel, is_causal=is_causal, key_mask=key_mask)
    visible = key_mask[:, None, None, :].expand_as(weights)
    if is_causal:
        visible = visible.tril()
    floored = {"floor": den < 0.1 * w, "raw": den.abs() < 0.1 * w}[policy]
    assert found.negative_weights == pytest.approx((weights < 0).sum().item() / visible.sum().item(), abs=1e-4)
    assert found.floored_rows == pytest.approx(floored.float().mean().item(), abs=1e-3)
    assert found.smallest_denominator == pytest.approx((den / w).min().item(), abs=1e-4)


def test_positive_kernels_have_no_negative_weights():
    q, k = torch.randn(2, 1, 2, 50, 8)
    for name in ("linear", "performer", "hedgehog", "polaformer", "cosformer"):
        found = kernels.build(name, 2, 8).statistics(q, k)
        assert found.negative_weights == 0
        assert found.smallest_denominator > 0


def test_the_default_start_is_healthy_and_the_literal_one_is_not():
    """At unit variance and d = n = 64 the paper's own start makes nearly half of all rows sum to less than zero."""
    q, k = torch.randn(2, 1, 4, 512, 64)
    for name in ("flexformer-s", "flexformer-n"):
        healthy = kernels.build(name, 4, 64).statistics(q, k)
        assert healthy.floored_rows == 0
        assert healthy.smallest_denominator > 0.1
        literal = kernels.build(name, 4, 64, frequency_scale=1.0).statistics(q, k)
        assert literal.negative_weights > 0.4
        assert literal.floored_rows > 0.4


def test_rows_that_see_nothing_do_not_count(kernel_name):
    q, k = torch.randn(2, 1, 2, 10, 8)
    found = kernels.build(kernel_name, 2, 8).statistics(q, k, key_mask=torch.zeros(1, 10, dtype=torch.bool))
    assert found.negative_weights == found.floored_rows == 0


def test_what_padding_holds_does_not_matter():
    kernel = kernels.build("flexformer-n", 2, 8)
    q, k = torch.randn(2, 1, 2, 30, 8)
    key_mask = torch.arange(30)[None] < 20
    expected = kernel.statistics(q, k, key_mask=key_mask)
    k[:, :, 20:] = torch.nan
    assert kernel.statistics(q, k, key_mask=key_mask) == expected
    with torch.autocast("cpu", dtype=torch.bfloat16):
        assert kernel.statistics(q, k, key_mask=key_mask) == expected


@pytest.mark.parametrize(
    ("q", "k", "arguments", "message"),
    [
        ((1, 2, 5, 4), (1, 2, 5, 8), {}, r"q has shape \(1, 2, 5, 4\); pass \(B, H, T, 8\)"),
        ((1, 3, 5, 8), (1, 2, 5, 8), {}, "q and k have 3 and 2 heads; the kernel has 2"),
        ((1, 2, 4, 8), (1, 2, 5, 8), {"is_causal": True}, "is_causal with 4 queries and 5 keys"),
        ((1, 2, 5, 8), (1, 2, 5, 8), {"key_mask": torch.ones(1, 4).bool()}, r"key_mask has shape \(1, 4\)"),
    ],
)
def test_a_wrong_argument_is_named(q, k, arguments, message):
    with pytest.raises(ValueError, match=message):
        kernels.build("linear", 2, 8).statistics(torch.zeros(q), torch.zeros(k), **arguments)
