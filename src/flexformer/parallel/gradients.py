"""Adding up what ranks have learned from their parts of a sequence."""

from __future__ import annotations

from collections.abc import Iterable, Iterator

import torch
from torch import Tensor, nn

from ..ops.split import Split

BUCKET_BYTES = 2**25  # large enough for the network's full speed, small beside a model


def sum_gradients(parameters: nn.Module | Iterable[Tensor], split: Split) -> None:
    """Give every rank the sum of all ranks' gradients, which is the gradient of the whole sequence's loss.

    For models without a wrapper. `DistributedDataParallel` does the same but divides by the number of ranks, so there
    multiply the loss by `split.size`. A parameter without a gradient on this rank counts as zero.

    Args:
        parameters: of the model, in the same order on every rank; those that need no gradient are left alone.
        split: who has which part.
    """
    given = parameters.parameters() if isinstance(parameters, nn.Module) else parameters
    for bucket in _buckets(p for p in given if p.requires_grad):
        flat = torch.cat([_gradient(p).reshape(-1) for p in bucket])
        split.all_reduce(flat)
        for parameter, summed in zip(bucket, flat.split([p.numel() for p in bucket]), strict=True):
            _gradient(parameter).copy_(summed.view_as(parameter))


def _gradient(parameter: Tensor) -> Tensor:
    if parameter.grad is None:
        parameter.grad = torch.zeros_like(parameter)
    return parameter.grad


def _buckets(parameters: Iterable[Tensor]) -> Iterator[list[Tensor]]:
    """Consecutive parameters of one dtype and device, about `BUCKET_BYTES` of them at once."""
    bucket: list[Tensor] = []
    size = 0
    for parameter in parameters:
        alike = not bucket or (parameter.dtype, parameter.device) == (bucket[0].dtype, bucket[0].device)
        if bucket and (not alike or size >= BUCKET_BYTES):
            yield bucket
            bucket, size = [], 0
        bucket.append(parameter)
        size += parameter.numel() * parameter.element_size()
    if bucket:
        yield bucket
