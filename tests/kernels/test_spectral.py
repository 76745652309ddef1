"""The mathematics of the two Flexformer kernels."""

import math

import pytest
import torch

from flexformer import kernels
from flexformer.kernels import attention_weights
from flexformer.ops import linear_attention

SPECTRAL = ("flexformer-s", "flexformer-n")


def kappa(kernel, x, y):
    return kernel.query_features(x) @ kernel.key_features(y)[0].transpose(-1, -2)


def inputs(count=6, dim=8, heads=2, scale=1.0):
    return scale * torch.randn(2, 1, heads, count, dim, dtype=torch.float64)


def test_parameters_are_named_and_shaped_as_documented():
    stationary = kernels.build("flexformer-s", 3, 8, num_frequencies=5)
    shapes = {name: tuple(p.shape) for name, p in stationary.named_parameters()}
    assert shapes == {"omega": (3, 5, 8), "tau": (3,)}
    nonstationary = kernels.build("flexformer-n", 3, 8)
    shapes = {name: tuple(p.shape) for name, p in nonstationary.named_parameters()}
    assert shapes == {"omega1": (3, 8, 8), "omega2": (3, 8, 8), "tau": (3,)}


def test_the_stationary_kernel_is_a_mean_of_cosines_of_differences():
    kernel = kernels.build("flexformer-s", 2, 8, frequency_scale=1.0).double()
    x, y = inputs()
    angle = torch.einsum("bhxyd,hnd->bhxyn", x[:, :, :, None] - y[:, :, None], kernel.omega)
    torch.testing.assert_close(kappa(kernel, x, y), angle.cos().mean(-1))


def test_the_two_forms_of_the_nonstationary_kernel_agree():
    """Products of a and b against sums over the pair; the sums need the factor 1/(4n)."""
    kernel = kernels.build("flexformer-n", 2, 8, frequency_scale=1.0).double()
    x, y = inputs()
    torch.testing.assert_close(kappa(kernel, x, y), sums_over_pairs(kernel, x, y) / (4 * kernel.num_frequencies))


def sums_over_pairs(kernel, x, y):
    def waves(x):
        first, second = (x @ w.transpose(-1, -2) for w in (kernel.omega1, kernel.omega2))
        return torch.cat((first.cos() + second.cos(), first.sin() + second.sin()), -1)

    return waves(x) @ waves(y).transpose(-1, -2)


def test_the_papers_prefactor_loses_a_factor_four_that_cancels():
    """With sigma/(2 sqrt n) before the products the kernel is a quarter of the sums it stands for."""
    kernel = kernels.build("flexformer-n", 2, 8, frequency_scale=1.0).double()
    x, y = inputs()
    literal = kappa(kernel, x, y) / 4  # two sides with 1/2 each
    torch.testing.assert_close(4 * literal, sums_over_pairs(kernel, x, y) / (4 * kernel.num_frequencies))
    v = torch.randn(1, 2, 6, 3, dtype=torch.float64)
    weights, den, _ = attention_weights(x, y, kernel)
    torch.testing.assert_close(weights @ v / den[..., None], (weights / 4) @ v / (weights / 4).sum(-1)[..., None])


def test_equal_pairs_give_the_stationary_kernel():
    stationary = kernels.build("flexformer-s", 2, 8).double()
    nonstationary = kernels.build("flexformer-n", 2, 8).double()
    with torch.no_grad():
        nonstationary.omega1.copy_(stationary.omega)
        nonstationary.omega2.copy_(stationary.omega)
    x, y = inputs()
    torch.testing.assert_close(kappa(nonstationary, x, y), kappa(stationary, x, y))
    q, k, v = torch.randn(3, 1, 2, 20, 8, dtype=torch.float64)
    for is_causal in (False, True):
        torch.testing.assert_close(
            linear_attention(q, k, v, nonstationary, is_causal),
            linear_attention(q, k, v, stationary, is_causal),
        )


@pytest.mark.parametrize("name", SPECTRAL)
def test_kappa_is_positive_definite_and_at_most_one(name):
    kernel = kernels.build(name, 2, 8, frequency_scale=3.0).double()
    x, _ = inputs(40)
    gram = kappa(kernel, x, x)
    assert gram.abs().max() <= 1 + 1e-12
    assert torch.linalg.eigvalsh(gram).min() > -1e-10


def test_so_few_features_cannot_tell_all_pairs_apart():
    """Of vectors of length one in F dimensions the mean square of inner products is at least 1/F."""
    for scale in (0.25, 1.0, 30.0):
        kernel = kernels.build("flexformer-s", 1, 8, frequency_scale=scale).double()
        x, _ = inputs(200, heads=1)
        assert kappa(kernel, x, x).square().mean() >= 1 / kernel.num_features - 1e-12


