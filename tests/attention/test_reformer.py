"""LSH attention against a slow version written from its definition."""

from __future__ import annotations

import math

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor

from flexformer.attention.reformer import ReformerAttention


def run(module: ReformerAttention, q: Tensor, v: Tensor, mask: Tensor | None = None, seed: int = 0) -> Tensor:
    torch.manual_seed(seed)
    return module(q, q, v, x=q.transpose(1, 2).flatten(2), key_mask=mask)


def pair(length: int, heads: int = 2, dim: int = 4, batch: int = 2) -> tuple[Tensor, Tensor]:
    generator = torch.Generator().manual_seed(length)
    shape = (2, batch, heads, length, dim)
    q, v = torch.randn(shape, generator=generator, dtype=torch.float64)
    return 2 * q, v


def logit(q: Tensor, i: int, j: int) -> Tensor:
    return q[i] @ q[j] / (q[j] @ q[j] + q.shape[-1] * 1e-6).sqrt()


def weigh(q: Tensor, v: Tensor, i: int, keys: list[int]) -> tuple[Tensor, Tensor]:
    """Output and log-sum-exp of position i over `keys`, a list of positions that may repeat."""
    others = [j for j in keys if j != i]
    if not others:
        return v[i], torch.tensor(-1e6 + math.log(max(len(keys), 1)), dtype=v.dtype)
    logits = torch.stack([logit(q, i, j) for j in others])
    return logits.softmax(0) @ v[others], logits.logsumexp(0)


