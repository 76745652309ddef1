"""A language model sharded with FSDP2: trained, saved and loaded on every rank."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import module_cases
import torch
import torch.distributed as dist
import torch.distributed.checkpoint as dcp
from torch.distributed.checkpoint.state_dict import get_model_state_dict, get_optimizer_state_dict
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.fsdp import fully_shard
from torch.distributed.tensor import DTensor

from flexformer.models import CausalLM

STEPS = 4


def sharded(model: CausalLM) -> CausalLM:
    mesh = init_device_mesh("cpu", (dist.get_world_size(),))
    for block in model.blocks:
        fully_shard(block, mesh=mesh)
    fully_shard(model, mesh=mesh)
    return model


def train(model: CausalLM, optimizer: torch.optim.Optimizer, batches: list[torch.Tensor]) -> list[float]:
    """Losses; each rank takes its rows of the batch."""
    rank, size = dist.get_rank(), dist.get_world_size()
    losses = []
    for ids in batches:
        own = ids if not isinstance(next(model.parameters()), DTensor) else ids.chunk(size)[rank]
        loss = model(own, labels=own).loss
        loss.backward()
        optimizer.step()
        optimizer.zero_grad()
        mean = loss.detach().clone()
        if own is not ids:
            dist.all_reduce(mean)
            mean /= size
        losses.append(float(mean))
    return losses


def trained_saved_and_loaded(folder: str) -> dict[str, Any]:
    plain, _, _ = module_cases._model()
    generator = torch.Generator().manual_seed(0)
    batches = [torch.randint(2, 61, (4, 24), generator=generator) for _ in range(2 * STEPS)]
    expected = train(plain, torch.optim.AdamW(plain.parameters(), 1e-2), batches)

    model = sharded(module_cases._model()[0])
    assert all(isinstance(p, DTensor) for p in model.parameters())
    optimizer = torch.optim.AdamW(model.parameters(), 1e-2)
    losses = train(model, optimizer, batches[:STEPS])
    local = sum(p.to_local().numel() for p in model.parameters())
    state = {"model": get_model_state_dict(model), "optimizer": get_optimizer_state_dict(model, optimizer)}
    dcp.save(state, checkpoint_id=Path(folder, "sharded"))

    torch.manual_seed(99)
    again = sharded(CausalLM(model.config).double().eval())
    optimizer = torch.optim.AdamW(again.parameters(), 1e-2)
    blank = {"model": get_model_state_dict(again), "optimizer": get_optimizer_state_dict(again, optimizer)}
    dcp.load(blank, checkpoint_id=Path(folder, "sharded"))
    torch.distributed.checkpoint.state_dict.set_state_dict(
        again, optimizer, model_state_dict=blank["model"], optim_state_dict=blank["optimizer"]
    )
    losses += train(again, optimizer, batches[STEPS:])
    total = sum(p.numel() for p in again.parameters())
    whole = [p.full_tensor() for p in again.parameters()]
    difference = max(float((a - b).detach().abs().max()) for a, b in zip(whole, plain.parameters(), strict=True))
    return {"expected": expected, "losses": losses, "local": local, "total": total, "difference": difference}
