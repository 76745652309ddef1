"""Nystrom attention against exact kernelized attention and against a slow version of itself."""

from __future__ import annotations

import pytest
import torch
from torch import Tensor

from flexformer.attention.skyformer import SkyformerAttention, gaussian_kernel, inverse_gram, newton_inverse

H, D = 2, 4


def tensors(queries: int, keys: int, scale: float = 1.0) -> tuple[Tensor, Tensor, Tensor]:
    generator = torch.Generator().manual_seed(queries + 1000 * keys)
    q = torch.randn(2, H, queries, D, generator=generator, dtype=torch.float64)
    k, v = torch.randn(2, 2, H, keys, D, generator=generator, dtype=torch.float64)
    return scale * q, scale * k, v


def run(
    module: SkyformerAttention, q: Tensor, k: Tensor, v: Tensor, mask: Tensor | None = None, seed: int = 0
) -> Tensor:
    torch.manual_seed(seed)
    return module(q, k, v, x=q.transpose(1, 2).flatten(2), key_mask=mask)


def exact(q: Tensor, k: Tensor, v: Tensor) -> Tensor:
    distance = (q[..., :, None, :] - k[..., None, :, :]).square().sum(-1)
    return torch.exp(-distance / (2 * D**0.5)) @ v


def by_definition(q: Tensor, k: Tensor, v: Tensor, valid: list[int], u: Tensor) -> Tensor:
    """One head of self-attention, q, k, v (N, D), with the landmarks that u (2, p/2) picks."""
    q, k, v = q / D**0.25, k[valid] / D**0.25, v[valid]
    rows = [[valid[int(number * len(valid))] for number in half] for half in u.tolist()]
    inner = [[valid.index(row) for row in half] for half in rows]
    landmarks = torch.cat([q[rows[0]], k[inner[1]]])

    def kernel(a: Tensor, b: Tensor) -> Tensor:
        return torch.exp(-(a[:, None] - b).square().sum(-1) / 2)

    identity = torch.eye(len(landmarks), dtype=q.dtype)
    gram = kernel(landmarks, landmarks) + 0.1 * identity
    root = torch.diag(gram.sum(1).rsqrt())
    normal = root @ gram @ root
    inverse = normal.T / normal.sum(0).max()
    for _ in range(6):
        p = normal @ inverse
        inverse = 0.25 * inverse @ (13 * identity - p @ (15 * identity - p @ (7 * identity - p)))
    return kernel(q, landmarks) @ root @ inverse @ root @ kernel(landmarks, k) @ v


@pytest.mark.parametrize("masked", [False, True])
def test_it_equals_the_definition_with_the_same_landmarks(masked: bool) -> None:
    q, k, v = tensors(11, 11)
    mask = torch.ones(2, 11, dtype=torch.bool)
    if masked:
        mask[0, 5:] = False
        mask[1, ::3] = False
    out = run(SkyformerAttention(H, D, num_landmarks=6), q, k, v, mask if masked else None)
    torch.manual_seed(0)
    u = torch.rand(2, 3)
    for b in range(2):
        valid = mask[b].nonzero().flatten().tolist()
        for h in range(H):
            expected = by_definition(q[b, h], k[b, h], v[b, h], valid, u)
            torch.testing.assert_close(out[b, h], expected)


@pytest.mark.parametrize(("queries", "keys"), [(3, 3), (2, 5), (5, 2), (1, 1)])
def test_many_landmarks_approach_exact_kernelized_attention(queries: int, keys: int) -> None:
    q, k, v = tensors(queries, keys)
    error = [
        (run(SkyformerAttention(H, D, num_landmarks=p), q, k, v) - exact(q, k, v)).abs().mean().item() for p in (2, 128)
    ]
    scale = exact(q, k, v).abs().mean().item()
    assert error[1] < 0.03 * scale
    assert error[1] <= error[0]


