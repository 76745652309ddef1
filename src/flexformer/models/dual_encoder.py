"""Two texts, one encoder, one verdict: do they belong together?"""

from __future__ import annotations

import torch
from torch import Tensor
from transformers.modeling_outputs import SequenceClassifierOutput

from .classifier import classes, scored
from .configuration import DualEncoderConfig
from .encoder import Encoder, FlexformerPreTrainedModel, Head


class DualEncoder(FlexformerPreTrainedModel):
    """The same encoder reads either text by itself; a head of two hidden layers compares the pooled vectors."""

    config_class = DualEncoderConfig

    def __init__(self, config: DualEncoderConfig) -> None:
        super().__init__(config)
        self.encoder = Encoder(config)
        hidden = config.intermediate_size if config.classifier_size is None else config.classifier_size
        blocks = 4 if config.interaction == "full" else 2
        self.head = Head(blocks * config.hidden_size, hidden, max(hidden // 2, 1), classes(config))
        self.post_init()

    def forward(
        self,
        input_ids: Tensor,
        input_ids_2: Tensor,
        key_mask: Tensor | None = None,
        key_mask_2: Tensor | None = None,
        labels: Tensor | None = None,
    ) -> SequenceClassifierOutput:
        """Compare pairs.

        Args:
            input_ids: (B, T) token ids of the first texts.
            input_ids_2: (B, T2) of the second ones.
            key_mask: (B, T) bool, True = a token, False = padding.
            key_mask_2: (B, T2) likewise.
            labels: (B,) classes; with them the output has a loss, the mean cross-entropy.

        Returns:
            `logits` (B, num_labels) and `loss`.
        """
        x = self.encoder(input_ids, key_mask).pooled
        y = self.encoder(input_ids_2, key_mask_2).pooled
        parts = (x, y, x * y, x - y) if self.config.interaction == "full" else (x, y)
        return scored(self.head(torch.cat(parts, dim=-1)), labels)
