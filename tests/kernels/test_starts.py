"""Where frequencies start: orthogonal draws, and the shape of the data's spread."""

from __future__ import annotations

import pytest
import torch

from flexformer import kernels
from flexformer.kernels.starts import shape_of, spread

LEARNED = {"flexformer-s": {}, "flexformer-n": {}, "flexformer-c": {"num_real": "half"}}
"""name -> options that give a kernel all the frequencies it can have"""


@pytest.mark.parametrize("name", LEARNED)
def test_orthogonal_frequencies_are_orthogonal_within_blocks(name: str) -> None:
    kernel = kernels.build(name, 3, 8, num_frequencies=16, orthogonal=True, **LEARNED[name])
    for frequencies in (getattr(kernel, parameter) for parameter in kernel.frequency_names):
        for rows in frequencies.detach().split(8, dim=1):
            products = rows @ rows.mT
            off_diagonal = products - torch.diag_embed(products.diagonal(dim1=-2, dim2=-1))
            assert off_diagonal.abs().max() < 1e-5 * products.abs().max()


@pytest.mark.parametrize("name", LEARNED)
def test_orthogonal_frequencies_have_the_spread_of_independent_ones(name: str) -> None:
    torch.manual_seed(0)
    one, other = (
        kernels.build(name, 4, 32, num_frequencies=512, orthogonal=wanted, **LEARNED[name]) for wanted in (True, False)
    )
    for parameter in one.frequency_names:
        torch.testing.assert_close(getattr(one, parameter).std(), getattr(other, parameter).std(), rtol=0.02, atol=0.0)


@pytest.mark.parametrize("name", LEARNED)
def test_data_start_follows_the_spread_of_queries_and_keys(name: str) -> None:
    torch.manual_seed(0)
    kernel = kernels.build(name, 2, 4, num_frequencies=4096, data_start=True, **LEARNED[name])
    before = {parameter: getattr(kernel, parameter).detach().square().mean() for parameter in kernel.frequency_names}
    scale = torch.tensor([4.0, 1.0, 1.0, 0.0])
    q, k = (torch.randn(3, heads, 500, 4) * scale + 7.0 for heads in (4, 2))
    kernel.initialise_from_data(q, k)
    for parameter in kernel.frequency_names:
        frequencies = getattr(kernel, parameter).detach()
        found = frequencies.square().mean((0, 1))
        torch.testing.assert_close(found / found.sum(), scale.square() / 18.0, rtol=0.1, atol=1e-3)
        torch.testing.assert_close(frequencies.square().mean(), before[parameter], rtol=0.1, atol=0.0)
    kernel.initialise_from_data(q, k)  # starts anew and does not bend what is bent
    again = getattr(kernel, kernel.frequency_names[0]).detach().square().mean((0, 1))
    torch.testing.assert_close(again / again.sum(), scale.square() / 18.0, rtol=0.1, atol=1e-3)


@pytest.mark.parametrize("name", LEARNED)
def test_without_data_start_frequencies_stay(name: str) -> None:
    kernel = kernels.build(name, 2, 4, centres=True)
    before = {key: value.clone() for key, value in kernel.state_dict().items()}
    kernel.initialise_from_data(torch.randn(1, 2, 9, 4), torch.randn(1, 2, 9, 4))
    changed = {key for key, value in kernel.state_dict().items() if not torch.equal(value, before[key])}
    assert changed == {"centre_q", "centre_k"}


@pytest.mark.parametrize(
    ("q", "k", "message"),
    [
        (torch.randn(1, 3, 5, 4), torch.randn(1, 2, 5, 4), r"q has shape \(1, 3, 5, 4\).*multiple of 2 heads"),
        (torch.randn(1, 2, 5, 4), torch.randn(1, 2, 5, 3), r"k has shape \(1, 2, 5, 3\).*width 4"),
        (torch.randn(1, 2, 5, 4), torch.full((1, 2, 5, 4), torch.nan), "k is not finite"),
        (1e25 * torch.randn(1, 2, 5, 4), torch.randn(1, 2, 5, 4), "q is too large"),
        (torch.randn(1, 4, 5, 4), torch.randn(1, 4, 5, 4), "k has shape .* with 2 heads and width 4"),
    ],
)
def test_data_that_cannot_be_started_from_is_named(q, k, message) -> None:
    kernel = kernels.build("flexformer-c", 2, 4, centres=True, data_start=True)
    before = {key: value.clone() for key, value in kernel.state_dict().items()}
    with pytest.raises(ValueError, match=message):
        kernel.initialise_from_data(q, k)
    assert all(torch.equal(value, before[key]) for key, value in kernel.state_dict().items())


def test_spread_is_that_of_visible_tokens() -> None:
    x, mask = torch.randn(3, 2, 11, 4), torch.rand(3, 11) < 0.6
    mean, covariance = spread(x.masked_fill(~mask[:, None, :, None], torch.nan), mask)
    for head in range(2):
        seen = x[:, head][mask]
        torch.testing.assert_close(mean[head], seen.mean(0))
        torch.testing.assert_close(covariance[head], torch.cov(seen.T, correction=0))


def test_inputs_that_are_all_alike_leave_frequencies_as_drawn() -> None:
    torch.testing.assert_close(shape_of(torch.zeros(2, 4, 4)), torch.eye(4).expand(2, 4, 4))


@pytest.mark.parametrize("name", LEARNED)
@pytest.mark.parametrize("option", ["orthogonal", "data_start"])
def test_options_must_be_flags(name: str, option: str) -> None:
    with pytest.raises((TypeError, ValueError), match=option):
        kernels.build(name, 2, 4, **{option: "yes"})
