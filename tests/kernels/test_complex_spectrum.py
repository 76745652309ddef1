"""The complex spectrum and the centres all Flexformer kernels can have."""

from __future__ import annotations

import pytest
import torch

from flexformer import kernels, linear_attention, reference_attention
from flexformer.kernels import attention_weights
from flexformer.kernels.base import SMALLEST_DENOMINATOR

VARIANTS = [
    ("flexformer-c", {"num_real": 8}),
    ("flexformer-c", {"num_real": 0, "centres": True}),
    ("flexformer-c", {"num_real": 8, "centres": True}),
    ("flexformer-c", {"centres": True, "learn_beta": False}),
    ("flexformer-s", {"centres": True}),
    ("flexformer-n", {"centres": True, "phase_bias": True}),
]


def disturbed(name, heads=2, dim=8, scale=0.1, **options):
    """A kernel in float64 that has left its start."""
    kernel = kernels.build(name, heads, dim, **options).double()
    with torch.no_grad():
        for parameter in kernel.parameters():
            parameter += scale * torch.randn_like(parameter)
    return kernel


def value(kernel, q, k):
    """k(q, k) of single vectors (T, D) and (S, D), head 0: (T, S)."""
    phi_q = kernel.query_features(q[None, None].expand(1, kernel.num_heads, -1, -1))[0, 0]
    phi_k, g = kernel.key_features(k[None, None].expand(1, kernel.num_heads, -1, -1))
    return (phi_q @ phi_k[0, 0].T) * g[0, 0].exp()


def gram(kernel, x):
    """The symmetric kernel: with the factor that the query's side leaves out put back."""
    _, g = kernel.key_features(x[None, None].expand(1, kernel.num_heads, -1, -1))
    return value(kernel, x, x) * g[0, 0].exp()[:, None]


@pytest.mark.parametrize("is_causal", [False, True])
@pytest.mark.parametrize("masked", [False, True])
@pytest.mark.parametrize(("name", "options"), VARIANTS)
def test_every_variant_equals_the_definition_with_all_gradients(name, options, masked, is_causal):
    kernel = disturbed(name, **options)
    q = torch.randn(3, 4, 150, 8, dtype=torch.float64, requires_grad=True)
    k, v = (torch.randn(3, 2, 150, 8, dtype=torch.float64, requires_grad=True) for _ in range(2))
    key_mask = torch.rand(3, 150) > 0.3 if masked else None
    inputs = (q, k, v, *kernel.trained_parameters())
    cotangent = torch.randn(3, 4, 150, 8, dtype=torch.float64)
    results = []
    for attention in (linear_attention, reference_attention):
        out = attention(q, k, v, kernel, is_causal=is_causal, key_mask=key_mask)
        results.append((out, *torch.autograd.grad(out, inputs, cotangent)))
    for actual, expected in zip(*results, strict=True):
        torch.testing.assert_close(actual, expected, rtol=1e-8, atol=1e-9 * expected.detach().abs().max().item())


@pytest.mark.parametrize("num_real", [0, 8, "all"])
def test_weights_are_the_formula(num_real):
    kernel = disturbed("flexformer-c", num_real=num_real)
    q, k = torch.randn(5, 8, dtype=torch.float64), torch.randn(7, 8, dtype=torch.float64)
    alpha = kernel.alpha[0]
    expected = torch.zeros(5, 7, dtype=torch.float64)
    for i, a in enumerate(alpha):
        pair = i - kernel.num_real
        wave = torch.ones(5, 7, dtype=torch.float64)
        if pair >= 0:
            wave = ((q @ kernel.omega[0, pair])[:, None] - k @ kernel.omega[0, pair]).cos()
        expected += ((q @ a)[:, None] + k @ a).exp() * wave
    expected *= (kernel.beta[0] * k.square().sum(-1)).exp()
    ratio = value(kernel, q, k) / expected
    torch.testing.assert_close(ratio, ratio[:, :1].expand_as(ratio))  # a factor of the query cancels


@pytest.mark.parametrize("num_real", [0, 8, "all"])
def test_the_complex_spectrum_is_positive_definite(num_real):
    kernel = disturbed("flexformer-c", scale=0.5, num_real=num_real)
    matrix = gram(kernel, torch.randn(40, 8, dtype=torch.float64))
    torch.testing.assert_close(matrix, matrix.T)
    scaled = matrix / (matrix.diagonal()[:, None] * matrix.diagonal()).sqrt()
    assert torch.linalg.eigvalsh(scaled).min() > -1e-10


