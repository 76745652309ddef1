"""Wrong arguments raise errors that name the argument, its value and the remedy."""

import pytest
import torch

from flexformer import kernels
from flexformer.ops import State, linear_attention, reference_attention

GOOD = torch.zeros(2, 4, 6, 8)


@pytest.fixture
def kernel():
    return kernels.build("flexformer-n", 4, 8)


@pytest.mark.parametrize("attention", [linear_attention, reference_attention])
@pytest.mark.parametrize(
    ("replaced", "error", "message"),
    [
        ({"q": [1.0]}, TypeError, "q is a list"),
        ({"q": torch.zeros(2, 6, 8)}, ValueError, r"q has shape \(2, 6, 8\); pass \(B, H, T, D\)"),
        ({"k": torch.zeros(2, 4, 6, 8).long()}, TypeError, "k has dtype torch.int64; use float16"),
        ({"v": torch.zeros(2, 4, 6, 8).half()}, TypeError, "v has dtype torch.float16 but q has torch.float32"),
        ({"k": torch.zeros(2, 4, 6, 7), "v": GOOD}, ValueError, r"k has shape \(2, 4, 6, 7\)"),
        ({"k": torch.zeros(3, 4, 6, 8), "v": torch.zeros(3, 4, 6, 8)}, ValueError, r"k has shape \(3, 4, 6, 8\)"),
        ({"v": torch.zeros(2, 4, 5, 8)}, ValueError, r"v has shape \(2, 4, 5, 8\)"),
        ({"q": torch.zeros(2, 6, 6, 8)}, ValueError, "q has 6 heads, not a multiple of k's 4"),
        ({"k": GOOD[:, :2], "v": GOOD[:, :2]}, ValueError, "k has 2 heads but kernel was built with num_heads 4"),
        ({"kernel": "flexformer-n"}, TypeError, "kernel str is not a Kernel"),
        ({"key_mask": torch.ones(2, 6)}, TypeError, "key_mask has dtype torch.float32; pass booleans"),
        ({"key_mask": torch.ones(6, 2).bool()}, ValueError, r"key_mask has shape \(6, 2\); pass \(B, S\) = \(2, 6\)"),
        ({"floor": 0.0}, ValueError, "floor 0.0 is not a positive number"),
        ({"floor": 5.0}, ValueError, "floor 5 is above 1, the most that a row's sum can be"),
        ({"floor": float("nan")}, ValueError, "floor nan is not a positive number"),
        ({"q": GOOD[:, :, :3], "is_causal": True}, ValueError, "is_causal with 3 queries and 6 keys is ambiguous"),
        ({"kernel": kernels.build("linear", 4, 16)}, ValueError, "kernel was built with head_dim 16"),
        ({"kernel": kernels.build("cosformer", 4, 8, max_length=5)}, ValueError, "length 6 exceeds max_length 5"),
    ],
)  # fmt: skip
def test_a_wrong_argument_is_named(kernel, attention, replaced, error, message):
    arguments = {"q": GOOD, "k": GOOD, "v": GOOD, "kernel": kernel} | replaced
    with pytest.raises(error, match=message):
        attention(**arguments)


@pytest.mark.parametrize(
    ("arguments", "error", "message"),
    [
        ({"chunk_size": 0}, ValueError, "chunk_size 0 is not a number of tokens"),
        ({"chunk_size": 2.5}, ValueError, "chunk_size 2.5 is not"),
        ({"query_start": "a"}, TypeError, "query_start 'a' is not a position"),
        ({"query_start": -100}, ValueError, "query_start -100 is negative"),
        ({"is_causal": torch.ones(6, 6).bool()}, TypeError, "is_causal is a Tensor; use True or False"),
        ({"key_mask": [[True]]}, TypeError, "key_mask is a list; pass a tensor of booleans"),
        ({"floor": "0.1"}, TypeError, "floor '0.1' is not a number"),
        ({"initial_state": State(None, None, None, None)}, TypeError, "initial_state has a NoneType as S"),
        ({"initial_state": State.empty(2, 4, 16, 8, dtype=torch.float64)}, TypeError, "S in torch.float64 on cpu"),
        ({"initial_state": (1, 2)}, TypeError, "initial_state is a tuple; pass the State"),
        (
            {"initial_state": State.empty(2, 4, 3, 8)},
            ValueError,
            r"S of shape \(2, 4, 3, 8\); these inputs need",
        ),
        ({"cu_seqlens": torch.tensor([0, 6])}, ValueError, "cu_seqlens needs batch 1 but q has batch 2"),
    ],
)
def test_a_wrong_argument_of_linear_attention_is_named(kernel, arguments, error, message):
    with pytest.raises(error, match=message):
        linear_attention(GOOD, GOOD, GOOD, kernel, **arguments)


