"""An encoder that classifies sequences."""

from __future__ import annotations

from typing import cast

from torch import FloatTensor, Tensor
from torch.nn import functional as F
from transformers.modeling_outputs import SequenceClassifierOutput

from .configuration import EncoderConfig
from .encoder import Encoder, FlexformerPreTrainedModel, Head


class Classifier(FlexformerPreTrainedModel):
    """Encoder, then a hidden layer and the classes' scores."""

    def __init__(self, config: EncoderConfig) -> None:
        super().__init__(config)
        self.encoder = Encoder(config)
        hidden = config.intermediate_size if config.classifier_size is None else config.classifier_size
        self.head = Head(config.hidden_size, hidden, classes(config))
        self.post_init()

    def forward(
        self,
        input_ids: Tensor,
        key_mask: Tensor | None = None,
        attention_mask: Tensor | None = None,
        labels: Tensor | None = None,
    ) -> SequenceClassifierOutput:
        """Classify a batch.

        Args:
            input_ids: (B, T) token ids.
            key_mask: (B, T) bool, True = a token, False = padding.
            attention_mask: the same as Hugging Face's tokenizers give it.
            labels: (B,) classes; with them the output has a loss, the mean cross-entropy.

        Returns:
            `logits` (B, num_labels) and `loss`.
        """
        pooled = self.encoder(input_ids, key_mask, attention_mask).pooled
        return scored(self.head(pooled), labels)


def classes(config: EncoderConfig) -> int:
    """`num_labels`, of which there must be two to tell apart."""
    count = cast(int, config.num_labels)
    if count < 2:
        raise ValueError(f"num_labels {count} leaves nothing to tell apart; use at least 2")
    return count


def scored(logits: Tensor, labels: Tensor | None) -> SequenceClassifierOutput:
    """Logits with their mean cross-entropy where labels are known, in at least float32."""
    logits = logits.float() if logits.itemsize < 4 else logits
    loss = None if labels is None else F.cross_entropy(logits, labels)
    return SequenceClassifierOutput(loss=cast(FloatTensor, loss), logits=cast(FloatTensor, logits))
