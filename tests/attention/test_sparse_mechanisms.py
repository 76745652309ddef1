"""What Reformer, Longformer, BigBird and Skyformer promise alike: masks, ranges, dtypes and memory."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_leaves

from flexformer.attention.bigbird import BigBirdAttention
from flexformer.attention.longformer import LongformerAttention
from flexformer.attention.mechanism import Mechanism
from flexformer.attention.reformer import ReformerAttention
from flexformer.attention.skyformer import SkyformerAttention

H, D = 2, 4
BUILD: dict[str, Callable[..., Mechanism]] = {
    "reformer": lambda **kw: ReformerAttention(H, D, chunk_length=8, **kw),
    "longformer": lambda **kw: LongformerAttention(H, D, window=8, **kw),
    "longformer_global": lambda **kw: LongformerAttention(H, D, window=8, num_global=3, **kw),
    "bigbird": lambda **kw: BigBirdAttention(H, D, block_size=4, num_random_blocks=1, **kw),
    "skyformer": lambda **kw: SkyformerAttention(H, D, num_landmarks=16, **kw),
}
every_mechanism = pytest.mark.parametrize("name", BUILD)
every_dtype = pytest.mark.parametrize("dtype", [torch.float64, torch.float32, torch.float16, torch.bfloat16], ids=str)


def build(name: str, dtype: torch.dtype = torch.float32, **options: Any) -> Mechanism:
    torch.manual_seed(0)
    return BUILD[name](**options).to(dtype).eval()


def inputs(length: int, dtype: torch.dtype = torch.float32, batch: int = 3) -> tuple[Tensor, ...]:
    """q, k, v, x."""
    generator = torch.Generator().manual_seed(length)
    q, k, v = torch.randn(3, batch, H, length, D, generator=generator).to(dtype)
    return q, k, v, torch.randn(batch, length, H * D, generator=generator).to(dtype)


def run(
    module: Mechanism, q: Tensor, k: Tensor, v: Tensor, x: Tensor, mask: Tensor | None = None, seed: int = 0
) -> Tensor:
    torch.manual_seed(seed)
    return module(q, q if module.shares_query_key else k, v, x=x, key_mask=mask)


def ragged_mask(length: int) -> Tensor:
    """Three samples: padded on the right, with holes, whole."""
    mask = torch.ones(3, length, dtype=torch.bool)
    mask[0, (length + 1) // 2 :] = False
    mask[1, 1::3] = False
    return mask


def gradients(out: Tensor, upstream: Tensor, *tensors: Tensor) -> list[Tensor]:
    grads = torch.autograd.grad(out, tensors, upstream, allow_unused=True)
    return [torch.zeros_like(t) if g is None else g for t, g in zip(tensors, grads, strict=True)]


def fill(tensors: tuple[Tensor, ...], mask: Tensor, value: float) -> tuple[Tensor, ...]:
    *heads, x = tensors
    filled = [t.masked_fill(~mask[:, None, :, None], value) for t in heads]
    return (*(t.requires_grad_() for t in filled), x.masked_fill(~mask[..., None], value).requires_grad_())


@every_mechanism
@pytest.mark.parametrize("length", [0, 1, 2, 63, 130, 513])
def test_any_length_gives_finite_outputs_and_gradients(name: str, length: int) -> None:
    module = build(name)
    for mask in (None, ragged_mask(length)):
        tensors = tuple(t.requires_grad_() for t in inputs(length))
        out = run(module, *tensors, mask)
        assert out.shape == (3, H, length, D)
        assert out.isfinite().all()
        assert all(g.isfinite().all() for g in gradients(out, torch.ones_like(out), *tensors))


@every_mechanism
@every_dtype
@pytest.mark.parametrize("length", [6, 50])
def test_the_contents_of_padding_change_nothing(name: str, dtype: torch.dtype, length: int) -> None:
    module, mask = build(name, dtype), ragged_mask(length)
    shown = mask[:, None, :, None]
    results = []
    for value in (0.0, torch.finfo(dtype).max, torch.finfo(dtype).min):
        tensors = fill(inputs(length, dtype), mask, value)
        out = run(module, *tensors, mask)
        assert out.isfinite().all()
        *heads, of_x = gradients(out, shown.to(dtype).expand_as(out), *tensors)
        assert all((g.masked_fill(shown, 0.0) == 0).all() for g in heads)
        assert (of_x[~mask] == 0).all()
        results.append([out.masked_fill(~shown, 0.0), *heads, of_x])
    for other in results[1:]:
        assert all(torch.equal(a, b) for a, b in zip(results[0], other, strict=True))


@pytest.mark.parametrize("name", [n for n in BUILD if n != "skyformer"])
def test_outputs_at_masked_positions_are_zero(name: str) -> None:
    for length in (6, 50):
        mask = ragged_mask(length)
        out = run(build(name), *inputs(length), mask)
        assert (out.transpose(1, 2)[~mask] == 0).all()
        assert (out.transpose(1, 2)[mask] != 0).all()


@every_mechanism
@pytest.mark.parametrize("length", [6, 50])
def test_a_sample_without_a_visible_key_is_zero_and_so_are_its_gradients(name: str, length: int) -> None:
    module = build(name)
    mask = torch.ones(3, length, dtype=torch.bool)
    mask[1] = False
    tensors = tuple(t.requires_grad_() for t in inputs(length))
    out = run(module, *tensors, mask)
    assert (out[1] == 0).all()
    for gradient in gradients(out, torch.ones_like(out), *tensors):
        assert (gradient[1] == 0).all()
        assert gradient.isfinite().all()
    torch.testing.assert_close(out[::2], run(module, *tensors)[::2])


@every_mechanism
@every_dtype
@pytest.mark.parametrize("length", [6, 50])
def test_inputs_of_ten_thousand_stay_finite(name: str, dtype: torch.dtype, length: int) -> None:
    module = build(name, dtype)
    mask = ragged_mask(length)
    mask[2] = False
    signs = [t.sign() * 1e4 for t in inputs(length, dtype)]
    spread = [(t * 3e3).clamp(-1e4, 1e4) for t in inputs(length, dtype)]
    equal = [torch.full_like(t, 1e4) for t in inputs(length, dtype)]
    zero = [torch.zeros_like(t) for t in inputs(length, dtype)]
    for tensors in (signs, spread, equal, zero):
        for allowed in (None, mask):
            leaves = [t.detach().requires_grad_() for t in tensors]
            out = run(module, *leaves, allowed)
            assert out.isfinite().all()
            # The true gradient may exceed float16's range where the softmax is undecided.
            upstream = torch.full_like(out, 1e-4 if dtype == torch.float16 else 1.0)
            assert all(g.isfinite().all() for g in gradients(out, upstream, *leaves))


@every_mechanism
@pytest.mark.parametrize("length", [6, 50])
def test_queries_and_keys_of_any_size_stay_finite(name: str, length: int) -> None:
    module = build(name)
    for size in (1e10, 1e19, 1e38):
        q, k, v, x = inputs(length)
        leaves = [t.requires_grad_() for t in (q.clamp(-3, 3) * size, k.clamp(-3, 3) * size, v, x)]
        out = run(module, *leaves)
        assert out.isfinite().all()
        assert all(g.isfinite().all() for g in gradients(out, torch.ones_like(out), *leaves))


@settings(max_examples=25, deadline=None, derandomize=True)
@given(st.data())
def test_no_mask_or_scale_makes_a_nan(data: st.DataObject) -> None:
    module = build(data.draw(st.sampled_from(list(BUILD))))
    length = data.draw(st.integers(1, 40))
    bits = data.draw(st.lists(st.booleans(), min_size=length, max_size=length))
    scales = data.draw(st.tuples(*[st.sampled_from([0.0, 1e-30, 1e-3, 1.0, 30.0, 1e4])] * 4))
    mask = torch.tensor(bits)[None]
    tensors = [(s * t).requires_grad_() for s, t in zip(scales, inputs(length, batch=1), strict=True)]
    out = run(module, *tensors, mask)
    assert out.isfinite().all()
    assert all(g.isfinite().all() for g in gradients(out, torch.ones_like(out), *tensors))
    if not any(bits):
        assert (out == 0).all()


@pytest.mark.parametrize("name", [n for n in BUILD if n != "longformer_global"])
@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16], ids=str)
def test_half_precision_is_computed_in_float32_and_cast_back(name: str, dtype: torch.dtype) -> None:
    module, tensors = build(name), inputs(50, dtype)
    out = run(module, *tensors)
    assert out.dtype == dtype
    assert torch.equal(out, run(module, *(t.float() for t in tensors)).to(dtype))


@pytest.mark.parametrize("name", [n for n in BUILD if n != "longformer_global"])
def test_autocast_does_not_lower_the_precision(name: str) -> None:
    module, tensors = build(name), inputs(50)
    expected = run(module, *tensors)
    with torch.autocast("cpu", torch.bfloat16):
        assert torch.equal(run(module, *tensors), expected)


@every_mechanism
def test_float64_agrees_with_float32(name: str) -> None:
    tensors = inputs(50)
    double = run(build(name).double(), *(t.double() for t in tensors))
    assert double.dtype == torch.float64
    torch.testing.assert_close(run(build(name), *tensors), double.float(), rtol=1e-4, atol=1e-4)


@every_mechanism
def test_samples_do_not_influence_each_other(name: str) -> None:
    module, tensors, mask = build(name), inputs(50), ragged_mask(50)
    together = run(module, *tensors, mask)
    for b in range(3):
        alone = run(module, *(t[b : b + 1] for t in tensors), mask[b : b + 1])
        torch.testing.assert_close(together[b : b + 1], alone)


@every_mechanism
@pytest.mark.parametrize("length", [5, 29])
def test_gradients_match_finite_differences(name: str, length: int) -> None:
    module = build(name, torch.float64)
    mask = ragged_mask(length)[:2]
    tensors = [t[:2].double().requires_grad_() for t in inputs(length)]
    if module.shares_query_key:
        tensors[1] = tensors[1].detach()
    assert torch.autograd.gradcheck(lambda *t: run(module, *t, mask), tensors, fast_mode=True)


@pytest.mark.parametrize("name", [n for n in BUILD if n != "skyformer"])
def test_dropout_acts_in_training_only(name: str) -> None:
    for length in (6, 50):
        q, k, v, x = inputs(length)
        module = build(name, dropout=0.5)
        expected = run(build(name), q, k, v, x)
        assert torch.equal(run(module, q, k, v, x), expected)
        module.train()
        assert not torch.allclose(run(module, q, k, v, x), expected)
        assert (run(build(name, dropout=1.0).train(), q, k, v, x) == 0).all()


class LargestTensor(TorchDispatchMode):
    """Records the bytes of the largest storage any operation returns."""

    def __init__(self) -> None:
        super().__init__()
        self.bytes = 0

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        out = func(*args, **(kwargs or {}))
        for leaf in tree_leaves(out):
            if isinstance(leaf, Tensor):
                self.bytes = max(self.bytes, leaf.untyped_storage().nbytes())
        return out


LONG: dict[str, Callable[[], Mechanism]] = {
    "reformer": lambda: ReformerAttention(1, 8, chunk_length=32),
    "longformer": lambda: LongformerAttention(1, 8, window=64, num_global=2),
    "bigbird": lambda: BigBirdAttention(1, 8, block_size=16),
    "skyformer": lambda: SkyformerAttention(1, 8, num_landmarks=64),
}


@pytest.mark.parametrize("name", LONG)
def test_memory_grows_with_the_length_and_not_its_square(name: str) -> None:
    module = LONG[name]()
    largest, saved = {}, {}
    for length in (4096, 8192):
        q, k, v = (torch.randn(1, 1, length, 8, requires_grad=True) for _ in range(3))
        kept: dict[int, int] = {}

        def note(t: Tensor, kept: dict[int, int] = kept) -> Tensor:
            kept[t.untyped_storage().data_ptr()] = t.untyped_storage().nbytes()
            return t

        with LargestTensor() as record, torch.autograd.graph.saved_tensors_hooks(note, lambda t: t):
            mask = torch.ones(1, length, dtype=torch.bool)
            out = run(module, q, k, v, q[:, 0].detach(), mask)
            out.sum().backward()
        largest[length], saved[length] = record.bytes, sum(kept.values())
    assert largest[8192] < 4 * 8192 * 8192 / 8
    assert largest[8192] < 2.2 * largest[4096]
    assert saved[8192] < 2.2 * saved[4096]


@every_mechanism
def test_it_compiles_without_a_graph_break(name: str) -> None:
    module, tensors, mask = build(name), inputs(50), ragged_mask(50)
    expected = run(module, *tensors, mask)  # BigBird draws its table here
    q, k, v, x = tensors
    compiled = torch.compile(module, backend="eager", fullgraph=True)
    torch.manual_seed(0)
    out = compiled(q, q if module.shares_query_key else k, v, x=x, key_mask=mask)
    torch.testing.assert_close(out, expected)


@every_mechanism
def test_the_representation_lists_the_options(name: str) -> None:
    option = {"reformer": "chunk_length=8", "bigbird": "block_size=4", "skyformer": "num_landmarks=16"}
    assert option.get(name, "window=8") in repr(build(name))


def test_none_claims_a_causal_form() -> None:
    kinds = (ReformerAttention, LongformerAttention, BigBirdAttention, SkyformerAttention)
    assert not any(kind.has_causal_form for kind in kinds)
    assert [kind.self_attention_only for kind in kinds] == [True, True, True, False]
    assert [kind.shares_query_key for kind in kinds] == [True, False, False, False]