def test_without_growth_it_is_the_stationary_kernel():
    stationary = disturbed("flexformer-s")
    kernel = kernels.build("flexformer-c", 2, 8, num_real=0).double()
    with torch.no_grad():
        kernel.alpha.zero_()
        kernel.omega.copy_(stationary.omega)
        kernel.beta.copy_(stationary.tau.neg().exp())
    q, k, v = (torch.randn(1, 2, 50, 8, dtype=torch.float64) for _ in range(3))
    torch.testing.assert_close(
        linear_attention(q, k, v, kernel), linear_attention(q, k, v, stationary), rtol=1e-9, atol=1e-11
    )


def test_the_diagonal_of_the_complex_spectrum_is_convex_and_that_of_the_nonstationary_kernel_is_not():
    line = torch.linspace(-8, 8, 201, dtype=torch.float64)[:, None] * torch.randn(8, dtype=torch.float64)

    def diagonal(kernel):
        phi = kernel.key_features(line[None, None].expand(1, 2, -1, -1))[0][0, 0]
        return phi.square().sum(-1)

    with torch.no_grad():
        kernel = disturbed("flexformer-c", num_real=0, beta=0.0)
        kernel.beta.zero_()
        _, g = kernel.key_features(line[None, None].expand(1, 2, -1, -1))
        growing = (2 * g[0, 0]).exp()  # phi has unit length, its size is in g
        assert growing.diff().diff().min() > -1e-12 * growing.max()
        assert diagonal(disturbed("flexformer-n")).diff().diff().min() < -1e-6


@pytest.mark.parametrize("gamma", [-0.3, -0.01, 0.01, 0.3])
def test_no_norm_weight_makes_the_nonstationary_diagonal_that_of_a_complex_spectrum(gamma):
    direction = torch.randn(8, dtype=torch.float64)
    direction /= direction.norm()
    kernel = disturbed("flexformer-n")

    @torch.no_grad()
    def log_diagonal(*where):
        """The largest near each place, as cosines have zeros."""
        t = torch.tensor(where, dtype=torch.float64)[:, None] + torch.linspace(-5, 5, 101, dtype=torch.float64)
        x = (t.flatten()[:, None] * direction)[None, None].expand(1, 2, -1, -1)
        size = kernel.key_features(x)[0][0, 0].square().sum(-1).log().view_as(t)
        return (size + gamma * t.square()).amax(-1)

    left, middle, near, far, farther = log_diagonal(-400.0, 0.0, 200.0, 400.0, 600.0)
    if gamma < 0:  # below its middle at both ends: not convex
        assert left < middle > far
    else:  # the logarithm of a sum of exponentials grows no faster than a line, beyond a constant
        assert (farther - far) - (far - near) > gamma * 200**2


def test_performer_is_a_complex_spectrum_that_does_not_learn():
    performer = kernels.build("performer", 2, 8).double()
    kernel = kernels.build("flexformer-c", 2, 8, beta=-performer.scaling / 2).double()
    with torch.no_grad():
        kernel.alpha.copy_(performer.scaling**0.5 * performer.projection.expand_as(kernel.alpha))
    q, k, v = (torch.randn(1, 2, 50, 8, dtype=torch.float64) for _ in range(3))
    torch.testing.assert_close(linear_attention(q, k, v, kernel), linear_attention(q, k, v, performer))


@pytest.mark.parametrize("name", ["flexformer-s", "flexformer-n"])
def test_kernels_of_cosines_do_not_contain_the_complex_spectrum(name):
    """Along a ray of queries one exponential outgrows the others and weights settle; cosines never do."""
    k, ray = torch.randn(20, 8, dtype=torch.float64), torch.randn(8, dtype=torch.float64)

    def change(kernel, start, end):
        weights = value(kernel, torch.stack((start * ray, end * ray)), k)
        weights = weights / weights.abs().sum(1, keepdim=True)
        return (weights[0] - weights[1]).abs().sum()

    growing = disturbed("flexformer-c", scale=0.5)
    assert change(growing, 0, 1e3) > 0.1
    assert change(growing, 1e3, 1.01e3) < 1e-6
    assert change(disturbed(name, scale=0.5), 1e3, 1.01e3) > 0.1


