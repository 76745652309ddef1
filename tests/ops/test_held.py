"""The backward pass computes from what the forward pass saw, whatever happens to a kernel in between."""

from concurrent.futures import ThreadPoolExecutor

import pytest
import torch
from torch import nn
from torch.func import functional_call
from torch.nn.utils import parametrize, prune

from flexformer import kernels, linear_attention, reference_attention
from flexformer.kernels.held import can_be_held, holding, named_tensors
from flexformer.kernels.spectral import StationaryKernel

FORMS = (False, True)
NAMES = ("flexformer-s", "flexformer-n", "flexformer-c", "hedgehog", "rfa")


def inputs(length=200, heads=2, dim=8):
    return [torch.randn(1, heads, length, dim, dtype=torch.float64) for _ in range(3)]


def built(name, **options):
    return kernels.build(name, 2, 8, **options).double()


def gradients(out, tensors, **options):
    return torch.autograd.grad(out.square().sum(), tensors, **options)


def moved(kernel):
    return {name: (p + 0.1 * torch.randn_like(p)).detach().requires_grad_() for name, p in kernel.named_parameters()}


@pytest.mark.parametrize("is_causal", FORMS)
@pytest.mark.parametrize("name", NAMES)
@pytest.mark.parametrize("create_graph", [False, True])
def test_parameters_of_a_functional_call(name, is_causal, create_graph):
    kernel, x = Calling(built(name)), inputs()
    given = moved(kernel)
    tensors = list(given.values())
    expected = gradients(functional_call(kernel, given, (reference_attention, x, is_causal)), tensors)
    out = functional_call(kernel, given, (linear_attention, x, is_causal))
    torch.testing.assert_close(gradients(out, tensors, create_graph=create_graph), expected)


class Calling(nn.Module):
    """A module that attends, as `functional_call` wants one."""

    def __init__(self, kernel):
        super().__init__()
        self.kernel = kernel

    def forward(self, attention, x, is_causal):
        return attention(*x, self.kernel, is_causal)


def test_parameters_of_a_functional_call_in_packed_sequences():
    kernel, x = Calling(built("flexformer-n")), inputs()
    given = moved(kernel)
    bounds = torch.tensor([0, 30, 120, 200])

    def packed(*arguments):
        return linear_attention(*arguments[:4], cu_seqlens=bounds)

    def apart(q, k, v, kernel, is_causal):
        parts = zip(*(t.split([30, 90, 80], dim=2) for t in (q, k, v)), strict=True)
        return torch.cat([reference_attention(*part, kernel) for part in parts], dim=2)

    tensors = list(given.values())
    expected = gradients(functional_call(kernel, given, (apart, x, False)), tensors)
    torch.testing.assert_close(gradients(functional_call(kernel, given, (packed, x, False)), tensors), expected)


@pytest.mark.parametrize("is_causal", FORMS)
@pytest.mark.parametrize("name", NAMES)
def test_freezing_a_kernel_before_the_backward_pass(name, is_causal):
    kernel, x = built(name), inputs()
    x[0].requires_grad_()
    (expected,) = gradients(reference_attention(*x, kernel, is_causal), x[:1])
    out = linear_attention(*x, kernel, is_causal)
    kernel.requires_grad_(False)
    out.square().sum().backward()
    torch.testing.assert_close(x[0].grad, expected)


@pytest.mark.parametrize("is_causal", FORMS)
@pytest.mark.parametrize("name", ["flexformer-n", "flexformer-c"])
def test_one_parameter_in_two_places(name, is_causal):
    kernel, x = built(name, centres=True), inputs()
    kernel.centre_k = kernel.centre_q
    with torch.no_grad():
        kernel.centre_q.normal_()
    tensors = list(kernel.parameters())
    expected = gradients(reference_attention(*x, kernel, is_causal), tensors)
    out = linear_attention(*x, kernel, is_causal)
    torch.testing.assert_close(gradients(out, tensors, retain_graph=True), expected)
    torch.testing.assert_close(gradients(out, tensors, create_graph=True), expected)