def by_definition(q: Tensor, v: Tensor, buckets: Tensor, mask: Tensor, chunk: int) -> Tensor:
    """One head: q, v (N, D), buckets (R, N), mask (N,)."""
    length = q.shape[0]
    slots = -(-length // chunk) * chunk
    line: list[int] = []
    for bucket in buckets.tolist():
        line += sorted(range(length), key=lambda i, b=bucket: (b[i], i)) + [-1] * (slots - length)
    chunks = [line[s : s + chunk] for s in range(0, len(line), chunk)]
    rounds: list[list[tuple[Tensor, Tensor]]] = [[] for _ in range(length)]
    for u, members in enumerate(chunks):
        keys = [j for j in chunks[u - 1] + members if j >= 0 and mask[j]]
        for i in members:
            if i >= 0 and mask[i]:
                rounds[i].append(weigh(q, v, i, keys))
    out = torch.zeros_like(v)
    for i, parts in enumerate(rounds):
        if parts:
            share = torch.stack([lse for _, lse in parts]).softmax(0)
            out[i] = share @ torch.stack([o for o, _ in parts])
    return out


@pytest.mark.parametrize("length", [9, 37, 64])
@pytest.mark.parametrize("rounds", [1, 3])
@pytest.mark.parametrize("masked", [False, True])
def test_it_equals_the_definition_over_the_sorted_positions(length: int, rounds: int, masked: bool) -> None:
    q, v = pair(length)
    module = ReformerAttention(2, 4, chunk_length=8, num_hashes=rounds)
    mask = torch.ones(2, length, dtype=torch.bool)
    if masked:
        mask[0, length // 2 :] = False
        mask[1, ::3] = False
    filler = -length % 8
    torch.manual_seed(0)
    buckets = module.hash_buckets(F.pad(q, (0, 0, 0, filler)), F.pad(mask, (0, filler)))[..., :length]
    out = run(module, q, v, mask if masked else None)
    for b in range(2):
        for h in range(2):
            expected = by_definition(q[b, h], v[b, h], buckets[b, h], mask[b], chunk=8)
            torch.testing.assert_close(out[b, h], expected)


@pytest.mark.parametrize("length", [1, 2, 7, 8])
def test_a_short_sequence_is_attended_to_in_full(length: int) -> None:
    q, v = pair(length)
    out = run(ReformerAttention(2, 4, chunk_length=8), q, v)
    expected = torch.stack([weigh(q[0, 0], v[0, 0], i, list(range(length)))[0] for i in range(length)])
    torch.testing.assert_close(out[0, 0], expected)


def test_two_chunks_in_one_round_see_each_other_completely() -> None:
    q, v = pair(16)
    hashed = run(ReformerAttention(2, 4, chunk_length=8, num_hashes=1), q, v)
    torch.testing.assert_close(hashed, run(ReformerAttention(2, 4, chunk_length=16), q, v))


def test_a_token_sees_itself_only_when_nothing_else_is_visible() -> None:
    q, v = pair(20)
    mask = torch.zeros(2, 20, dtype=torch.bool)
    mask[:, 5] = True
    out = run(ReformerAttention(2, 4, chunk_length=4), q, v, mask)
    assert torch.equal(out[:, :, 5], v[:, :, 5])

    opposite = torch.full((1, 1, 2, 256), 1e4)
    opposite[:, :, 1] *= -1  # the most repulsive other token is still preferred
    values = torch.tensor([1.0, 2.0])[:, None].expand(1, 1, 2, 256)
    out = run(ReformerAttention(1, 256), opposite, values)
    assert torch.equal(out, values.flip(2))


def test_buckets_depend_on_direction_only_and_separate_opposites() -> None:
    q, _ = pair(40)
    valid = torch.ones(2, 40, dtype=torch.bool)
    module = ReformerAttention(2, 4, chunk_length=4, num_hashes=2)

    def buckets(vectors: Tensor) -> Tensor:
        torch.manual_seed(3)
        return module.hash_buckets(vectors, valid)

    assert torch.equal(buckets(q), buckets(5 * q))
    assert (buckets(q) != buckets(-q)).all()
    assert buckets(q).shape == (2, 2, 2, 40)
    assert buckets(q).min() >= 0
    assert buckets(q).max() < math.prod(module.bucket_factors(40))


def test_masked_positions_share_a_bucket_after_all_others() -> None:
    q, _ = pair(40)
    valid = torch.ones(2, 40, dtype=torch.bool)
    valid[:, 30:] = False
    module = ReformerAttention(2, 4, chunk_length=4, num_buckets=6)
    buckets = module.hash_buckets(q, valid)
    assert (buckets[..., 30:] == 6).all()
    assert (buckets[..., :30] < 6).all()


@pytest.mark.parametrize(
    ("length", "factors"), [(128, (4,)), (192, (4,)), (1024, (32,)), (4096, (128,)), (8192, (16, 16))]
)
def test_the_number_of_buckets_follows_the_length(length: int, factors: tuple[int, ...]) -> None:
    assert ReformerAttention(1, 8, chunk_length=64).bucket_factors(length) == factors
    assert ReformerAttention(1, 8, num_buckets=10).bucket_factors(length) == (10,)


def test_factorised_buckets_fill_their_range() -> None:
    module = ReformerAttention(1, 16, chunk_length=1, num_hashes=1)
    assert len(module.bucket_factors(256)) == 2
    vectors = torch.randn(1, 1, 256, 16, generator=torch.Generator().manual_seed(0))
    torch.manual_seed(0)
    buckets = module.hash_buckets(vectors, torch.ones(1, 256, dtype=torch.bool))
    assert buckets.max() < math.prod(module.bucket_factors(256))
    assert buckets.unique().numel() > 100


def test_rotations_are_drawn_anew_and_follow_the_seed() -> None:
    q, v = pair(60)
    module = ReformerAttention(2, 4, chunk_length=4).eval()
    first = run(module, q, v, seed=1)
    assert torch.equal(first, run(module, q, v, seed=1))
    assert not torch.equal(first, run(module, q, v, seed=2))


def test_a_zero_vector_has_a_bounded_gradient() -> None:
    q, v = (t.float() for t in pair(12))
    q[:, :, 3] = 0.0
    q.requires_grad_()
    run(ReformerAttention(2, 4, chunk_length=4), q, v).sum().backward()
    assert q.grad is not None
    assert q.grad.abs().max() < 1e5


@pytest.mark.parametrize(
    ("option", "value"), [("chunk_length", 0), ("num_hashes", 0), ("num_buckets", 0), ("num_buckets", 3)]
)
def test_a_bad_option_is_named_in_the_error(option: str, value: int) -> None:
    with pytest.raises(ValueError, match=f"{option} {value} is .*; use"):
        ReformerAttention(2, 4, **{option: value})
