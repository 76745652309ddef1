"""The formulas of the kernels that came before, and their pitfalls."""

import copy
import math
from itertools import pairwise

import pytest
import torch
from torch.utils.checkpoint import checkpoint

import flexformer
from flexformer import kernels
from flexformer.kernels import attention_weights
from flexformer.kernels.starts import gaussian_rows
from flexformer.ops import linear_attention

X = torch.randn(1, 2, 30, 8, dtype=torch.float64, generator=torch.Generator().manual_seed(1))
Y = torch.randn(1, 2, 30, 8, dtype=torch.float64, generator=torch.Generator().manual_seed(2))
V = torch.randn(1, 2, 30, 8, dtype=torch.float64, generator=torch.Generator().manual_seed(3))


def weights_of(kernel):
    return attention_weights(X, Y, kernel)[0]


def test_linear_is_elu_plus_one():
    def phi(x):
        return torch.where(x > 0, x + 1, x.exp())

    kernel = kernels.build("linear", 2, 8)
    torch.testing.assert_close(weights_of(kernel), phi(X) @ phi(Y).transpose(-1, -2))
    assert not list(kernel.parameters())


def test_performer_estimates_the_softmax_kernel():
    estimates = []
    small = 0.5
    for seed in range(30):
        torch.manual_seed(seed)
        kernel = kernels.build("performer", 2, 8, num_features=4096).double()
        weights, den, _ = attention_weights(small * X, small * Y, kernel)
        estimates.append(weights / den[..., None])
    expected = (small**2 * X @ Y.transpose(-1, -2) / math.sqrt(8)).softmax(-1)
    torch.testing.assert_close(torch.stack(estimates).mean(0), expected, atol=2e-3, rtol=0)


def test_performer_follows_the_formula():
    kernel = kernels.build("performer", 2, 8).double()

    def phi(x):
        x = x * 8**-0.25
        return (x @ kernel.projection.transpose(-1, -2) - x.square().sum(-1, keepdim=True) / 2).exp()

    weights = phi(X) @ phi(Y).transpose(-1, -2)
    expected = weights @ V / weights.sum(-1, keepdim=True)
    torch.testing.assert_close(linear_attention(X, Y, V, kernel), expected)


def test_performer_uses_the_scaling_it_is_given():
    torch.manual_seed(0)
    a = kernels.build("performer", 2, 8, scaling=0.5).double()
    torch.manual_seed(0)
    b = kernels.build("performer", 2, 8, scaling=0.125).double()
    torch.testing.assert_close(weights_of(a), attention_weights(2 * X, 2 * Y, b)[0])


@pytest.mark.parametrize("count", [5, 8, 20])
def test_orthogonal_rows_are_orthogonal_in_blocks_and_gaussian_in_length(count):
    rows = gaussian_rows(count, 8, True, torch.empty(0, dtype=torch.float64))
    assert rows.shape == (count, 8)
    for block in rows.split(8):
        gram = block @ block.T
        torch.testing.assert_close(gram, torch.diag(gram.diagonal()), atol=1e-5, rtol=0)
    many = gaussian_rows(4000, 8, True, torch.empty(0))
    assert many.square().sum(-1).mean().item() == pytest.approx(8, rel=0.05)


@pytest.mark.parametrize(("name", "interval"), [("performer", 3), ("rfa", 1), ("performer", 0)])
def test_random_features_are_redrawn_on_schedule_and_saved(name, interval):
    kernel = kernels.build(name, 2, 8, redraw_interval=interval)
    assert "projection" in kernel.state_dict()
    draws = []
    for _ in range(6):
        kernel.redraw_for_training()
        draws.append(kernel.projection)
    changed = [not torch.equal(a, b) for a, b in pairwise(draws)]
    every_third = [False, True, False, False, True]
    assert changed == {3: every_third, 1: [True] * 5, 0: [False] * 5}[interval]


def test_random_features_come_from_the_default_generator():
    for name in ("performer", "rfa"):
        draws = []
        for _ in range(2):
            torch.manual_seed(7)
            draws.append(kernels.build(name, 2, 8).projection)
        assert torch.equal(*draws)