@pytest.mark.parametrize("is_causal", FORMS)
def test_one_tensor_as_queries_keys_and_values_differentiated_twice(is_causal):
    kernel, x = built("flexformer-n"), inputs()[0].requires_grad_()

    def of(attention):
        (first,) = gradients(attention(x, x, x, kernel, is_causal), [x], create_graph=True)
        return first, *torch.autograd.grad(first.square().sum(), [x])

    torch.testing.assert_close(of(linear_attention), of(reference_attention))


class Doubled(nn.Module):
    def forward(self, x):
        return 2 * x


@pytest.mark.parametrize("is_causal", FORMS)
def test_parametrized_frequencies(is_causal):
    kernel, x = built("flexformer-n"), inputs()
    parametrize.register_parametrization(kernel, "omega1", Doubled())
    tensors = list(kernel.parameters())
    expected = gradients(reference_attention(*x, kernel, is_causal), tensors)
    torch.testing.assert_close(gradients(linear_attention(*x, kernel, is_causal), tensors), expected)


@pytest.mark.parametrize("is_causal", FORMS)
def test_a_replica_of_data_parallel(is_causal):
    kernel, x = built("flexformer-n"), inputs()
    replica = kernel._replicate_for_data_parallel()
    for name, parameter in kernel._parameters.items():  # as DataParallel does
        if parameter is None:
            replica._parameters[name] = None
        else:
            setattr(replica, name, parameter)
    tensors = list(kernel.parameters())
    expected = gradients(reference_attention(*x, kernel, is_causal), tensors)
    torch.testing.assert_close(gradients(linear_attention(*x, replica, is_causal), tensors), expected)


@pytest.mark.parametrize("is_causal", FORMS)
def test_a_mask_that_is_overwritten_is_noticed(is_causal):
    kernel, x = built("flexformer-n"), inputs()
    mask = torch.rand(1, 200) > 0.3
    out = linear_attention(*x, kernel, is_causal, key_mask=mask)
    mask.fill_(True)
    with pytest.raises(RuntimeError, match="modified by an inplace operation"):
        out.sum().backward()


@pytest.mark.parametrize("is_causal", FORMS)
def test_a_projection_that_is_loaded_over_is_noticed(is_causal):
    kernel, x = built("performer"), [t.requires_grad_() for t in inputs()]
    out = linear_attention(*x, kernel, is_causal)
    kernel.load_state_dict(built("performer").state_dict())
    with pytest.raises(RuntimeError, match="modified by an inplace operation"):
        out.sum().backward()


@pytest.mark.parametrize("changed", ["kernel", "values"])
def test_changes_in_place_are_noticed_in_packed_sequences(changed):
    kernel, x = built("performer"), [t.requires_grad_() for t in inputs()]
    values = x[2] * 1.0
    out = linear_attention(*x[:2], values, kernel, cu_seqlens=torch.tensor([0, 30, 120, 200]))
    with torch.no_grad():
        (kernel.projection if changed == "kernel" else values).mul_(1.5)
    with pytest.raises(RuntimeError, match=r"modified (by an )?inplace"):
        out.sum().backward()


@pytest.mark.parametrize("is_causal", FORMS)
@pytest.mark.parametrize(("name", "pruned"), [("hedgehog", "map"), ("flexformer-s", "omega")])
def test_pruned_parameters(name, pruned, is_causal):
    kernel, x = built(name), inputs()
    prune.l1_unstructured(kernel, pruned, amount=0.3)
    tensors = list(kernel.parameters())
    expected = gradients(reference_attention(*x, kernel, is_causal), tensors, retain_graph=True)
    torch.testing.assert_close(gradients(linear_attention(*x, kernel, is_causal), tensors), expected)