@pytest.mark.parametrize("name", ["flexformer-s", "flexformer-n"])
def test_weights_of_cosines_return_along_a_ray(name):
    kernel = disturbed(name, dim=4, scale=0.5, num_frequencies=2)
    k, ray = torch.randn(5, 4, dtype=torch.float64), torch.randn(4, dtype=torch.float64)
    with torch.no_grad():
        weights = value(kernel, torch.cat((torch.zeros(1), torch.linspace(100, 20_000, 100_000)))[:, None] * ray, k)
        weights = weights / weights.abs().sum(1, keepdim=True)
        distances = (weights[1:] - weights[0]).abs().sum(1)
    assert distances.min() < 0.1
    assert distances.max() > 0.5


@pytest.mark.parametrize(
    ("name", "options", "symmetric"),
    [
        ("flexformer-s", {}, False),
        ("flexformer-n", {}, False),
        ("flexformer-c", {"num_real": 0}, False),
        ("flexformer-c", {}, True),
    ],
)
def test_centres_leave_a_kernel_positive_definite_around_them(name, options, symmetric):
    kernel = disturbed(name, scale=0.5, centres=True, **options)
    x = torch.randn(30, 8, dtype=torch.float64)

    def products(queries, keys):
        phi_q = kernel.query_features(queries[None, None].expand(1, 2, -1, -1))[0, 0]
        return phi_q @ kernel.key_features(keys[None, None].expand(1, 2, -1, -1))[0][0, 0].T

    # In what is left when centres are taken off, queries and keys have the same features.
    matrix = products(x + kernel.centre_q[0], x + kernel.centre_k[0])
    torch.testing.assert_close(matrix, matrix.T)
    scaled = matrix / (matrix.diagonal()[:, None] * matrix.diagonal()).sqrt()
    assert torch.linalg.eigvalsh(scaled).min() > -1e-10
    # Of the same vectors as queries and keys it is symmetric, up to factors of each, only where nothing oscillates.
    matrix = products(x, x)
    cycle, back = (matrix[0, 1] * matrix[1, 2] * matrix[2, 0], matrix[0, 2] * matrix[2, 1] * matrix[1, 0])
    assert torch.isclose(cycle, back, rtol=1e-9) == symmetric


def test_centres_of_real_exponentials_are_factors_of_features_and_a_vector_added_to_all_of_them():
    kernel = disturbed("flexformer-c", scale=0.3, centres=True)
    q, k = (torch.randn(n, 8, dtype=torch.float64) for n in (6, 9))
    with torch.no_grad():
        found = value(kernel, q, k)
        a, beta = kernel.alpha[0], kernel.beta[0]
        factors = (-a @ (kernel.centre_q[0] + kernel.centre_k[0])).exp()
        moved = a + kernel.sharpness * kernel.centre_q[0] - 2 * beta * kernel.centre_k[0]
        expected = ((q @ moved.T).exp() * factors) @ (k @ moved.T).exp().T * (beta * k.square().sum(-1)).exp()
    torch.testing.assert_close(*(weights / weights.sum(-1, keepdim=True) for weights in (found, expected)))


def test_as_much_growth_as_waves_needs_no_norm_weight():
    assert kernels.build("flexformer-c", 2, 8, num_real=0, real_scale=0.4, wave_scale=0.4).beta_start == 0.0


PAIRS = {"num_real": 0, "real_scale": 0.5, "wave_scale": 0.6}


@pytest.mark.parametrize("options", [PAIRS, {"num_real": 0, "real_scale": 0.0, "wave_scale": 0.7}, {"real_scale": 0.7}])
@pytest.mark.parametrize("centres", [False, True])
def test_the_start_estimates_softmax_at_its_temperature(options, centres):
    kernel = kernels.build("flexformer-c", 1, 4, num_frequencies=80_000, centres=centres, **options).double()
    if centres:
        with torch.no_grad():
            kernel.centre_q.normal_(std=0.5)
            kernel.centre_k.normal_(std=0.5)
    q, k = (0.7 * torch.randn(1, 1, n, 4, dtype=torch.float64) for n in (6, 9))

    def error():
        weights, total, _ = attention_weights(q, k, kernel)
        expected = (kernel.sharpness * q @ k.mT).softmax(-1)
        return ((weights / total[..., None]) / expected - 1).abs().max()

    exact = error()
    assert exact < 0.02
    with torch.no_grad():
        kernel.beta += 0.3  # what was matched is no more
    assert error() > 3 * exact


