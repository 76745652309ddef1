"""The loss against its definition, its gradients against autograd's, and what it takes in memory."""

from __future__ import annotations

import math

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from flexformer import kernels
from flexformer.bench.memory import Memory, Probe
from flexformer.convert.observation import Call
from flexformer.distill import LossOptions, compare
from flexformer.distill import loss as module
from flexformer.distill.divergence import KernelRows, absolute, clipped
from flexformer.distill.loss import SUMS
from flexformer.kernels import attention_weights
from flexformer.ops import reference_attention

LEARNED = [name for name in kernels.names() if kernels.build(name, 1, 4).trained_parameters() and name != "polaformer"]


def call(name="flexformer-n", causal=False, padded=True, group=1, length=9, dtype=torch.float64, **options):
    generator = torch.Generator().manual_seed(3)
    kernel = kernels.build(name, num_heads=2, head_dim=4, **options).to(torch.promote_types(dtype, torch.float32))
    q = torch.randn(3, 2 * group, length, 4, generator=generator, dtype=torch.float64).to(dtype)
    k, v = (torch.randn(3, 2, length, 4, generator=generator, dtype=torch.float64).to(dtype) for _ in range(2))
    mask = None
    if padded:
        mask = torch.ones(3, length, dtype=torch.bool)
        mask[0, -4:] = False  # on the right
        mask[1, :2] = False  # on the left: with causal attention there are rows that see nothing
    return Call(0, kernel, q, k, v, 0.5, causal, mask)


def teacher(given):
    """(B, H, T, S) softmax's weights, zero where not visible."""
    group = given.query.shape[1] // given.key.shape[1]
    logits = given.scaling * given.query @ given.key.repeat_interleave(group, 1).mT
    visible = torch.ones(logits.shape[-2:], dtype=torch.bool)
    if given.is_causal:
        visible = visible.tril()
    visible = visible.expand(logits.shape)
    if given.key_mask is not None:
        visible = visible & given.key_mask[:, None, None, :]
    return logits.masked_fill(~visible, -1e300).softmax(-1).masked_fill(~visible, 0.0)


def smooth_log(x, eps):
    """log x, below eps its tangent there."""
    return torch.where(x > eps, x.clamp_min(eps).log(), eps.log() + (x - eps) / eps)


def definition(given, name="absolute"):
    """The loss by its definition, all pairs at once, differentiable."""
    target, visible = teacher(given), teacher(given) > 0
    batch, heads, length, width = given.query.shape
    group = heads // 2
    phi_q = given.kernel.query_features(given.query.reshape(batch, 2, group * length, width))
    phi_k, g = given.kernel.key_features(given.key)
    kappa = (phi_q @ phi_k.mT).reshape(batch, heads, length, length)
    gains = (torch.zeros(batch, 2, length) if g is None else g).repeat_interleave(group, 1)[:, :, None]
    shown = gains.exp().expand_as(kappa).masked_fill(~visible, 0.0)
    mean = (kappa.abs() * shown).sum(-1, keepdim=True) / shown.sum(-1, keepdim=True).clamp_min(1e-30)
    eps = 0.2 * mean.clamp_min(1e-12) if (phi_q < 0).any() else torch.tensor(1e-20)
    size, logs = (
        (kappa.clamp_min(1e-6), kappa.clamp_min(1e-6).log())
        if name == "paper"
        else (kappa.abs(), smooth_log(kappa, eps))
    )
    total = (size * gains.exp()).masked_fill(~visible, 0.0).sum(-1)
    each = total.clamp_min(1e-30).log() - (target * (logs + gains)).sum(-1)
    rows = torch.ones(batch, length, dtype=torch.bool) if given.key_mask is None else given.key_mask
    return (each * rows[:, None]).sum() / (rows.sum() * heads)


@pytest.mark.parametrize("name", LEARNED)
@pytest.mark.parametrize("loss", ["absolute", "paper"])
@pytest.mark.parametrize(("causal", "padded", "group"), [(False, True, 1), (True, True, 1), (True, False, 2)])
def test_loss_and_gradients_follow_the_definition(name, loss, causal, padded, group, monkeypatch):
    given = call(name, causal, padded, group)
    expected = definition(given, loss)
    gradients = torch.autograd.grad(expected, given.kernel.trained_parameters(), allow_unused=True)
    for pairs in (10**9, 150, 1):  # all rows at once, a few, one by one
        monkeypatch.setattr(module, "PAIRS_AT_ONCE", pairs)
        found = compare(given, LossOptions(loss), learn=True, measure=False)
        torch.testing.assert_close(found.loss, expected.detach(), rtol=1e-9, atol=1e-12)
        for ours, theirs in zip(found.gradients, gradients, strict=True):
            theirs = torch.zeros_like(ours) if theirs is None else theirs
            torch.testing.assert_close(ours, theirs, rtol=1e-7, atol=1e-10)


