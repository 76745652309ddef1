"""Every form of every kernel agrees with the definition, in outputs and in all gradients."""

from itertools import pairwise

import pytest
import torch
from torch.autograd import forward_ad

from flexformer import kernels
from flexformer.ops import State, linear_attention, merge, reference_attention
from flexformer.ops.forms import FORMS, compare

LENGTHS = (1, 2, 63, 130)
CHUNKS = (1, 16, 64, 1000)
CHUNKED = {"causal", "packed", "packed causal", "padded left", "grouped heads"}


def varied(name, num_heads=2, head_dim=8, **options):
    """A float64 kernel whose parameters have left their start, so that no gradient vanishes by symmetry."""
    kernel = kernels.build(name, num_heads, head_dim, **options).double()
    with torch.no_grad():
        for parameter in kernel.parameters():
            parameter.add_(0.05 * torch.randn_like(parameter))
    return kernel


@pytest.mark.parametrize("length", LENGTHS)
@pytest.mark.parametrize("form", FORMS, ids=lambda form: form.name)
def test_a_form_equals_the_definition_in_float64(form, kernel_name, length):
    for chunk in CHUNKS if form.name in CHUNKED else (16,):
        worst = compare(form, varied(kernel_name), length, chunk_size=chunk)
        assert max(worst) < 1e-9, f"chunk size {chunk}: {worst}"


@pytest.mark.parametrize("form", FORMS, ids=lambda form: form.name)
def test_a_form_in_float32_is_close_to_float64(form, kernel_name):
    worst = compare(form, varied(kernel_name), 130, dtype=torch.float32, chunk_size=16)
    assert worst.output < 1e-5
    assert worst.gradient < 1e-5


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16])
@pytest.mark.parametrize("is_causal", [False, True])
def test_half_precision_loses_only_what_rounding_takes(kernel_name, dtype, is_causal):
    kernel = varied(kernel_name)
    q, k, v = (torch.randn(2, 2, 130, 8).to(dtype).requires_grad_() for _ in range(3))
    exact = [x.detach().double().requires_grad_() for x in (q, k, v)]
    out = linear_attention(q, k, v, kernel, is_causal)
    expected = reference_attention(*exact, kernel, is_causal)
    assert out.dtype == dtype
    assert rms_error(out, expected) < 5e-3
    cotangent = torch.randn(out.shape).to(dtype)
    gradients = torch.autograd.grad(out, (q, k, v), cotangent)
    for actual, wanted in zip(gradients, torch.autograd.grad(expected, exact, cotangent.double()), strict=True):
        assert actual.dtype == dtype
        assert rms_error(actual, wanted) < 5e-3


@pytest.mark.parametrize("is_causal", [False, True])
@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16])
@pytest.mark.parametrize("name", ["flexformer-s", "flexformer-n"])
def test_gradients_of_parameters_do_not_depend_on_the_dtype_of_values(name, dtype, is_causal):
    kernel = kernels.build(name, 2, 32)  # the root of 32 has no short binary form
    q, k, v, cotangent = (torch.randn(1, 2, 200, 32).to(dtype) for _ in range(4))
    found = torch.autograd.grad(linear_attention(q, k, v, kernel, is_causal), [*kernel.parameters()], cotangent)
    exact = kernel.double()
    out = reference_attention(*(x.double() for x in (q, k, v)), exact, is_causal)
    wanted = torch.autograd.grad(out, [*exact.parameters()], cotangent.double())
    for actual, expected in zip(found, wanted, strict=True):
        assert rms_error(actual, expected) < 1e-5


@pytest.mark.parametrize("length", [0, 1, 64, 100])
@pytest.mark.parametrize("is_causal", [False, True])
def test_a_batch_of_nothing_gives_nothing(kernel_name, is_causal, length):
    kernel = varied(kernel_name)
    q = torch.randn(0, 2, length, 8, dtype=torch.float64, requires_grad=True)
    out, state = linear_attention(q, q, q, kernel, is_causal, return_state=True)
    assert out.shape == q.shape
    assert state.S.shape[0] == 0
    out.sum().backward()
    assert q.grad.shape == q.shape