@pytest.mark.parametrize(
    ("cu_seqlens", "error", "message"),
    [
        (torch.tensor([0, 5]), ValueError, "must rise from 0 to the packed length 6"),
        (torch.tensor([1, 6]), ValueError, "must rise from 0"),
        (torch.tensor([0, 4, 3, 6]), ValueError, "must rise from 0"),
        (torch.tensor([0.0, 6.0]), TypeError, "cu_seqlens has dtype torch.float32"),
        (torch.tensor([0]), ValueError, "not a vector of boundaries"),
        ([0, 6], ValueError, "not a vector of boundaries"),
    ],
)
def test_wrong_boundaries_are_named(kernel, cu_seqlens, error, message):
    with pytest.raises(error, match=message):
        linear_attention(GOOD[:1], GOOD[:1], GOOD[:1], kernel, cu_seqlens=cu_seqlens)


def test_packed_sequences_have_no_common_state(kernel):
    with pytest.raises(ValueError, match="cu_seqlens cannot go with initial_state or return_state"):
        linear_attention(GOOD[:1], GOOD[:1], GOOD[:1], kernel, cu_seqlens=torch.tensor([0, 6]), return_state=True)


def test_a_state_longer_than_the_kernel_allows_is_refused():
    kernel = kernels.build("cosformer", 4, 8, max_length=10)
    _, state = linear_attention(GOOD, GOOD, GOOD, kernel, True, return_state=True)
    with pytest.raises(ValueError, match="length 12 of initial_state and 6 more exceeds max_length 10"):
        linear_attention(GOOD, GOOD, GOOD, kernel, True, initial_state=state)


@pytest.mark.parametrize("start", [8, torch.tensor(8)])
def test_queries_at_positions_the_kernel_does_not_have_are_refused(start):
    kernel = kernels.build("cosformer", 4, 8, max_length=10)
    with pytest.raises(ValueError, match="length 14 exceeds max_length 10"):
        linear_attention(GOOD, GOOD, GOOD, kernel, query_start=start)


@pytest.mark.parametrize(
    ("replaced", "error", "message"),
    [
        ({"q": GOOD[:1]}, ValueError, "q and k have batches of 1 and 2"),
        ({"key_mask": torch.ones(2, 6)}, TypeError, "key_mask has dtype torch.float32; pass booleans"),
        ({"q": torch.zeros(2, 4, 11, 8)}, ValueError, "length 11 of q exceeds max_length 10"),
    ],
)
def test_statistics_name_a_wrong_argument(replaced, error, message):
    kernel = kernels.build("cosformer", 4, 8, max_length=10)
    with pytest.raises(error, match=message):
        kernel.statistics(**({"q": GOOD, "k": GOOD} | replaced))


@pytest.mark.parametrize(("name", "options"), [("flexformer-n", {"tau": -100.0}), ("flexformer-c", {"beta": 1e30})])
def test_log_weights_that_would_overflow_are_refused(name, options):
    with pytest.raises(ValueError, match="makes log-weights of keys overflow"):
        kernels.build(name, 4, 8, **options)


@pytest.mark.parametrize(
    ("name", "options"),
    [("flexformer-s", {"tau": -20.0}), ("flexformer-n", {"tau": -20.0}), ("flexformer-c", {"beta": 1e8})],
)
def test_the_largest_log_weights_of_the_widest_heads_are_finite(name, options):
    kernel = kernels.build(name, 1, 512, **options)
    q, k, v = (torch.randn(1, 1, 100, 512) for _ in range(3))
    k[:, :, 50] = 1e12
    assert linear_attention(q, k.requires_grad_(), v, kernel).isfinite().all()
