"""Block-sparse attention against dense attention under its own block table."""

from __future__ import annotations

import copy

import pytest
import torch
from torch import Tensor
from torch.nn.functional import scaled_dot_product_attention

from flexformer.attention.bigbird import BigBirdAttention

H, D = 2, 4
CPU = torch.device("cpu")


def tensors(length: int, heads: int = H) -> tuple[Tensor, Tensor, Tensor]:
    generator = torch.Generator().manual_seed(length)
    q, k, v = torch.randn(3, 2, heads, length, D, generator=generator, dtype=torch.float64)
    return 2 * q, k, v


def run(module: BigBirdAttention, q: Tensor, k: Tensor, v: Tensor, mask: Tensor | None = None) -> Tensor:
    return module(q, k, v, x=q.transpose(1, 2).flatten(2), key_mask=mask)


def make(block_size: int = 4, num_random_blocks: int = 2, seed: int = 0, heads: int = H) -> BigBirdAttention:
    torch.manual_seed(seed)
    return BigBirdAttention(heads, D, block_size=block_size, num_random_blocks=num_random_blocks)


def pattern(module: BigBirdAttention, length: int) -> Tensor:
    """(H, N, N) bool: who sees whom."""
    size = module.block_size
    blocks = -(-length // size)
    seen = torch.ones(module.num_heads, blocks, blocks, dtype=torch.bool)
    for head, rows in enumerate(module.block_table(blocks, CPU).tolist()):
        for block, row in enumerate(rows, start=1):
            seen[head, block] = torch.tensor([j in row for j in range(blocks)])
    return seen.repeat_interleave(size, 1).repeat_interleave(size, 2)[:, :length, :length]


@pytest.mark.parametrize(("length", "random"), [(24, 0), (40, 2), (63, 2), (130, 3)])
def test_it_equals_dense_attention_under_its_block_table(length: int, random: int) -> None:
    q, k, v = tensors(length)
    module = make(num_random_blocks=random)
    visible = pattern(module, length)[None]
    expected = scaled_dot_product_attention(q, k, v, attn_mask=visible)
    torch.testing.assert_close(run(module, q, k, v), expected)

    mask = torch.ones(2, length, dtype=torch.bool)
    mask[0, length // 2 :] = False
    mask[1, ::3] = False
    expected = scaled_dot_product_attention(q, k, v, attn_mask=visible & mask[:, None, None])
    out = run(module, q, k, v, mask)
    torch.testing.assert_close(out, expected.nan_to_num(0.0) * mask[:, None, :, None])


def test_the_sparse_pattern_is_sparse() -> None:
    assert pattern(make(), 400).double().mean() < 0.1


@pytest.mark.parametrize("length", [1, 3, 33, 36])
def test_few_blocks_are_attended_to_in_full(length: int) -> None:
    q, k, v = tensors(length)
    torch.testing.assert_close(run(make(), q, k, v), scaled_dot_product_attention(q, k, v))


@pytest.mark.parametrize(("blocks", "random"), [(6, 0), (10, 2), (12, 3), (40, 5)])
def test_random_blocks_are_new_to_their_row(blocks: int, random: int) -> None:
    for seed in range(5):
        table = make(num_random_blocks=random, seed=seed, heads=4).block_table(blocks, CPU)
        assert table.shape == (4, blocks - 2, 5 + random)
        for rows in table.tolist():
            for block, row in enumerate(rows, start=1):
                assert row[:5] == [0, blocks - 1, block - 1, block, block + 1]
                drawn = row[5:]
                assert len(set(drawn)) == random
                assert not set(drawn) & set(row[:5])
                assert all(0 < j < blocks - 1 for j in drawn)
                opposite = {1: blocks - 2, blocks - 2: 1}.get(block)
                assert opposite not in drawn


def test_random_blocks_are_drawn_evenly() -> None:
    table = make(heads=4000).block_table(12, CPU)
    drawn = torch.bincount(table[:, 4, 5:].flatten(), minlength=12)  # seen from block 5
    allowed = torch.tensor([1, 2, 3, 7, 8, 9, 10])
    assert drawn.sum() == drawn[allowed].sum() == 8000
    assert (drawn[allowed] - 8000 / 7).abs().max() < 150


def test_random_blocks_differ_between_heads_and_between_modules() -> None:
    first, second = make(seed=0), make(seed=1)
    table = first.block_table(40, CPU)
    assert not torch.equal(table[0], table[1])
    assert not torch.equal(table, second.block_table(40, CPU))
    assert torch.equal(table, make(seed=0).block_table(40, CPU))


def test_drawing_a_table_leaves_the_default_generator_alone() -> None:
    module = make()
    before = torch.get_rng_state()
    run(module, *tensors(60))
    assert torch.equal(before, torch.get_rng_state())


def test_random_blocks_travel_with_the_state_dict() -> None:
    source, target = torch.nn.Sequential(make(seed=0)), torch.nn.Sequential(make(seed=1))
    q, k, v = tensors(60)
    expected = run(source[0], q, k, v)
    assert not torch.equal(run(target[0], q, k, v), expected)
    target.load_state_dict(source.state_dict())
    assert torch.equal(run(target[0], q, k, v), expected)
    assert torch.equal(run(copy.deepcopy(target)[0].half().double(), q, k, v), expected)


def test_a_table_made_in_inference_mode_serves_training_too() -> None:
    module = make()
    q, k, v = tensors(60)
    with torch.inference_mode():
        expected = run(module, q, k, v)
    out = run(module, q.requires_grad_(), k.requires_grad_(), v.requires_grad_())
    out.sum().backward()
    assert torch.equal(out, expected)


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"block_size": 0}, "block_size 0 is too small; use at least 1"),
        ({"num_random_blocks": -1}, "num_random_blocks -1 is negative"),
    ],
)
def test_a_bad_option_is_named_in_the_error(options: dict[str, int], message: str) -> None:
    with pytest.raises(ValueError, match=message):
        BigBirdAttention(H, D, **options)
