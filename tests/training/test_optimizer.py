"""The optimiser of a run: torch's AdamW in one pass, kernels without decay."""

from __future__ import annotations

import copy

import pytest
import torch
from torch import nn

import flexformer
from flexformer.training import OptimizerOptions
from flexformer.training.optimizer import adamw

OPTIONS = OptimizerOptions(lr=1e-2, weight_decay=0.1, beta2=0.95, eps=1e-6)


class Block(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.embedding = nn.Embedding(50, 16)
        self.attention = flexformer.MultiheadAttention(16, 2, "flexformer-n")

    def forward(self, tokens: torch.Tensor) -> torch.Tensor:
        return self.attention(self.embedding(tokens))


def test_updates_are_those_of_the_plain_loop():
    torch.manual_seed(0)
    model = Block().double()
    plain = copy.deepcopy(model)
    tokens = torch.randint(0, 50, (4, 12))
    reference = torch.optim.AdamW(
        flexformer.parameter_groups(plain, 0.1), lr=1e-2, betas=(0.9, 0.95), eps=1e-6, fused=False, foreach=False
    )
    optimizer = adamw(model, OPTIONS)
    assert optimizer.defaults["fused"]
    for _ in range(5):
        for network, stepped in ((model, optimizer), (plain, reference)):
            network(tokens).square().sum().backward()
            stepped.step()
            stepped.zero_grad()
    for (name, updated), expected in zip(model.named_parameters(), plain.parameters(), strict=True):
        torch.testing.assert_close(updated, expected, rtol=1e-9, atol=1e-12, msg=name)


def test_devices_that_torch_may_not_know_take_its_own_choice():
    optimizer = adamw(nn.Linear(2, 2, device="meta"), OPTIONS)
    assert optimizer.defaults["fused"] is None


def test_a_run_saved_by_the_plain_loop_goes_on():
    model = Block()
    old = torch.optim.AdamW(flexformer.parameter_groups(model, 0.1), lr=1e-2, foreach=False)
    tokens = torch.randint(0, 50, (4, 12))
    model(tokens).square().sum().backward()
    old.step()
    new = adamw(model, OPTIONS)
    new.load_state_dict(old.state_dict())
    before = model.embedding.weight.detach().clone()
    new.step()
    assert new.state[model.embedding.weight]["step"] == 2
    assert not torch.equal(before, model.embedding.weight)


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float32])
def test_half_precision_parameters_stay_finite(dtype):
    model = Block().to(dtype)
    optimizer = adamw(model, OPTIONS)
    model(torch.randint(0, 50, (4, 12))).square().sum().backward()
    optimizer.step()
    assert all(p.isfinite().all() for p in model.parameters())