def test_few_landmarks_already_come_near_on_smooth_kernels() -> None:
    q, k, v = tensors(100, 100, scale=0.3)
    out, expected = run(SkyformerAttention(H, D, num_landmarks=32), q, k, v), exact(q, k, v)
    assert (out - expected).norm() < 0.1 * expected.norm()


def test_newton_steps_invert_a_well_conditioned_matrix() -> None:
    generator = torch.Generator().manual_seed(0)
    points = torch.randn(3, 2, 10, 6, generator=generator, dtype=torch.float64)
    gram = gaussian_kernel(points, points) + torch.eye(10, dtype=torch.float64)
    root = gram.sum(-1).rsqrt()
    matrix = gram * root[..., :, None] * root[..., None, :]
    torch.testing.assert_close(newton_inverse(matrix), torch.linalg.inv(matrix), rtol=1e-6, atol=1e-6)


def test_newton_steps_normalise_each_matrix_by_itself() -> None:
    matrices = torch.stack([torch.eye(3), torch.full((3, 3), 1 / 3)])
    assert torch.equal(newton_inverse(matrices)[0], newton_inverse(matrices[:1])[0])
    torch.testing.assert_close(newton_inverse(matrices)[0], torch.eye(3))


def test_the_kernel_of_far_away_points_never_exceeds_one() -> None:
    x = 1e4 * torch.randn(50, 64, generator=torch.Generator().manual_seed(0))
    kernel = gaussian_kernel(x, x + 1e-3)
    assert kernel.isfinite().all()
    assert kernel.max() <= 1


def test_rounding_of_far_away_landmarks_does_not_blow_up_the_inverse() -> None:
    point = 1e4 * torch.randn(4, 1, 64, generator=torch.Generator().manual_seed(0))
    assert inverse_gram(point.expand(-1, 128, -1)).abs().max() < 1


def test_masked_keys_are_as_if_absent_from_cross_attention() -> None:
    q, k, v = tensors(7, 20)
    mask = torch.zeros(2, 20, dtype=torch.bool)
    mask[:, :12] = True
    module = SkyformerAttention(H, D, num_landmarks=8)
    torch.testing.assert_close(run(module, q, k, v, mask), run(module, q, k[:, :, :12], v[:, :, :12]))


def test_no_keys_at_all_give_zeros() -> None:
    q, k, v = tensors(7, 20)
    module = SkyformerAttention(H, D)
    assert torch.equal(run(module, q, k[:, :, :0], v[:, :, :0]), torch.zeros_like(q))
    assert run(module, q[:, :, :0], k, v).shape == (2, H, 0, D)


def test_landmarks_are_drawn_anew_and_follow_the_seed() -> None:
    q, k, v = tensors(30, 30)
    module = SkyformerAttention(H, D, num_landmarks=4).eval()
    assert torch.equal(run(module, q, k, v, seed=1), run(module, q, k, v, seed=1))
    assert not torch.equal(run(module, q, k, v, seed=1), run(module, q, k, v, seed=2))


def test_queries_at_masked_positions_still_get_an_output() -> None:
    q, k, v = tensors(20, 20)
    mask = torch.ones(2, 20, dtype=torch.bool)
    mask[:, 15:] = False
    out = run(SkyformerAttention(H, D), q, k, v, mask)
    assert (out[:, :, 15:].abs().sum(-1) > 0).all()


def test_an_output_beyond_half_precision_is_clipped() -> None:
    q = torch.zeros(1, 1, 40, D, dtype=torch.float16)
    v = torch.full_like(q, 1e4)
    out = run(SkyformerAttention(1, D), q, q, v)
    assert (out == torch.finfo(torch.float16).max).all()


@pytest.mark.parametrize("value", [0, -2, 7])
def test_a_bad_option_is_named_in_the_error(value: int) -> None:
    with pytest.raises(ValueError, match=f"num_landmarks {value} is .*; use"):
        SkyformerAttention(H, D, num_landmarks=value)