@pytest.mark.parametrize("is_causal", [False, True])
def test_forward_mode_gives_the_directional_derivative_at_any_length(kernel_name, is_causal):
    kernel = varied(kernel_name)
    for length in (10, 100):
        q, k, v, tangent = (torch.randn(1, 2, length, 8, dtype=torch.float64) for _ in range(4))
        with forward_ad.dual_level():
            out = linear_attention(forward_ad.make_dual(q, tangent), k, v, kernel, is_causal)
            found = forward_ad.unpack_dual(out).tangent
        leaf = q.requires_grad_()
        cotangent = torch.randn_like(v)
        (gradient,) = torch.autograd.grad(linear_attention(leaf, k, v, kernel, is_causal), leaf, cotangent)
        torch.testing.assert_close((found * cotangent).sum(), (gradient * tangent).sum(), rtol=1e-8, atol=1e-10)


def rms_error(actual, expected):
    return ((actual.double() - expected).norm() / expected.norm()).item()


def test_a_kernel_stored_in_bfloat16_still_computes_in_float32(kernel_name):
    kernel = kernels.build(kernel_name, 2, 8).to(torch.bfloat16)
    q, k, v = (torch.randn(1, 2, 40, 8, dtype=torch.bfloat16) for _ in range(3))
    out, state = linear_attention(q, k, v, kernel, True, return_state=True)
    assert out.dtype == torch.bfloat16
    assert {state.S.dtype, state.z.dtype, state.w.dtype, state.m.dtype} == {torch.float32}


@pytest.mark.parametrize("is_causal", [False, True])
def test_autocast_changes_nothing_but_the_inputs_rounding(kernel_name, is_causal):
    kernel = kernels.build(kernel_name, 2, 8)
    q, k, v = (torch.randn(1, 2, 70, 8, dtype=torch.bfloat16) for _ in range(3))
    plain = linear_attention(q, k, v, kernel, is_causal)
    with torch.autocast("cpu", dtype=torch.bfloat16):
        assert torch.equal(linear_attention(q, k, v, kernel, is_causal), plain)
        mixed = linear_attention(q.float(), k, v, kernel, is_causal)
    assert torch.equal(mixed, plain)


@pytest.mark.parametrize("is_causal", [False, True])
def test_a_backward_pass_inside_autocast_stays_in_full_precision(kernel_name, is_causal):
    kernel = varied(kernel_name).float()
    inputs = torch.randn(3, 1, 2, 70, 8)
    gradients = []
    for enabled in (False, True):
        leaf = inputs.clone().requires_grad_()
        with torch.autocast("cpu", dtype=torch.bfloat16, enabled=enabled):
            linear_attention(*leaf, kernel, is_causal).square().sum().backward()
        gradients.append(leaf.grad)
    assert torch.equal(*gradients)


def test_float64_inputs_keep_a_float64_state(kernel_name):
    kernel = kernels.build(kernel_name, 2, 8).double()
    q = torch.randn(1, 2, 5, 8, dtype=torch.float64)
    _, state = linear_attention(q, q, q, kernel, return_state=True)
    assert state.S.dtype == torch.float64


@pytest.mark.parametrize("is_causal", [False, True])
def test_gradcheck_passes_for_inputs_and_initial_state(kernel_name, is_causal):
    kernel = varied(kernel_name, num_heads=1, head_dim=4)
    start = torch.randn(3, 1, 1, 3, 4, dtype=torch.float64)
    _, state = linear_attention(*start, kernel, return_state=True)
    q, k, v = torch.randn(3, 1, 1, 5, 4, dtype=torch.float64).requires_grad_().unbind(0)

    def function(q, k, v, S, z, w):
        given = State(S, z, w, state.m, state.length)
        out, after = linear_attention(q, k, v, kernel, is_causal, initial_state=given, return_state=True, chunk_size=2)
        # S, z and w alone are in units of e^m, which counts as constant; what is read from them is not.
        return out, linear_attention(q, k, v, kernel, is_causal, initial_state=after)

    leaves = [x.detach().requires_grad_() for x in (q, k, v, state.S, state.z, state.w)]
    assert torch.autograd.gradcheck(function, leaves, eps=1e-6, atol=1e-6, rtol=1e-6)