@pytest.mark.parametrize("name", SPECTRAL)
def test_the_start_is_as_documented(name):
    kernel = kernels.build(name, 8, 64)
    for parameter in kernel.parameters():
        if parameter.dim() == 3:
            assert parameter.std().item() == pytest.approx(0.25 * 64**-0.25, rel=0.02)
    assert torch.allclose(kernel.tau, torch.tensor(math.log(2 * math.sqrt(64))))
    assert kernel.policy == "floor"


@pytest.mark.parametrize("name", SPECTRAL)
def test_a_matched_start_is_softmax_at_a_higher_temperature(name):
    """Expected weights are e^{c^2 s q.k}: many frequencies, frequencies of scale c and e^tau = 2/(s c^2)."""
    scaling, c = 0.3, 0.5
    kernel = kernels.build(
        name, 1, 8, num_frequencies=20000, frequency_scale=c, match_tau=True, scaling=scaling
    ).double()
    assert kernel.tau.item() == pytest.approx(math.log(2 / (scaling * c**2)))
    if name == "flexformer-n":
        with torch.no_grad():
            kernel.omega2.copy_(kernel.omega1)
    q, k = inputs(5, heads=1)
    weights, den, _ = attention_weights(q, k, kernel)
    expected = (c**2 * scaling * q @ k.transpose(-1, -2)).softmax(-1)
    torch.testing.assert_close(weights / den[..., None], expected, atol=0.01, rtol=0)


@pytest.mark.parametrize("centres", [False, True])
def test_independent_pairs_start_half_way_between_softmax_and_a_weight_that_queries_do_not_change(centres):
    """Of E kappa the half with w1 != w2 is e^{-sigma^2 (|q|^2 + |k|^2) / 2}: no query's business but for the factor."""
    scaling, c = 0.3, 0.5
    options = {"frequency_scale": c, "match_tau": True, "scaling": scaling, "centres": centres}
    kernel = kernels.build("flexformer-n", 1, 8, num_frequencies=40_000, **options).double()
    q, k = inputs(5, heads=1)
    linear = torch.zeros(5, dtype=torch.float64)
    if centres:
        with torch.no_grad():
            kernel.centre_q.normal_(std=0.5)
            kernel.centre_k.normal_(std=0.5)
        linear = ((k - kernel.centre_k) * kernel.centre_q).sum(-1).flatten()
    weights, den, _ = attention_weights(q, k, kernel)
    sharpness = c**2 * scaling
    # With centres both halves have their own factors, which cancel in each but not between the two.
    x, y = q - (kernel.centre_q if centres else 0), k - (kernel.centre_k if centres else 0)
    expected = (sharpness * x @ y.mT).exp() / 2 + 0.5
    expected = expected * (sharpness * linear).exp()
    torch.testing.assert_close(weights / den[..., None], expected / expected.sum(-1, keepdim=True), atol=0.01, rtol=0)


@pytest.mark.parametrize("name", SPECTRAL)
def test_the_softmax_start_converges_to_softmax_as_the_root_of_n(name):
    q, k = inputs(16, heads=1, scale=0.5)
    expected = (q @ k.transpose(-1, -2) / math.sqrt(8)).softmax(-1)
    errors = {}
    for n in (64, 256, 1024, 4096):
        found = []
        for seed in range(8):
            torch.manual_seed(seed)
            kernel = kernels.build(name, 1, 8, num_frequencies=n, softmax_start=True).double()
            weights, den, _ = attention_weights(q, k, kernel)
            found.append((weights / den[..., None] - expected).square().mean())
        errors[n] = torch.stack(found).mean().sqrt().item()
    assert errors[4096] < 2e-3
    slope = math.log(errors[4096] / errors[64]) / math.log(4096 / 64)
    assert -0.65 < slope < -0.35


def test_the_softmax_start_parts_pairs_a_little():
    kernel = kernels.build("flexformer-n", 2, 8, softmax_start=True)
    difference = (kernel.omega1 - kernel.omega2).std() / kernel.omega1.std()
    assert 0.005 < difference < 0.02