@pytest.mark.parametrize("name", ["flexformer-s", "flexformer-n"])
def test_centres_leave_the_softmax_start_of_the_paper_alone(name):
    kernel = kernels.build(name, 1, 4, num_frequencies=40_000, softmax_start=True, centres=True).double()
    with torch.no_grad():
        kernel.centre_q.normal_(std=0.5)
        kernel.centre_k.normal_(std=0.5)
    q, k = (0.7 * torch.randn(1, 1, n, 4, dtype=torch.float64) for n in (6, 9))
    weights, total, _ = attention_weights(q, k, kernel)
    softmax = (q @ k.mT / 2).softmax(-1)
    torch.testing.assert_close(weights / total[..., None], softmax, rtol=0.1, atol=0.01)


@pytest.mark.parametrize("name", ["flexformer-s", "flexformer-n", "flexformer-c"])
def test_centres_start_at_the_mean_of_what_is_visible(name):
    kernel = kernels.build(name, 2, 4, centres=True)
    q, k = torch.randn(3, 4, 10, 4), torch.randn(3, 2, 10, 4)
    mask = torch.rand(3, 10) > 0.4
    k[:, :, 0] = torch.where(mask[:, None, :1], k[:, :, 0], torch.nan)
    kernel.initialise_from_data(q, k, mask)
    for head in range(2):
        torch.testing.assert_close(kernel.centre_k[head], k[:, head][mask].mean(0))
        rows = q[:, 2 * head : 2 * head + 2].transpose(1, 2)[mask]
        torch.testing.assert_close(kernel.centre_q[head], rows.mean((0, 1)))
    kernel.reset_parameters()
    assert not kernel.centre_q.any()


@pytest.mark.parametrize(("name", "options"), [("flexformer-c", {}), ("performer", {})])
def test_real_exponentials_alone_have_positive_weights_for_any_input(name, options):
    kernel = disturbed(name, scale=2.0, **options).float()
    assert kernel.policy == "absolute"
    for size in (5.0, 100.0, 1e4, 1e30):
        q, k = size * torch.randn(1, 2, 30, 8), size * torch.randn(1, 2, 30, 8)
        weights, den, _ = attention_weights(q, k, kernel)
        assert (weights >= 0).all()
        assert (den > SMALLEST_DENOMINATOR).all()
        for is_causal in (False, True):
            out = linear_attention(q, k, torch.ones_like(k), kernel, is_causal=is_causal)
            torch.testing.assert_close(out, torch.ones_like(out))


def test_features_have_unit_length_where_there_are_pairs():
    kernel = disturbed("flexformer-c", num_real=4, scale=1.0)
    phi = kernel.query_features(10 * torch.randn(1, 2, 20, 8, dtype=torch.float64))
    torch.testing.assert_close(phi.square().sum(-1), torch.ones(1, 2, 20, dtype=torch.float64))


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"num_real": 3}, "num_real 3 is odd and does not leave pairs; use an even number up to 16"),
        ({"num_real": 18}, "num_real 18 is not among the features; use an even number up to 16"),
        ({"floor": 0.1}, "floor 0.1 has no use where all features are real"),
        ({"num_real": 0, "floor": 2.0}, "floor 2 is above 1"),
        ({"beta": float("nan")}, "beta nan is not a finite number"),
        ({"beta": "x"}, "beta 'x' is not a finite number"),
        ({"num_real": -2}, "num_real -2 is not among the features"),
        ({"num_real": 2.0}, "num_real 2.0 is not a count; use a whole number, 'half' or 'all'"),
        ({"num_real": None}, "num_real None is not a count"),
        ({"floor": -1.0}, "floor -1.0 is not a positive number"),
        ({"num_real": "some"}, "num_real 'some' is not a count"),
        ({"real_scale": 0.0}, r"real_scale 0\.0 is not a positive number"),
        ({"centres": 1}, "centres 1 is not a bool"),
    ],
)
def test_bad_options_are_named(options, message):
    with pytest.raises((ValueError, TypeError), match=message):
        kernels.build("flexformer-c", 2, 8, **options)


def test_conversion_options_build_a_kernel():
    for name in kernels.names():
        kernels.build(name, 2, 8, **kernels.conversion_options(name))