@pytest.mark.parametrize("name", LEARNED)
def test_output_term_is_the_error_of_the_linear_form(name):
    given = call(name, causal=True, padded=True)
    parameters = given.kernel.trained_parameters()
    linear = reference_attention(given.query, given.key, given.value, given.kernel, True, given.key_mask)
    shown = given.key_mask[:, None, :, None]
    power = (given.value * shown).square().sum((-1, -2)) / given.key_mask.sum(-1)[:, None]
    target = teacher(given) @ given.value.masked_fill(~shown, 0.0)
    each = (linear - target).square().sum(-1) / power[..., None]
    expected = (each * given.key_mask[:, None]).sum() / (given.key_mask.sum() * 2)
    found = compare(given, LossOptions(weights=0.0, outputs=2.0), learn=True, measure=False)
    torch.testing.assert_close(found.loss, 2 * expected.detach())
    gradients = torch.autograd.grad(2 * expected, parameters, allow_unused=True)
    for ours, theirs in zip(found.gradients, gradients, strict=True):
        torch.testing.assert_close(ours, torch.zeros_like(ours) if theirs is None else theirs, rtol=1e-6, atol=1e-9)


@settings(max_examples=25, deadline=None)
@given(
    name=st.sampled_from(LEARNED),
    causal=st.booleans(),
    padded=st.booleans(),
    length=st.integers(4, 12),
    scale=st.floats(0.1, 30),
)
def test_cross_entropy_is_never_below_the_teachers_entropy(name, causal, padded, length, scale):
    torch.manual_seed(length)
    given = call(name, causal, padded, length=length)
    given = given._replace(query=given.query * scale)
    sums = compare(given, LossOptions(), learn=False, measure=True).sums
    found = dict(zip(SUMS, sums.sum((0, 1)).tolist(), strict=True))
    assert all(math.isfinite(value) for value in found.values())
    assert found["cross_entropy"] >= found["entropy"] - 1e-6 * max(1.0, found["entropy"])


def rows_of(kappa, scale=None):
    scale = torch.ones_like(kappa) if scale is None else scale
    return KernelRows(kappa, scale, torch.zeros(kappa.shape[:-1]), scale[..., 0, :].log())


@given(scale=st.floats(1e-8, 1.0), seed=st.integers(0, 50))
def test_a_signed_kernel_gains_nothing_by_shrinking(scale, seed):
    generator = torch.Generator().manual_seed(seed)
    kappa = torch.randn(1, 1, 3, 8, generator=generator, dtype=torch.float64)
    target = torch.randn(1, 1, 3, 8, generator=generator, dtype=torch.float64).softmax(-1)
    for loss in (lambda rows: absolute(target, rows, None, signed=True).each, lambda rows: clipped(target, rows, True)):
        whole, shrunk = (loss(rows_of(factor * kappa)) for factor in (1.0, scale))
        torch.testing.assert_close(whole, shrunk)


@given(exponent=st.floats(-12, 3), seed=st.integers(0, 50))
def test_no_signed_kernel_is_nearer_than_softmax_itself(exponent, seed):
    generator = torch.Generator().manual_seed(seed)
    target = torch.full((1, 1, 1, 16), 1 / 16, dtype=torch.float64)
    kappa = 10**exponent + torch.randn(target.shape, generator=generator, dtype=torch.float64) * 10 ** (exponent - 1)
    for values in (kappa, kappa - kappa.mean(), torch.zeros_like(kappa)):
        found = absolute(target, rows_of(values), None, signed=True).each
        assert found.item() >= math.log(16) - math.log1p(0.2 / math.e) - 1e-9
        assert clipped(target, rows_of(values), signed=True).item() >= math.log(16) - 1e-9


def test_what_is_measured_is_the_divergence_of_weights_without_negative_ones():
    torch.manual_seed(0)
    target, kappa = torch.randn(2, 3, 4, 8).softmax(-1), torch.randn(2, 3, 4, 8)
    scale = torch.rand(2, 3, 1, 8).expand_as(kappa)
    mean = (kappa.abs() * scale).sum(-1, keepdim=True) / scale.sum(-1, keepdim=True)
    kept = torch.maximum(kappa, 1e-6 * mean) * scale
    expected = -(target * (kept / kept.sum(-1, keepdim=True)).log()).sum(-1)
    torch.testing.assert_close(clipped(target, rows_of(kappa, scale), signed=True), expected)