def test_gradient_checkpointing_sees_the_features_of_its_forward():
    for name, interval in (("performer", 2), ("rfa", 1)):
        attn = flexformer.MultiheadAttention(16, 2, attention=name, redraw_interval=interval)
        x = torch.randn(1, 9, 16, requires_grad=True)
        for step in range(4):
            gradients = []
            for checkpointed in (False, True):
                module = copy.deepcopy(attn)
                torch.manual_seed(step)
                out = checkpoint(module, x, use_reentrant=False) if checkpointed else module(x)
                gradients.append(torch.autograd.grad(out.square().sum(), x)[0])
            torch.testing.assert_close(*gradients)
            attn(x)


def test_random_kernels_can_be_built_where_half_precision_is_the_default():
    torch.set_default_dtype(torch.bfloat16)
    try:
        kernel = kernels.build("performer", 2, 8)
    finally:
        torch.set_default_dtype(torch.float32)
    assert kernel.projection.dtype == torch.bfloat16


@pytest.mark.parametrize("name", ["performer", "rfa"])
def test_features_that_were_redrawn_in_inference_mode_can_be_trained_with(name):
    attn = flexformer.MultiheadAttention(16, 2, attention=name, redraw_interval=1)
    x = torch.randn(1, 100, 16)
    with torch.inference_mode():
        attn(x)
    attn.eval()(x).sum().backward()
    attn.train()(x).sum().backward()


def test_redrawing_between_forward_and_backward_is_safe():
    kernel = kernels.build("rfa", 2, 8)
    q = torch.randn(1, 2, 5, 8, requires_grad=True)
    out = linear_attention(q, q, q, kernel)
    kernel.redraw()
    out.sum().backward()
    assert torch.isfinite(q.grad).all()


def test_rfa_follows_the_formula_and_guards_at_one():
    kernel = kernels.build("rfa", 2, 8).double()
    with torch.no_grad():
        kernel.sigma.uniform_(0.5, 1.5)

    def phi(x):
        unit = x / (x.norm(dim=-1, keepdim=True) + 1e-3)
        angle = torch.einsum("bhtd,hnd->bhtn", unit * kernel.sigma[:, None], kernel.projection)
        return 0.1 * torch.cat((angle.sin(), angle.cos()), -1)

    weights = phi(X) @ phi(Y).transpose(-1, -2)
    den = weights.sum(-1, keepdim=True)
    torch.testing.assert_close(linear_attention(X, Y, V, kernel), weights @ V / den.clamp_min(1.0))
    first = linear_attention(X[:, :, :1], Y[:, :, :1], V[:, :, :1], kernel)
    torch.testing.assert_close(first, weights[:, :, :1, :1] @ V[:, :, :1])  # one key sums to less than 1


def test_cosformer_reweights_by_distance_and_stays_positive():
    kernel = kernels.build("cosformer", 2, 8, max_length=64)
    distance = torch.arange(30)[:, None] - torch.arange(30)
    expected = X.relu() @ Y.relu().transpose(-1, -2) * (math.pi / 2 * distance / 64).cos()
    torch.testing.assert_close(weights_of(kernel), expected)
    assert weights_of(kernel).min() >= -1e-12


def test_cosformer_gives_zero_for_a_query_without_positive_coordinates():
    kernel = kernels.build("cosformer", 2, 8)
    assert not linear_attention(-X.abs(), Y, V, kernel).any()


def test_cosformer_places_queries_of_a_cross_attention_where_it_is_told():
    kernel = kernels.build("cosformer", 2, 8, max_length=64)
    whole = linear_attention(X, Y, V, kernel)
    for t in (0, 13, 29):
        here = slice(t, t + 1)
        torch.testing.assert_close(linear_attention(X[:, :, here], Y, V, kernel, query_start=t), whole[:, :, here])


def test_cosformer_needs_positions():
    with pytest.raises(ValueError, match="positions None is not enough for cosformer"):
        kernels.build("cosformer", 2, 8).query_features(X)


def test_hedgehog_starts_at_the_identity_and_follows_the_formula():
    kernel = kernels.build("hedgehog", 2, 8).double()

    def phi(x):
        return torch.cat((x.softmax(-1), (-x).softmax(-1)), -1)

    torch.testing.assert_close(weights_of(kernel), phi(X) @ phi(Y).transpose(-1, -2))


