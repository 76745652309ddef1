"""The configuration of a language model, as Hugging Face keeps it beside the weights."""

# No postponed annotations here: `strict` checks values against the types themselves.
from typing import Any, ClassVar, Literal

from huggingface_hub.dataclasses import strict
from transformers import PreTrainedConfig

from ..attention import options as attention_options_of


@strict
class CausalLMConfig(PreTrainedConfig):
    """A model that says which token comes next.

    Args:
        vocab_size: distinct tokens V; with an adaptive vocabulary ids are in order of falling frequency.
        hidden_size: width E of the residual stream.
        intermediate_size: width inside the feed-forward layers.
        num_hidden_layers: blocks.
        num_attention_heads: heads H.
        head_dim: width D of one head; E / H by default.
        max_position_embeddings: the length of training texts. Longer ones are read too, except with learned positions
            and by attentions that must know a longest length.
        attention: a name in `flexformer.ATTENTIONS` that has a causal form, or of a registered kernel.
        attention_options: that attention's own options.
        vocabulary: "tied": one vector for each token; "adaptive": narrower ones for rarer words.
        cutoffs: where bands of the adaptive vocabulary begin.
        factor: by which each band is narrower than the one before.
        positions: "sinusoid", fixed, or "learned".
        final_norm: normalise what the last block gives.
        hidden_act: the feed-forward layers' activation.
        hidden_dropout: probability of dropping an element of embeddings, feed-forward and attention outputs.
        attention_dropout: of dropping an attention weight, where the attention forms weights.
        activation_dropout: of dropping an element inside the feed-forward layers.
        softmax_dropout: of dropping an element of the vectors that are scored against the vocabulary.
        layer_norm_eps: added to variances.
        use_cache: return a cache to go on from, except in training.
        bos_token_id: starts a text that has no beginning.
        eos_token_id: ends one; None if nothing does.
        pad_token_id: fills up batches.
    """

    model_type: ClassVar[str] = "flexformer-lm"
    keys_to_ignore_at_inference: ClassVar[list[str]] = ["past_key_values"]

    vocab_size: int = 256
    hidden_size: int = 128
    intermediate_size: int = 512
    num_hidden_layers: int = 4
    num_attention_heads: int = 4
    head_dim: int | None = None
    max_position_embeddings: int = 512
    attention: str = "flexformer-n"
    attention_options: dict[str, Any] | None = None
    vocabulary: Literal["tied", "adaptive"] = "tied"
    cutoffs: list[int] | None = None
    factor: int = 4
    positions: Literal["sinusoid", "learned"] = "sinusoid"
    final_norm: bool = False
    hidden_act: str = "relu"
    hidden_dropout: float = 0.1
    attention_dropout: float = 0.1
    activation_dropout: float = 0.1
    softmax_dropout: float = 0.0
    layer_norm_eps: float = 1e-5
    use_cache: bool = True
    bos_token_id: int | None = None
    eos_token_id: int | None = None
    pad_token_id: int | None = None

    @property
    def longest(self) -> int | None:
        """Tokens that a text can have; None where there is no end."""
        known = self.mechanism_options().get("max_length")
        return self.max_position_embeddings if known is None and self.positions == "learned" else known

    def mechanism_options(self) -> dict[str, Any]:
        """`attention_options`, with this model's longest text where the attention needs to know one."""
        given = dict(self.attention_options or {})
        if "max_length" in attention_options_of(self.attention):
            given.setdefault("max_length", self.max_position_embeddings)
        return given