@pytest.mark.parametrize("name", ["flexformer-s", "flexformer-n", "hedgehog", "polaformer", "rfa"])
def test_gradcheck_passes_for_kernel_parameters(name):
    kernel = varied(name, num_heads=1, head_dim=4)
    q, k, v = torch.randn(3, 1, 1, 5, 4, dtype=torch.float64).unbind(0)
    names = [name for name, _ in kernel.named_parameters()]

    def function(*parameters):
        replaced = dict(zip(names, parameters, strict=True))
        return torch.func.functional_call(Bound(kernel), {f"kernel.{n}": p for n, p in replaced.items()}, (q, k, v))

    leaves = [p.detach().clone().requires_grad_() for p in kernel.parameters()]
    assert torch.autograd.gradcheck(function, leaves, eps=1e-6, atol=1e-6, rtol=1e-6)


class Bound(torch.nn.Module):
    def __init__(self, kernel, **arguments):
        super().__init__()
        self.kernel = kernel
        self.arguments = arguments

    def forward(self, q, k, v):
        return linear_attention(q, k, v, self.kernel, True, chunk_size=2)


def test_the_initial_state_gradient_agrees_between_chunks_and_steps(kernel_name):
    kernel = varied(kernel_name)
    first, second = torch.randn(2, 3, 1, 2, 9, 8, dtype=torch.float64)
    _, state = linear_attention(*first, kernel, True, return_state=True)
    gradients = []
    for pieces in ([9], [1] * 9):
        parts = [x.detach().requires_grad_() for x in state[:3]]
        carried, outs = State(*parts, state.m, state.length), []
        for piece in zip(*(x.split(pieces, dim=2) for x in second), strict=True):
            out, carried = linear_attention(*piece, kernel, True, initial_state=carried, return_state=True)
            outs.append(out)
        loss = torch.cat(outs, 2).square().sum()
        gradients.append(torch.autograd.grad(loss, parts, allow_unused=True, materialize_grads=True))
    for a, b in zip(*gradients, strict=True):
        torch.testing.assert_close(a, b, rtol=1e-9, atol=1e-9)


def test_states_merge_to_the_state_of_all_keys(kernel_name):
    kernel = varied(kernel_name)
    q, k, v = torch.randn(3, 2, 2, 20, 8, dtype=torch.float64)
    _, whole = linear_attention(q, k, v, kernel, return_state=True)
    _, first = linear_attention(q, k[:, :, :7], v[:, :, :7], kernel, return_state=True)
    empty = linear_attention(q, k[:, :, :0], v[:, :, :0], kernel, initial_state=first, return_state=True)[1]
    _, second = linear_attention(q, k[:, :, 7:], v[:, :, 7:], kernel, initial_state=None, return_state=True)
    if not kernel.uses_positions:  # there the second half would have to know where it starts
        for a, b in zip(merge(empty, second), whole, strict=True):
            torch.testing.assert_close(a, b)
    _, resumed = linear_attention(q, k[:, :, 7:], v[:, :, 7:], kernel, initial_state=first, return_state=True)
    for a, b in zip(resumed, whole, strict=True):
        torch.testing.assert_close(a, b)


def test_a_state_alone_can_be_read_without_new_keys(kernel_name):
    kernel = varied(kernel_name)
    q, k, v = torch.randn(3, 2, 2, 20, 8, dtype=torch.float64)
    expected, state = linear_attention(q, k, v, kernel, return_state=True)
    out = linear_attention(q, k[:, :, :0], v[:, :, :0], kernel, initial_state=state)
    torch.testing.assert_close(out, expected)


def test_the_state_does_not_grow(kernel_name):
    kernel = kernels.build(kernel_name, 2, 8)
    state = None
    for _ in range(3):
        q, k, v = torch.randn(3, 1, 2, 10, 8)
        _, state = linear_attention(q, k, v, kernel, True, initial_state=state, return_state=True)
        assert state.S.shape == (1, 2, kernel.num_features, 8)
        assert state.z.shape == (1, 2, kernel.num_features)
        assert state.w.shape == state.m.shape == (1, 2)
    assert int(state.length) == 30