@pytest.mark.parametrize(
    ("options", "count"),
    [({}, 64), ({"use_bias": True}, 72), ({"tied": False}, 128), ({"use_bias": True, "tied": False}, 144)],
)
def test_hedgehog_has_the_published_parameter_counts(options, count):
    kernel = kernels.build("hedgehog", 3, 8, **options)
    assert sum(p.numel() for p in kernel.parameters()) == 3 * count


def test_a_wide_hedgehog_starts_with_rows_that_differ():
    kernel = kernels.build("hedgehog", 2, 8, num_features=40)
    assert torch.equal(kernel.map[0, :8], torch.eye(8))
    assert torch.linalg.matrix_rank(kernel.map[0, 8:]) == 8


def test_an_untied_hedgehog_maps_keys_their_own_way():
    kernel = kernels.build("hedgehog", 2, 8, tied=False, use_bias=True)
    with torch.no_grad():
        kernel.key_map.normal_()
        kernel.key_map_bias.normal_()
    assert not torch.allclose(kernel.query_features(X), kernel.key_features(X)[0])


def test_polaformer_follows_the_formula():
    kernel = kernels.build("polaformer", 2, 8).double()
    with torch.no_grad():
        kernel.power.normal_()
        kernel.scale.normal_()
    power = 1 + 4 * kernel.power.sigmoid()[:, None]
    scale = torch.nn.functional.softplus(kernel.scale)[:, None]

    def phi(x):
        return torch.cat(((x / scale).relu() ** power, (-x / scale).relu() ** power), -1)

    weights = phi(X) @ phi(Y).transpose(-1, -2)
    torch.testing.assert_close(linear_attention(X, Y, V, kernel), weights @ V / weights.sum(-1, keepdim=True))


def test_polaformer_starts_at_power_three():
    kernel = kernels.build("polaformer", 2, 8).double()

    def whole(x):
        phi, log_weight = kernel.key_features(x)
        return phi * log_weight[..., None].exp()

    ratio = whole(X)[..., :8] / whole(X / 2)[..., :8]
    positive = X > 0.01
    torch.testing.assert_close(ratio[positive], torch.full_like(ratio[positive], 8.0))


@pytest.mark.parametrize(
    ("name", "options", "message"),
    [
        ("performer", {"num_features": 0}, "num_features 0 is too small"),
        ("performer", {"redraw_interval": -1}, "redraw_interval -1 is negative"),
        ("rfa", {"num_features": 7}, "num_features 7 is odd"),
        ("hedgehog", {"num_features": 7}, "num_features 7 is odd"),
        ("cosformer", {"max_length": 0}, "max_length 0 is too small"),
        ("polaformer", {"alpha": 0.0}, "alpha 0.0 is not a positive number"),
        ("performer", {"scaling": -1.0}, "scaling -1.0 is not a positive number"),
        ("performer", {"scaling": math.nan}, "scaling nan is not a positive number"),
    ],
)
def test_a_wrong_option_is_named(name, options, message):
    with pytest.raises(ValueError, match=message):
        kernels.build(name, 2, 8, **options)


@pytest.mark.parametrize(
    ("name", "options", "message"),
    [
        ("hedgehog", {"use_bias": "no"}, "use_bias 'no' is not a bool"),
        ("performer", {"orthogonal": 1}, "orthogonal 1 is not a bool"),
        ("polaformer", {"alpha": "a"}, "alpha 'a' is not a number"),
        ("flexformer-n", {"floor": "0.1"}, "floor '0.1' is not a number"),
        ("flexformer-n", {"phase_bias": 1}, "phase_bias 1 is not a bool"),
    ],
)
def test_an_option_of_the_wrong_type_is_named(name, options, message):
    with pytest.raises(TypeError, match=message):
        kernels.build(name, 2, 8, **options)


@pytest.mark.parametrize("name", kernels.names())
def test_a_start_can_be_drawn_anew(name):
    kernel = kernels.build(name, 2, 8)
    shapes = {key: value.shape for key, value in kernel.state_dict().items()}
    with torch.no_grad():
        for parameter in kernel.parameters():
            parameter.fill_(7.0)
    kernel.reset_parameters()
    assert {key: value.shape for key, value in kernel.state_dict().items()} == shapes
    assert not any((parameter == 7.0).any() for parameter in kernel.parameters())
