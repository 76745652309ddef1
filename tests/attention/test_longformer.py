"""Window attention against its dense, masked version."""

from __future__ import annotations

import pytest
import torch
from torch import Tensor

from flexformer.attention.longformer import LongformerAttention

H, D = 2, 4


def tensors(length: int) -> tuple[Tensor, Tensor, Tensor, Tensor]:
    generator = torch.Generator().manual_seed(length)
    q, k, v = torch.randn(3, 2, H, length, D, generator=generator, dtype=torch.float64)
    return 2 * q, k, v, torch.randn(2, length, H * D, generator=generator, dtype=torch.float64)


def heads(t: Tensor) -> Tensor:
    return t.unflatten(-1, (H, D)).transpose(1, 2)


def dense(q: Tensor, k: Tensor, v: Tensor, visible: Tensor) -> Tensor:
    logits = (q @ k.mT / D**0.5).masked_fill(~visible, -torch.inf)
    return logits.softmax(-1).nan_to_num(0.0) @ v


def by_definition(module: LongformerAttention, q: Tensor, k: Tensor, v: Tensor, x: Tensor, mask: Tensor) -> Tensor:
    i = torch.arange(q.shape[2])
    is_global = i < module.num_global
    near = (i[:, None] - i).abs() <= module.window // 2
    out = dense(q, k, v, (near | is_global)[None, None] & mask[:, None, None])
    if module.num_global:
        projected = (heads(layer(x)) for layer in (module.q_global, module.k_global, module.v_global))
        out = torch.where(is_global[:, None], dense(*projected, mask[:, None, None]), out)
    return out * mask[:, None, :, None]


@pytest.mark.parametrize("length", [1, 2, 7, 33])
@pytest.mark.parametrize("window", [2, 8, 64])
@pytest.mark.parametrize("num_global", [0, 1, 5])
def test_it_equals_dense_attention_under_the_pattern(length: int, window: int, num_global: int) -> None:
    q, k, v, x = tensors(length)
    torch.manual_seed(0)
    module = LongformerAttention(H, D, window=window, num_global=num_global).double()
    everything = torch.ones(2, length, dtype=torch.bool)
    torch.testing.assert_close(module(q, k, v, x=x), by_definition(module, q, k, v, x, everything))
    mask = everything.clone()
    mask[0, length // 2 :] = False
    mask[1, ::3] = False
    out = module(q, k, v, x=x, key_mask=mask)
    torch.testing.assert_close(out, by_definition(module, q, k, v, x, mask))


def test_a_window_over_everything_is_softmax_attention() -> None:
    q, k, v, x = tensors(20)
    expected = torch.nn.functional.scaled_dot_product_attention(q, k, v)
    torch.testing.assert_close(LongformerAttention(H, D, window=40)(q, k, v, x=x), expected)


def test_a_token_depends_on_its_window_and_nothing_else() -> None:
    q, k, v, x = tensors(30)
    v.requires_grad_()
    LongformerAttention(H, D, window=6)(q, k, v, x=x)[:, :, 12].sum().backward()
    assert v.grad is not None
    seen = v.grad.abs().sum((0, 1, 3)) > 0
    assert seen.nonzero().flatten().tolist() == list(range(9, 16))


def test_global_projections_exist_only_with_global_tokens() -> None:
    assert not list(LongformerAttention(H, D).parameters())
    names = {name for name, _ in LongformerAttention(H, D, num_global=1).named_parameters()}
    assert names == {f"{side}_global.{part}" for side in "qkv" for part in ("weight", "bias")}


def test_global_projections_take_the_width_of_the_input() -> None:
    q, k, v, x = tensors(9)
    module = LongformerAttention(H, D, embed_dim=5, num_global=1).double()
    assert module(q, k, v, x=x[..., :5]).shape == v.shape


def test_global_projections_take_no_gradient_from_masked_inputs() -> None:
    q, k, v, x = tensors(12)
    mask = torch.ones(2, 12, dtype=torch.bool)
    mask[:, 8:] = False
    torch.manual_seed(0)
    module = LongformerAttention(H, D, window=4, num_global=2).double()
    gradients = []
    for filler in (0.0, torch.finfo(torch.float64).max):
        module.zero_grad()
        module(q, k, v, x=x.masked_fill(~mask[..., None], filler), key_mask=mask).sum().backward()
        gradients.append([p.grad.clone() for p in module.parameters() if p.grad is not None])
    assert len(gradients[0]) == 6
    assert all(torch.equal(a, b) for a, b in zip(*gradients, strict=True))


def test_global_projections_run_under_autocast_like_any_other() -> None:
    q, k, v, x = (t.float() for t in tensors(12))
    torch.manual_seed(0)
    module = LongformerAttention(H, D, window=4, num_global=2)
    with torch.autocast("cpu", torch.bfloat16):
        half = module(*(t.bfloat16() for t in (q, k, v)), x=x.bfloat16())
    assert half.dtype == torch.bfloat16
    torch.testing.assert_close(half.float(), module(q, k, v, x=x), rtol=0.05, atol=0.05)


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"window": 3}, "window 3 is odd; use an even number"),
        ({"window": 0}, "window 0 is too small; use at least"),
        ({"num_global": -1}, "num_global -1 is negative"),
    ],
)
def test_a_bad_option_is_named_in_the_error(options: dict[str, int], message: str) -> None:
    with pytest.raises(ValueError, match=message):
        LongformerAttention(H, D, **options)