def test_values_may_be_wider_than_keys(kernel_name):
    kernel = varied(kernel_name)
    q, k = torch.randn(2, 1, 2, 20, 8, dtype=torch.float64)
    v = torch.randn(1, 2, 20, 3, dtype=torch.float64)
    for is_causal in (False, True):
        out = linear_attention(q, k, v, kernel, is_causal, chunk_size=8)
        torch.testing.assert_close(out, reference_attention(q, k, v, kernel, is_causal))


def test_no_queries_and_no_keys_give_empty_and_zero_outputs(kernel_name):
    kernel = kernels.build(kernel_name, 2, 8)
    q, k, v = torch.randn(3, 1, 2, 4, 8)
    assert linear_attention(q[:, :, :0], k[:, :, :0], v[:, :, :0], kernel, True).shape == (1, 2, 0, 8)
    assert torch.equal(linear_attention(q, k[:, :, :0], v[:, :, :0], kernel), torch.zeros(1, 2, 4, 8))
    assert torch.equal(reference_attention(q, k[:, :, :0], v[:, :, :0], kernel), torch.zeros(1, 2, 4, 8))


@pytest.mark.parametrize("is_causal", [False, True])
def test_one_visible_key_gives_its_value(kernel_name, is_causal):
    """Whatever the kernel makes of a query and a key: normalised, a single weight is one."""
    if kernel_name == "rfa":
        pytest.skip("rfa's denominator is at least 1, which a single key does not reach")
    kernel = kernels.build(kernel_name, 1, 4).double()
    q = torch.tensor([[12.0, 1.0, 0.1, 0.1], [1000.0, 1.0, 0.0, 0.0], [1e-6, 1e-6, 1e-6, 1e-6]])
    k = torch.tensor([[0.1, 1.0, 12.0, 0.1], [-1.0, 1.0, 0.0, 0.0], [1e-6, 1e-6, 1e-6, 1e-6]])
    if kernel_name.startswith("flexformer"):
        q, k = q.clamp(max=1.0), k.clamp(max=1.0)  # beyond, cosines may be negative and the floor takes over
    if kernel_name == "cosformer":
        q, k = q[:2], k[:2]  # below 1e-6 the original's own guard shrinks the output
    for i in range(len(q)):
        v = torch.randn(1, 1, 1, 4, dtype=torch.float64)
        out = linear_attention(q[i].double().expand_as(v), k[i].double().expand_as(v), v, kernel, is_causal)
        torch.testing.assert_close(out, v)


@pytest.mark.parametrize("policy", ["floor", "raw"])
@pytest.mark.parametrize("is_causal", [False, True])
def test_gradcheck_passes_on_rows_that_the_policy_guards(policy, is_causal):
    kernel = kernels.build("flexformer-s", 1, 4, frequency_scale=3.0, policy=policy, floor=0.5).double()
    q, k, v = (torch.randn(1, 1, 80, 4, dtype=torch.float64, requires_grad=True) for _ in range(3))
    assert kernel.statistics(q, k, is_causal=is_causal).floored_rows > 0.3
    assert torch.autograd.gradcheck(
        lambda q, k, v: linear_attention(q, k, v, kernel, is_causal, chunk_size=32), (q, k, v), atol=1e-5
    )


@pytest.mark.parametrize("is_causal", [False, True])
def test_a_floor_given_to_the_call_counts_as_in_the_definition(kernel_name, is_causal):
    kernel = varied(kernel_name)
    q, k, v = (torch.randn(2, 2, 130, 8, dtype=torch.float64, requires_grad=True) for _ in range(3))
    given = (q, k, v, *kernel.trained_parameters())
    out = linear_attention(q, k, v, kernel, is_causal, floor=0.9, chunk_size=32)
    expected = reference_attention(q, k, v, kernel, is_causal, floor=0.9)
    torch.testing.assert_close(out, expected)
    cotangent = torch.randn_like(out)
    found = torch.autograd.grad(out, given, cotangent, materialize_grads=True)
    wanted = torch.autograd.grad(expected, given, cotangent, materialize_grads=True)
    for a, b in zip(found, wanted, strict=True):
        torch.testing.assert_close(a, b, rtol=1e-7, atol=1e-9)