@pytest.mark.parametrize("is_causal", FORMS)
def test_random_features_that_are_trained(is_causal):
    kernel, x = built("performer"), inputs()
    kernel.projection.requires_grad_()
    expected = gradients(reference_attention(*x, kernel, is_causal), [kernel.projection])
    out = linear_attention(*x, kernel, is_causal)
    torch.testing.assert_close(gradients(out, [kernel.projection]), expected)


class Labelled(StationaryKernel):
    """Has a parameter that its features do not depend on."""

    def __init__(self, *sizes):
        super().__init__(*sizes)
        self.label = nn.Parameter(torch.zeros(3))


@pytest.mark.parametrize("is_causal", FORMS)
def test_a_parameter_without_a_part_in_features(is_causal):
    kernel, x = Labelled(2, 8).double(), inputs()
    (expected,) = gradients(reference_attention(*x, kernel, is_causal), [kernel.omega])
    linear_attention(*x, kernel, is_causal).square().sum().backward()
    torch.testing.assert_close(kernel.omega.grad, expected)
    assert kernel.label.grad is None


def test_a_stand_in_has_the_tensors_and_the_kernel_keeps_its_own():
    kernel = Wrapped(built("rfa"))
    before = named_tensors(kernel)
    others = {name: torch.zeros_like(x) for name, x in before.items()}
    twin = holding(kernel, others)
    assert type(twin) is Wrapped
    assert named_tensors(twin).keys() == before.keys()
    assert all(x is others[name] for name, x in named_tensors(twin).items())
    assert all(x is before[name] for name, x in named_tensors(kernel).items())


@pytest.mark.parametrize("is_causal", FORMS)
@pytest.mark.parametrize("name", NAMES)
def test_threads_that_share_a_kernel_all_get_their_gradients(name, is_causal):
    kernel = built(name).eval()
    before = named_tensors(kernel)
    parameters = [*kernel.parameters()]
    x = inputs()
    expected = gradients(linear_attention(*x, kernel, is_causal), parameters)

    def work(_):
        return [gradients(linear_attention(*x, kernel, is_causal), parameters) for _ in range(20)]

    with ThreadPoolExecutor(2) as pool:
        found = [each for own in pool.map(work, range(2)) for each in own]
    for each in found:
        torch.testing.assert_close(each, expected)
    assert all(x is before[name] for name, x in named_tensors(kernel).items())


class Wrapped(kernels.Kernel):
    """A kernel around another one."""

    def __init__(self, inner):
        super().__init__(inner.num_heads, inner.head_dim, inner.num_features, inner.policy, inner.floor)
        self.inner = inner

    def query_features(self, q, positions=None):
        return self.inner.query_features(q, positions)

    def key_features(self, k, positions=None):
        return self.inner.key_features(k, positions)


@pytest.mark.parametrize("is_causal", FORMS)
def test_random_features_of_a_part_that_are_drawn_anew(is_causal):
    kernel, x = Wrapped(built("performer")), [t.requires_grad_() for t in inputs()]
    expected = gradients(reference_attention(*x, kernel, is_causal), x)
    out = linear_attention(*x, kernel, is_causal)
    kernel.inner.redraw()
    now = kernel.inner.projection
    torch.testing.assert_close(gradients(out, x), expected)
    assert kernel.inner.projection is now
    assert not kernel._buffers


class Sharper(StationaryKernel):
    """Another feature map over the same parameters."""

    def _features(self, x):
        return super()._features(2 * x)


@pytest.mark.parametrize("is_causal", FORMS)
def test_features_of_a_subclass_are_its_own(is_causal):
    kernel, x = Sharper(2, 8).double(), inputs()
    tensors = list(kernel.parameters())
    out, expected = linear_attention(*x, kernel, is_causal), reference_attention(*x, kernel, is_causal)
    torch.testing.assert_close(out, expected)
    torch.testing.assert_close(gradients(out, tensors), gradients(expected, tensors))


@pytest.mark.parametrize("name", kernels.names())
def test_kernels_of_the_package_need_not_be_traced(name):
    assert can_be_held(kernels.build(name, 2, 8))
