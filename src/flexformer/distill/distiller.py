"""A converted model whose kernels learn from its own softmax attention, all layers in one forward pass."""

from __future__ import annotations

import inspect
from collections.abc import Mapping
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn.modules.module import Module

from ..convert.discovery import evaluation
from ..convert.observation import Call, Observer, observing
from ..convert.swap import base_of, kernels_of
from ..kernels.centres import CentredKernel
from .fidelity import softmax_attention
from .loss import SUMS, Comparison, LossOptions, compare


class Distiller(nn.Module):
    """The kernels of a converted model as a module that can be trained by any trainer.

    The model runs with the softmax attention it was trained with, without gradients and in evaluation mode, and every
    kernel is compared with the softmax attention of its own layer on the way. So each layer sees the hidden states of
    the original model, whatever the kernels before it do, and no layer's loss reaches another's kernel.

    Parameters and state are those of the kernels alone. The model itself is not a submodule; it moves to devices with
    the kernels and is otherwise left alone.

    Args:
        model: A converted model.
        loss: What kernels learn from.
    """

    accepts_loss_kwargs = True  # of `Trainer`, which then counts the tokens of all portions of a batch

    def __init__(self, model: nn.Module, loss: LossOptions | None = None) -> None:
        super().__init__()
        found = kernels_of(model)
        if not any(kernel.trained_parameters() for _, kernel in found):
            kind = f"kernels of {found[0][1].name} have" if found else "a model converted to softmax has"
            raise ValueError(f"{kind} no parameters to learn; use hedgehog or a flexformer attention")
        self.loss_options = LossOptions() if loss is None else loss
        self.layers = [layer for layer, _ in found]
        self.kernels = nn.ModuleList(kernel for _, kernel in found)
        self._held = (base_of(model),)  # in a tuple, so that it does not become a submodule

    @property
    def model(self) -> Any:
        """The model whose kernels these are."""
        return self._held[0]

    def initialise_from_data(
        self,
        input_ids: Tensor,
        attention_mask: Tensor | None = None,
        token_type_ids: Tensor | None = None,
        labels: Tensor | None = None,
    ) -> None:
        """Start kernels that can from the queries and keys of a batch; arguments as for `forward`."""

        def observe(call: Call) -> Tensor:
            if isinstance(call.kernel, CentredKernel):
                call.kernel.initialise_from_data(call.query, call.key, call.key_mask)
            return softmax_attention(call)

        self._read(observe, input_ids, attention_mask, token_type_ids)

    def _read(
        self, observe: Observer, input_ids: Tensor, attention_mask: Tensor | None, token_type_ids: Tensor | None
    ) -> None:
        """Run the model, without its head, whose outputs nobody needs."""
        body = self.model.base_model
        inputs: dict[str, Any] = {"input_ids": input_ids}
        for name, value in (("attention_mask", attention_mask), ("token_type_ids", token_type_ids)):
            if value is not None:
                inputs[name] = value
        if "use_cache" in inspect.signature(body.forward).parameters:
            inputs["use_cache"] = False
        with torch.no_grad(), evaluation(body), observing(observe):
            body(**inputs)

    @staticmethod
    def count_items(batch: Mapping[str, Tensor | None]) -> Tensor:
        """How many tokens a batch has, for `num_items_in_batch`."""
        mask, tokens = batch.get("attention_mask"), batch["input_ids"]
        assert tokens is not None
        return torch.tensor(tokens.numel(), device=tokens.device) if mask is None else (mask != 0).sum()

    def forward(
        self,
        input_ids: Tensor,
        attention_mask: Tensor | None = None,
        token_type_ids: Tensor | None = None,
        labels: Tensor | None = None,
        num_items_in_batch: Tensor | None = None,
    ) -> dict[str, Tensor]:
        """Compare all kernels with softmax attention on a batch.

        Args:
            input_ids: (B, T).
            attention_mask: (B, T), 0 at padding.
            token_type_ids: (B, T), for models that take them.
            labels: Not used; trainers measure only batches that have them.
            num_items_in_batch: Of how many tokens this batch is a portion; its loss is their mean's share. By default
                it is the whole.

        Returns:
            "loss", the mean over layers, differentiable in training mode; in evaluation mode also "sums", (B, layers,
            heads, len(SUMS)), zeros for heads that a layer does not have.
        """
        found: dict[int, list[Comparison]] = {}

        def observe(call: Call) -> Tensor:
            compared = compare(call, self.loss_options, learn=self.training, measure=not self.training)
            found.setdefault(call.layer, []).append(compared)
            return compared.output

        self._read(observe, input_ids, attention_mask, token_type_ids)
        share: Tensor | float = 1.0
        if num_items_in_batch is not None:
            read = {"input_ids": input_ids, "attention_mask": attention_mask}
            share = self.count_items(read) / num_items_in_batch
        compared = [_mean(found[layer]) for layer in self.layers]
        loss = torch.stack([each.loss for each in compared]).mean()
        if not self.training:
            return {"loss": share * loss, "sums": _stack([each.sums for each in compared if each.sums is not None])}
        gradients = [gradient / len(compared) for each in compared for gradient in each.gradients]
        parameters = [p for kernel in self.kernels for p in kernel.trained_parameters()]  # type: ignore[operator]
        return {"loss": share * _KnownGradients.apply(loss, gradients, *parameters)}

    def _apply(self, fn: Any, recurse: bool = True) -> Module:
        self.model._apply(fn, recurse)
        return super()._apply(fn, recurse)


class _KnownGradients(torch.autograd.Function):
    """A loss whose gradients were found on the way to it, while each layer's pairs were at hand."""

    @staticmethod
    def forward(ctx: Any, loss: Tensor, gradients: list[Tensor], *parameters: Tensor) -> Tensor:
        ctx.save_for_backward(*gradients)
        return loss.clone()

    @staticmethod
    def backward(ctx: Any, *outer: Tensor) -> tuple[Tensor | None, ...]:
        return None, None, *(outer[0] * gradient for gradient in ctx.saved_tensors)


def _mean(calls: list[Comparison]) -> Comparison:
    """Of a layer whose module the model runs several times, as ALBERT does; sums are those of all calls."""
    if len(calls) == 1:
        return calls[0]
    loss = torch.stack([each.loss for each in calls]).mean()
    gradients = [sum(parts) / len(calls) for parts in zip(*(each.gradients for each in calls), strict=True)]
    sums = [each.sums for each in calls if each.sums is not None]
    return Comparison(calls[-1].output, loss, gradients, torch.stack(sums).sum(0) if sums else None)


def _stack(sums: list[Tensor]) -> Tensor:
    """(B, H, K) of every layer to (B, layers, most heads, K); zero where a layer has fewer."""
    heads = max(each.shape[1] for each in sums)
    shape = (sums[0].shape[0], len(sums), heads, len(SUMS))
    stacked = sums[0].new_zeros(shape)
    for i, each in enumerate(sums):
        stacked[:, i, : each.shape[1]] = each
    return stacked