@pytest.mark.parametrize("is_causal", [False, True])
def test_gradients_can_be_differentiated_again(kernel_name, is_causal):
    kernel = varied(kernel_name, num_heads=1, head_dim=4)
    # Away from the corners of relu, and longer than one block.
    q, k, v = ((0.2 + torch.rand(1, 1, 66, 4, dtype=torch.float64)).requires_grad_() for _ in range(3))

    def first_gradient(attention):
        out = attention(q, k, v, kernel, is_causal)
        return torch.autograd.grad(out.square().sum(), (q, k, v, *kernel.parameters()), create_graph=True)

    def second_gradient(attention):
        total = sum(g.square().sum() for g in first_gradient(attention))
        return torch.autograd.grad(total, (q, k, v))

    for a, b in zip(second_gradient(linear_attention), second_gradient(reference_attention), strict=True):
        torch.testing.assert_close(a, b, rtol=1e-6, atol=1e-8)


@pytest.mark.parametrize("is_causal", [False, True])
def test_functional_transforms_work(kernel_name, is_causal):
    kernel = varied(kernel_name)
    q, k, v = torch.randn(3, 5, 1, 2, 70, 8, dtype=torch.float64)
    mapped = torch.func.vmap(lambda q, k, v: linear_attention(q, k, v, kernel, is_causal))(q, k, v)
    separate = torch.stack([linear_attention(q[i], k[i], v[i], kernel, is_causal) for i in range(5)])
    torch.testing.assert_close(mapped, separate)
    gradient = torch.func.grad(lambda q: linear_attention(q, k[0], v[0], kernel, is_causal).square().sum())(q[0])
    leaf = q[0].clone().requires_grad_()
    linear_attention(leaf, k[0], v[0], kernel, is_causal).square().sum().backward()
    torch.testing.assert_close(gradient, leaf.grad)


def test_a_returned_state_keeps_nothing_else_alive(kernel_name):
    kernel = kernels.build(kernel_name, 2, 8)
    q, k, v = torch.randn(3, 1, 2, 300, 8)
    for is_causal in (False, True):
        _, state = linear_attention(q, k, v, kernel, is_causal, return_state=True)
        for x in state[:4]:
            assert x.untyped_storage().nbytes() == x.numel() * x.element_size()


def test_only_what_needs_a_gradient_gets_one(kernel_name):
    kernel = kernels.build(kernel_name, 2, 8).requires_grad_(False)
    q, k, v = torch.randn(3, 1, 2, 130, 8)
    k.requires_grad_()
    for is_causal in (False, True):
        out = linear_attention(q, k, v, kernel, is_causal)
        expected = reference_attention(q, k, v, kernel, is_causal)
        found, wanted = (torch.autograd.grad(x.square().sum(), k)[0] for x in (out, expected))
        torch.testing.assert_close(found, wanted, rtol=1e-3, atol=1e-4)


def test_many_short_packed_sequences_agree_with_separate_ones(kernel_name):
    kernel = varied(kernel_name)
    lengths = torch.randint(0, 6, (40,))
    cu_seqlens = torch.nn.functional.pad(lengths.cumsum(0), (1, 0))
    q, k, v = torch.randn(3, 1, 2, int(cu_seqlens[-1]), 8, dtype=torch.float64)
    for is_causal in (False, True):
        out = linear_attention(q, k, v, kernel, is_causal, cu_seqlens=cu_seqlens)
        parts = [slice(a, b) for a, b in pairwise(cu_seqlens.tolist())]
        separate = [reference_attention(q[:, :, p], k[:, :, p], v[:, :, p], kernel, is_causal) for p in parts]
        torch.testing.assert_close(out, torch.cat(separate, dim=2))


def test_a_packed_length_may_exceed_what_a_single_sequence_may_not():
    kernel = kernels.build("cosformer", 2, 8, max_length=64)
    q, k, v = torch.randn(3, 1, 2, 80, 8)
    linear_attention(q, k, v, kernel, cu_seqlens=torch.tensor([0, 40, 80]))
    with pytest.raises(ValueError, match="length 70 exceeds max_length 64"):
        linear_attention(q, k, v, kernel, cu_seqlens=torch.tensor([0, 70, 80]))
    with pytest.raises(ValueError, match="length 108 exceeds max_length 64"):
        linear_attention(q[:, :, :8], k[:, :, :60], v[:, :, :60], kernel, query_start=100)
