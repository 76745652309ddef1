"""Configurations of the models, as Hugging Face keeps them beside the weights."""

# No postponed annotations here: `strict` checks values against the types themselves.
from typing import Any, ClassVar, Literal

from huggingface_hub.dataclasses import strict
from transformers import PreTrainedConfig

from ..attention import options as attention_options_of


@strict
class EncoderConfig(PreTrainedConfig):
    """An encoder over tokens, and the head that classifies what it pooled.

    Args:
        vocab_size: distinct tokens.
        hidden_size: width E of the residual stream.
        intermediate_size: width inside the feed-forward layers.
        num_hidden_layers: blocks.
        num_attention_heads: heads H.
        head_dim: width D of one head; E / H by default.
        max_position_embeddings: longest input in tokens, without the class token.
        attention: a name in `flexformer.ATTENTIONS` or of a registered kernel.
        attention_options: that attention's own options.
        positions: "sinusoid", fixed; "learned"; or "grid", fixed, of rows and columns where tokens are the pixels of a
            square picture of `max_position_embeddings` pixels, row by row.
        pooling: how a sequence becomes one vector. "cls": a learned class token in front of it; "mean": the mean
            over its visible positions; "first": its first visible position.
        drop_masked: leave masked tokens out of the sequence once they have positions, to save their cost. What is
            pooled stays the same, save with attentions that count positions themselves: theirs are those of the rest.
        hidden_act: the feed-forward layers' activation.
        hidden_dropout: probability of dropping an element of embeddings, feed-forward and attention outputs.
        attention_dropout: of dropping an attention weight, where the attention forms weights.
        layer_norm_eps: added to variances.
        classifier_size: width of the head's hidden layer; `intermediate_size` by default.
    """

    model_type: ClassVar[str] = "flexformer-encoder"

    vocab_size: int = 257
    hidden_size: int = 128
    intermediate_size: int = 512
    num_hidden_layers: int = 4
    num_attention_heads: int = 4
    head_dim: int | None = None
    max_position_embeddings: int = 4000
    attention: str = "flexformer-n"
    attention_options: dict[str, Any] | None = None
    positions: Literal["sinusoid", "learned", "grid"] = "sinusoid"
    pooling: Literal["cls", "mean", "first"] = "cls"
    drop_masked: bool = False
    hidden_act: str = "gelu"
    hidden_dropout: float = 0.1
    attention_dropout: float = 0.1
    layer_norm_eps: float = 1e-6
    classifier_size: int | None = None

    def mechanism_options(self) -> dict[str, Any]:
        """`attention_options`, with this model's longest input where the attention needs to know one."""
        given = dict(self.attention_options or {})
        if "max_length" in attention_options_of(self.attention):
            given.setdefault("max_length", self.max_position_embeddings + (self.pooling == "cls"))
        return given


@strict
class DualEncoderConfig(EncoderConfig):
    """Two texts through one encoder, compared by a head.

    Args:
        interaction: what the head sees of the pooled x and y: "full" is [x, y, x * y, x - y], "concatenation" [x, y].
    """

    model_type: ClassVar[str] = "flexformer-dual-encoder"

    interaction: Literal["full", "concatenation"] = "full"