@pytest.mark.parametrize("name", SPECTRAL)
def test_the_query_norm_cancels_and_tau_acts_through_keys_alone(name):
    kernel = kernels.build(name, 1, 8).double()
    q, k, v = torch.randn(3, 1, 1, 10, 8, dtype=torch.float64)
    weights, den, _ = attention_weights(q, k, kernel)
    factor = (q.square().sum(-1) / kernel.tau.exp()).exp()[..., None]
    torch.testing.assert_close(
        factor * weights @ v / (factor * weights).sum(-1, keepdim=True), weights @ v / den[..., None]
    )
    phi_q = kernel.query_features(q)
    log_weight = kernel.key_features(k)[1]
    with torch.no_grad():
        kernel.tau.add_(math.log(2.0))
    assert torch.equal(kernel.query_features(q), phi_q)
    torch.testing.assert_close(kernel.key_features(k)[1], log_weight / 2)


@pytest.mark.parametrize("name", SPECTRAL)
def test_phases_give_the_papers_parameter_count(name):
    matrices = 1 if name == "flexformer-s" else 2
    kernel = kernels.build(name, 8, 64, phase_bias=True)
    assert sum(p.numel() for p in kernel.parameters()) == 8 * (matrices * (64 * 64 + 64) + 1)


def test_a_phase_is_dead_in_the_stationary_kernel_and_half_alive_in_the_other():
    x, y = inputs()
    stationary = kernels.build("flexformer-s", 2, 8, phase_bias=True).double()
    before = kappa(stationary, x, y)
    with torch.no_grad():
        stationary.phase.normal_()
    torch.testing.assert_close(kappa(stationary, x, y), before)

    kernel = kernels.build("flexformer-n", 2, 8, phase_bias=True).double()
    before = kappa(kernel, x, y)
    shift = torch.randn_like(kernel.phase1)
    with torch.no_grad():
        kernel.phase1.copy_(shift)
        kernel.phase2.copy_(shift)  # moves a alone
    torch.testing.assert_close(kappa(kernel, x, y), before)
    with torch.no_grad():
        kernel.phase2.copy_(-shift)  # moves b alone
    assert (kappa(kernel, x, y) - before).abs().max() > 0.01


def test_tau_can_be_frozen():
    kernel = kernels.build("flexformer-s", 2, 8, learn_tau=False)
    assert not kernel.tau.requires_grad


@pytest.mark.parametrize("name", SPECTRAL)
def test_a_large_tau_leaves_keys_without_a_weight_of_their_own(name):
    kernel = kernels.build(name, 2, 8, tau=100.0)
    assert torch.equal(kernel.tau, torch.full((2,), 100.0))
    q, k = (30 * torch.randn(1, 2, 20, 8) for _ in range(2))
    weights, _, _ = attention_weights(q, k, kernel)
    torch.testing.assert_close(weights, kernel.query_features(q) @ kernel.key_features(k)[0].mT)


@pytest.mark.parametrize("name", SPECTRAL)
def test_rotary_positions_leave_the_log_weight_alone(name):
    """A rotation keeps norms, so the running maximum does not depend on positions."""
    kernel = kernels.build(name, 1, 8).double()
    k = torch.randn(1, 1, 6, 8, dtype=torch.float64)
    rotation = torch.linalg.qr(torch.randn(8, 8, dtype=torch.float64))[0]
    torch.testing.assert_close(kernel.key_features(k @ rotation)[1], kernel.key_features(k)[1])


@pytest.mark.parametrize("name", SPECTRAL)
def test_raw_weights_keep_the_sign_of_the_denominator(name):
    kernel = kernels.build(name, 2, 8, frequency_scale=10.0, policy="raw").double()
    q, k, v = torch.randn(3, 1, 2, 50, 8, dtype=torch.float64)
    weights, den, _ = attention_weights(q, k, kernel)
    assert (den < -1e-4).any()
    torch.testing.assert_close(linear_attention(q, k, v, kernel), weights @ v / den[..., None])


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"num_frequencies": 0}, "num_frequencies 0 is too small"),
        ({"frequency_scale": 0.0}, "frequency_scale 0.0 is not a positive number"),
        ({"scaling": -1.0}, "scaling -1.0 is not a positive number"),
        ({"policy": "hope"}, "policy 'hope' is unknown"),
        ({"policy": "absolute"}, "policy 'absolute' is unknown to this kernel; use one of floor, raw"),
        ({"softmax_start": True, "frequency_scale": 0.5}, "frequency_scale 0.5 cannot go with softmax_start"),
        ({"floor": -0.1}, "floor -0.1 is not a positive number"),
        ({"softmax_start": True, "data_start": True}, "softmax_start and data_start are two starts"),
        ({"tau": math.inf}, "tau inf is not a finite number"),
        ({"tau": 3.0, "match_tau": True}, "tau 3.0 cannot go with match_tau"),
    ],
)
def test_a_wrong_option_is_named(options, message):
    for name in SPECTRAL:
        with pytest.raises(ValueError, match=message):
            kernels.build(name, 2, 8, **options)
