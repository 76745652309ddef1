"""Two sentences read apart and compared by the angle between their embeddings."""

from __future__ import annotations

from typing import Any

import torch.nn.functional as F
from torch import Tensor, nn


class PairEncoder(nn.Module):
    """A sentence encoder that learns how alike two sentences are: the cosine of the means of their last hidden states.

    Args:
        encoder: A transformers model without a head.
    """

    def __init__(self, encoder: nn.Module) -> None:
        super().__init__()
        self.encoder = encoder

    def embed(self, input_ids: Tensor, attention_mask: Tensor, token_type_ids: Tensor | None = None) -> Tensor:
        """(B, T) tokens to (B, E) unit vectors."""
        inputs: dict[str, Any] = {"input_ids": input_ids, "attention_mask": attention_mask}
        if token_type_ids is not None:
            inputs["token_type_ids"] = token_type_ids
        hidden = self.encoder(**inputs)[0]
        weight = attention_mask[..., None].to(hidden.dtype)
        return F.normalize((hidden * weight).sum(1) / weight.sum(1).clamp_min(1.0), dim=-1)

    def forward(
        self,
        input_ids: Tensor,
        attention_mask: Tensor,
        input_ids_2: Tensor,
        attention_mask_2: Tensor,
        token_type_ids: Tensor | None = None,
        token_type_ids_2: Tensor | None = None,
        labels: Tensor | None = None,
    ) -> dict[str, Tensor]:
        """Cosines, and their mean squared distance to labels.

        Args:
            input_ids: (B, T) first sentences.
            attention_mask: (B, T), 0 at padding.
            input_ids_2: (B, T2) second sentences.
            attention_mask_2: (B, T2).
            token_type_ids: (B, T), for models that take them.
            token_type_ids_2: (B, T2).
            labels: (B,) between 0 and 1.

        Returns:
            "loss" where there are labels, and "logits" (B, 1).
        """
        first = self.embed(input_ids, attention_mask, token_type_ids)
        second = self.embed(input_ids_2, attention_mask_2, token_type_ids_2)
        cosine = (first * second).sum(-1, keepdim=True)
        if labels is None:
            return {"logits": cosine}
        return {"loss": F.mse_loss(cosine[:, 0], labels.to(cosine.dtype)), "logits": cosine}