def test_sums_are_those_of_the_linear_form():
    given = call("flexformer-s", causal=False, padded=True, frequency_scale=2.0)  # wild enough for negative weights
    found = compare(given, LossOptions(), learn=False, measure=True)
    weights, den, _ = attention_weights(given.query, given.key, given.kernel, key_mask=given.key_mask)
    rows = given.key_mask[:, None].expand_as(den)
    sums = dict(zip(SUMS, found.sums.sum((0, 1)).tolist(), strict=True))
    assert sums["rows"] == rows.sum() == 2 * given.key_mask.sum()
    assert sums["pairs"] == 2 * given.key_mask.sum(-1).square().sum()
    assert sums["negative_pairs"] == ((weights < 0) & rows[..., None]).sum() > 0
    assert sums["nonpositive_rows"] == ((den <= 0) & rows).sum() > 0
    linear = reference_attention(given.query, given.key, given.value, given.kernel, key_mask=given.key_mask)
    target = teacher(given) @ given.value
    assert sums["output_error"] == pytest.approx(((linear - target).square().sum(-1) * rows).sum().item())
    assert sums["output_power"] == pytest.approx((target.square().sum(-1) * rows).sum().item())
    torch.testing.assert_close(found.output, target)


def test_what_padding_holds_changes_nothing():
    given = call(causal=True, padded=True)
    hidden = ~given.key_mask[:, None, :, None]
    filled = given._replace(**{x: getattr(given, x).masked_fill(hidden, 1e9) for x in ("key", "value", "query")})
    plain, wild = (compare(each, LossOptions(), learn=True, measure=True) for each in (given, filled))
    assert torch.equal(plain.loss, wild.loss)
    for a, b in zip(plain.gradients, wild.gradients, strict=True):
        torch.testing.assert_close(a, b)
    shown = given.key_mask[:, None, :, None]
    torch.testing.assert_close(plain.output * shown, wild.output * shown)


def test_losses_agree_where_no_weight_is_negative_and_part_where_one_is():
    positive = call("hedgehog")
    losses = [compare(positive, LossOptions(name), learn=False, measure=False).loss for name in ("absolute", "paper")]
    torch.testing.assert_close(*losses)
    signed = call("flexformer-s", frequency_scale=2.0)
    absolute, paper = (
        compare(signed, LossOptions(name), learn=True, measure=False).gradients for name in ("absolute", "paper")
    )
    assert any(not torch.allclose(a, b) for a, b in zip(absolute, paper, strict=True))


@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16])
def test_half_precision_is_compared_in_float32(dtype):
    given = call("flexformer-n", dtype=dtype)
    full = given._replace(**{x: getattr(given, x).float() for x in ("query", "key", "value")})
    with torch.autocast("cpu", torch.bfloat16):
        half = compare(given, LossOptions(), learn=True, measure=False)
    assert half.loss.dtype == torch.float32
    assert half.output.dtype == dtype
    torch.testing.assert_close(half.loss, compare(full, LossOptions(), learn=True, measure=False).loss)


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"name": "kl"}, "loss.name 'kl' is unknown; use absolute or paper"),
        ({"line": 0.0}, "loss.line 0.0 is not a share"),
        ({"outputs": -1.0}, "loss.outputs -1.0 is negative"),
        ({"weights": 0.0}, "loss.weights and loss.outputs are both 0"),
    ],
)
def test_impossible_losses_are_refused(options, message):
    with pytest.raises(ValueError, match=message):
        LossOptions(**options)


@pytest.mark.slow
def test_memory_at_2048_tokens_is_that_of_a_few_rows_however_many_layers_there_are():
    layers, heads, length = 12, 4, 2048
    with Probe(threads=1, timeout=300, preload=["transformers"]) as probe:
        found = probe.measure(
            "distill_probe:prepare", layers=layers, heads=heads, length=length, attention="flexformer-n"
        )
    assert isinstance(found, Memory), found
    if found.peak_bytes is None:
        pytest.skip("this system does not tell the memory of a process")
    # Autograd over all pairs keeps half a dozen such tensors for each layer. What is measured here is mostly features,
    # which grow with the length alone, and memory that the allocator has not given back.
    all_pairs = layers * heads * length * length * 4
    assert found.peak_bytes < all_pairs / 4, f"{found.peak_bytes / 2**20:.0f} MiB"
