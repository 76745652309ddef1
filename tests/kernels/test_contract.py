"""What holds for every kernel."""

import copy

import pytest
import torch

from flexformer import kernels


def features(kernel, x, positions=None):
    positions = torch.arange(x.shape[2]) if positions is None else positions
    return kernel.query_features(x, positions), *kernel.key_features(x, positions)


@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16, torch.float32, torch.float64])
def test_features_have_the_promised_shape_and_at_least_float32(kernel_name, dtype):
    kernel = kernels.build(kernel_name, 3, 8)
    phi_q, phi_k, log_weight = features(kernel, torch.randn(2, 3, 5, 8).to(dtype))
    wanted = torch.promote_types(dtype, torch.float32)
    assert phi_q.shape == phi_k.shape == (2, 3, 5, kernel.num_features)
    assert phi_q.dtype == phi_k.dtype == wanted
    if log_weight is not None:
        assert log_weight.shape == (2, 3, 5)
        assert log_weight.dtype == wanted


def test_a_kernel_has_twice_as_many_features_as_dimensions_by_default(kernel_name):
    expected = 8 if kernel_name == "linear" else 16
    assert kernels.build(kernel_name, 3, 8).num_features == expected


def test_heads_do_not_mix(kernel_name):
    kernel = kernels.build(kernel_name, 2, 8)
    x = torch.randn(1, 2, 5, 8)
    changed = x.clone()
    changed[:, 1] += 1.0
    for a, b in zip(features(kernel, x), features(kernel, changed), strict=True):
        if a is not None:
            assert torch.equal(a[:, 0], b[:, 0])
            assert not torch.equal(a[:, 1], b[:, 1])


def test_tokens_do_not_mix(kernel_name):
    kernel = kernels.build(kernel_name, 2, 8).double()
    x = torch.randn(1, 2, 5, 8, dtype=torch.float64)
    alone = features(kernel, x[:, :, 2:3], torch.tensor([2]))
    for a, b in zip(features(kernel, x), alone, strict=True):
        if a is not None:
            torch.testing.assert_close(a[:, :, 2:3], b)


def test_a_saved_kernel_loads_into_a_new_one(kernel_name):
    kernel, other = kernels.build(kernel_name, 2, 8), kernels.build(kernel_name, 2, 8)
    other.load_state_dict(kernel.state_dict())
    x = torch.randn(1, 2, 5, 8)
    for a, b in zip(features(kernel, x), features(other, x), strict=True):
        assert a is b is None or torch.equal(a, b)


def test_a_kernel_can_be_copied_and_printed(kernel_name):
    kernel = kernels.build(kernel_name, 2, 8)
    assert "num_heads=2, head_dim=8" in repr(copy.deepcopy(kernel))


def test_a_kernel_can_be_built_without_memory(kernel_name):
    with torch.device("meta"):
        kernel = kernels.build(kernel_name, 8, 64)
    assert all(p.is_meta for p in kernel.parameters())


@pytest.mark.parametrize(
    ("arguments", "error", "message"),
    [
        ({"num_heads": 0}, ValueError, "num_heads 0 is too small"),
        ({"num_heads": -2}, ValueError, "num_heads -2 is too small"),
        ({"head_dim": 0}, ValueError, "head_dim 0 is too small"),
        ({"head_dim": 2.5}, TypeError, "head_dim 2.5 is not an integer"),
        ({"num_heads": "two"}, TypeError, "num_heads 'two' is not an integer"),
        ({"colour": "red"}, TypeError, "option 'colour' is unknown to kernel"),
    ],
)
def test_a_wrong_argument_is_named(kernel_name, arguments, error, message):
    with pytest.raises(error, match=message):
        kernels.build(kernel_name, **({"num_heads": 2, "head_dim": 8} | arguments))
