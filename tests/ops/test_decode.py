"""Decoding with a state that is overwritten."""

from __future__ import annotations

import pytest
import torch

from flexformer import MultiheadAttention, State, kernels, linear_attention


def build(name, dtype=torch.float64):
    return kernels.build(name, num_heads=2, head_dim=8).to(dtype)


def empty(kernel, batch=1, dim=8, dtype=torch.float64):
    return State.empty(batch, 2, kernel.num_features, dim, dtype=dtype)


def pointers(state):
    return [x.data_ptr() for x in state]


@torch.no_grad()
def test_a_state_that_nothing_was_added_to_is_a_copy(kernel_name):
    kernel = build(kernel_name)
    q, k, v = (torch.randn(1, 2, 9, 8, dtype=torch.float64) for _ in range(3))
    _, before = linear_attention(q, k, v, kernel, return_state=True)
    kept = [x.clone() for x in before]
    _, after = linear_attention(q, k[:, :, :0], v[:, :, :0], kernel, initial_state=before, return_state=True)
    linear_attention(q, k, v, kernel, initial_state=after, update_state=True)
    assert all(torch.equal(x, y) for x, y in zip(before, kept, strict=True))


@torch.no_grad()
def test_steps_in_place_equal_the_whole(kernel_name):
    kernel = build(kernel_name)
    q = torch.randn(2, 4, 30, 8, dtype=torch.float64)
    k, v = (torch.randn(2, 2, 30, 8, dtype=torch.float64) for _ in range(2))
    visible = torch.rand(2, 30) > 0.3
    expected, after = linear_attention(q, k, v, kernel, True, visible, return_state=True)
    state = empty(kernel, batch=2)
    memory = pointers(state)
    pieces = [slice(0, 17), *(slice(i, i + 1) for i in range(17, 30))]
    out = torch.cat(
        [
            linear_attention(q[:, :, p], k[:, :, p], v[:, :, p], kernel, True, visible[:, p], state, update_state=True)
            for p in pieces
        ],
        dim=2,
    )
    torch.testing.assert_close(out, expected, rtol=1e-9, atol=1e-11)
    assert pointers(state) == memory
    for actual, wanted in zip(state, after, strict=True):
        torch.testing.assert_close(actual, wanted, rtol=1e-9, atol=1e-11)


@torch.no_grad()
def test_a_step_of_half_precision_keeps_the_state_in_float32(kernel_name):
    kernel = build(kernel_name, torch.float32)
    state = empty(kernel, dtype=torch.float32)
    q, k, v = (torch.randn(1, 2, 1, 8, dtype=torch.bfloat16) for _ in range(3))
    out = linear_attention(q, k, v, kernel, True, None, state, update_state=True)
    assert out.dtype == torch.bfloat16
    assert state.S.dtype == torch.float32
    assert int(state.length) == 1


def test_updating_a_state_that_a_backward_pass_needs_is_refused():
    kernel = build("flexformer-n")
    q, k, v = (torch.randn(1, 2, 1, 8, dtype=torch.float64) for _ in range(3))
    with pytest.raises(ValueError, match=r"call under torch\.no_grad"):
        linear_attention(q, k, v, kernel, True, None, empty(kernel), update_state=True)


@torch.no_grad()
def test_an_update_needs_a_state_with_a_length_of_its_own():
    kernel = build("flexformer-n")
    q, k, v = (torch.randn(1, 2, 1, 8, dtype=torch.float64) for _ in range(3))
    with pytest.raises(ValueError, match="needs an initial_state"):
        linear_attention(q, k, v, kernel, True, update_state=True)
    with pytest.raises(TypeError, match=r"initial_state\.length is the number 0"):
        linear_attention(q, k, v, kernel, True, None, State(*empty(kernel)[:4]), update_state=True)
    with pytest.raises(ValueError, match="cu_seqlens cannot go with"):
        linear_attention(q, k, v, kernel, True, cu_seqlens=torch.tensor([0, 1]), update_state=True)


@pytest.mark.parametrize("name", ["flexformer-n", "polaformer", "cosformer"])
@torch.no_grad()
def test_a_module_decodes_in_place(name):
    attention = MultiheadAttention(16, 2, name, is_causal=True).eval()
    x = torch.randn(2, 12, 16)
    expected = attention(x)
    first, state = attention(x[:, :5], return_state=True)
    memory = pointers(state)
    rest = [attention(x[:, i : i + 1], state=state, update_state=True) for i in range(5, 12)]
    torch.testing.assert_close(torch.cat([first, *rest], dim=1), expected, rtol=1e-4, atol=1e-5)
    assert pointers(state) == memory


@torch.no_grad()
def test_softmax_has_no_state_to_overwrite():
    attention = MultiheadAttention(16, 2, "softmax", is_causal=True)
    with pytest.raises(ValueError, match="update_state is for kernel attentions"):
        attention(torch.randn(1, 1, 16), update_state=True)
