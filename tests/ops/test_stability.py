"""No finite input makes a NaN, forward or backward."""

import pytest
import torch
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from flexformer import kernels
from flexformer.ops import linear_attention

DTYPES = (torch.float64, torch.float32, torch.float16, torch.bfloat16)

cases = st.fixed_dictionaries(
    {
        "name": st.sampled_from(kernels.names()),
        "dtype": st.sampled_from(DTYPES),
        "is_causal": st.booleans(),
        "length": st.integers(1, 40),
        "chunk_size": st.sampled_from((1, 4, 16, 64)),
        "mask": st.sampled_from(("none", "left", "right", "random", "nothing")),
        "magnitudes": st.tuples(*[st.sampled_from((1e-6, 1e-3, 1.0, 30.0, 1e3, 1e4))] * 3),
        "outlier": st.sampled_from((None, 1e4)),
        "constant": st.booleans(),
        "seed": st.integers(0, 2**16),
    }
)


def key_mask(kind, batch, length):
    if kind == "none":
        return None
    mask = torch.ones(batch, length, dtype=torch.bool)
    if kind == "left":
        mask[0, : length // 2] = False
    elif kind == "right":
        mask[0, (length + 1) // 2 :] = False
    elif kind == "random":
        mask = torch.rand(batch, length) > 0.5
    else:
        mask[0] = False
    return mask


def check(case, policy=None):
    torch.manual_seed(case["seed"])
    spectral = case["name"].startswith("flexformer")
    options = {"policy": policy} if policy and "policy" in kernels.options(case["name"]) else {}
    kernel = kernels.build(case["name"], 2, 4, **options)
    dtype = case["dtype"]

    def draw(magnitude):
        x = torch.ones(2, 2, case["length"], 4) if case["constant"] else torch.randn(2, 2, case["length"], 4)
        x = x * magnitude
        if case["outlier"]:
            x[0, 0, case["length"] // 2] = case["outlier"]
        return x.clamp(-1e4, 1e4).to(dtype).requires_grad_()

    q, k, v = (draw(magnitude) for magnitude in case["magnitudes"])
    mask = key_mask(case["mask"], 2, case["length"])
    out = linear_attention(q, k, v, kernel, case["is_causal"], mask, chunk_size=case["chunk_size"])
    assert not out.isnan().any()
    largest = v.detach().abs().amax().double()
    if spectral and policy is None:
        bound = largest / kernel.floor * (1 + 1e-3)
        if bound < torch.finfo(dtype).max:
            assert out.abs().amax() <= bound.to(dtype)  # outputs are rounded too
    cotangent = torch.randn(out.shape).to(dtype)
    leaves = (q, k, v)
    found = (out, *torch.autograd.grad(out, (*leaves, *kernel.parameters()), cotangent, allow_unused=True))
    if dtype == torch.float16:
        wide = [x.detach().float().requires_grad_() for x in leaves]
        out = linear_attention(*wide, kernel, case["is_causal"], mask, chunk_size=case["chunk_size"])
        gradients = torch.autograd.grad(out, (*wide, *kernel.parameters()), cotangent.float(), allow_unused=True)
        exact = (out, *gradients)
    else:
        exact = found
    for x, wider in zip(found, exact, strict=True):
        if x is not None:
            assert_inf_only_beyond_the_range(x, wider)


def assert_inf_only_beyond_the_range(x, wider):
    assert torch.isfinite(wider).all()
    assert not x.isnan().any()
    assert (wider[x.isinf()].abs() > 0.999 * torch.finfo(x.dtype).max).all()


@settings(max_examples=400, deadline=None, suppress_health_check=list(HealthCheck), derandomize=True)
@given(case=cases)
def test_no_input_makes_a_nan(case):
    check(case)


@pytest.mark.slow
@settings(max_examples=6000, deadline=None, suppress_health_check=list(HealthCheck))
@given(case=cases)
def test_thousands_of_inputs_make_no_nan(case):
    check(case)


@pytest.mark.parametrize("policy", ["raw"])
@settings(max_examples=100, deadline=None, suppress_health_check=list(HealthCheck), derandomize=True)
@given(case=cases)
def test_the_raw_policy_makes_no_nan_either(policy, case):
    check(case, policy)


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16, torch.float16])
@pytest.mark.parametrize("is_causal", [False, True])
def test_queries_and_keys_at_the_end_of_the_range_make_no_nan(kernel_name, dtype, is_causal):
    kernel = kernels.build(kernel_name, 2, 8)
    largest = torch.finfo(dtype).max
    q, k = (torch.where(torch.rand(1, 2, 70, 8) > 0.5, largest, -largest).to(dtype) for _ in range(2))
    leaves = [x.requires_grad_() for x in (q, k, torch.randn(1, 2, 70, 8).to(dtype))]
    out = linear_attention(*leaves, kernel, is_causal)
    assert torch.isfinite(out).all()
    for gradient in torch.autograd.grad(out.sum(), (*leaves, *kernel.parameters()), allow_unused=True):
        # A gradient of float16 inputs may exceed float16; it is computed in float32.
        finite = dtype == torch.float16 or gradient is None or torch.isfinite(gradient).all()
        assert finite
        assert gradient is None or not gradient.isnan().any()


def test_outputs_stay_within_the_bound_however_weights_cancel():
    """Frequencies this high make weights of random sign; the floor still bounds the output."""
    for name in ("flexformer-s", "flexformer-n"):
        for floor in (0.1, 0.01, 1e-3):
            kernel = kernels.build(name, 4, 8, frequency_scale=10.0, floor=floor)
            q, k, v = torch.randn(3, 4, 4, 100, 8)
            for is_causal in (False, True):
                out = linear_attention(q, k, v, kernel, is_causal)
                assert out.abs().max() <= v.abs().max() / floor * (1 + 1e-3)
                assert kernel.statistics(q, k, is_causal=is_causal).floored_rows > 0.1
