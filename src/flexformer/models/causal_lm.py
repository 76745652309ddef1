"""A language model with any causal attention, which generates from a state of fixed size."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, cast

import torch
from torch import FloatTensor, Tensor, nn
from transformers import GenerationMixin
from transformers.cache_utils import Cache
from transformers.modeling_outputs import CausalLMOutputWithPast
from transformers.utils.generic import can_return_tuple

from ..attention import MultiheadAttention
from ..ops.split import active_split
from .adaptive import AdaptiveVocabulary
from .blocks import Block, FeedForward
from .cache import RecurrentCache, recurrent_layer
from .causal_lm_configuration import CausalLMConfig
from .encoder import FlexformerPreTrainedModel, resolve_mask
from .positions import LearnedPositions, sinusoid_at
from .vocabulary import TiedVocabulary, Vocabulary

IGNORED = -100  # a label that is not scored, as everywhere in Hugging Face's tools


@dataclass
class CausalLMOutput(CausalLMOutputWithPast):
    """What a language model says about a batch."""

    surprise: Tensor | None = None
    """(B, T) -log p of every label in nats, at least float32, zero where there is none"""


class CausalLM(FlexformerPreTrainedModel, GenerationMixin):
    """Embeddings, pre-norm blocks and the same embeddings again.

    `generate()` is Hugging Face's own. Between calls it carries a cache of attention states, `RecurrentCache`: of fixed
    size with kernel attentions, all keys and values with softmax.
    """

    config_class = CausalLMConfig  # type: ignore[assignment]  # any configuration will do
    base_model_prefix = "decoder"
    accepts_loss_kwargs = True  # `Trainer` then says how many tokens all portions of a batch have
    self_starting = (*FlexformerPreTrainedModel.self_starting, Vocabulary, LearnedPositions)
    _is_stateful = True  # generate() then refuses to take tokens back, as assisted decoding must
    _no_split_modules = ["Block", "TiedVocabulary", "AdaptiveVocabulary"]  # noqa: RUF012  (as the base class has it)

    def __init__(self, config: CausalLMConfig) -> None:
        super().__init__(config)
        self.vocabulary = _vocabulary(config)
        self.positions: LearnedPositions | None = None
        if config.positions == "learned":
            self.positions = LearnedPositions(config.max_position_embeddings, config.hidden_size)
        self.dropout = nn.Dropout(config.hidden_dropout)
        self.blocks = nn.ModuleList(_block(config) for _ in range(config.num_hidden_layers))
        self.norm = nn.LayerNorm(config.hidden_size, eps=config.layer_norm_eps) if config.final_norm else None
        self.post_init()

    def get_input_embeddings(self) -> nn.Module:
        return self.vocabulary

    def set_input_embeddings(self, value: nn.Module) -> None:
        if not isinstance(value, Vocabulary):
            raise TypeError(f"value is a {type(value).__name__}; pass a flexformer.models.Vocabulary")
        self.vocabulary = value

    def resize_token_embeddings(self, *args: Any, **kwargs: Any) -> nn.Embedding:
        raise NotImplementedError("the vocabulary cannot be resized; build a model with another config.vocab_size")

    @staticmethod
    def create_masks_for_generate(attention_mask: Tensor | None, **_: Any) -> Tensor | None:
        """Leave masks as they are, where `generate()` would expand them for caches of fixed length."""
        return attention_mask

    @staticmethod
    def count_items(batch: Mapping[str, Tensor]) -> Tensor:
        """How many tokens of a batch are scored, for `num_items_in_batch`."""
        targets = batch["shift_labels"] if "shift_labels" in batch else _shifted(batch["labels"])
        return (targets != IGNORED).sum()

    @can_return_tuple
    def forward(
        self,
        input_ids: Tensor,
        attention_mask: Tensor | None = None,
        position_ids: Tensor | None = None,
        past_key_values: Cache | None = None,
        labels: Tensor | None = None,
        shift_labels: Tensor | None = None,
        use_cache: bool | None = None,
        logits_to_keep: int | Tensor = 0,
        key_mask: Tensor | None = None,
        num_items_in_batch: Tensor | int | None = None,
    ) -> CausalLMOutput:
        """Score texts, or say what may come next.

        Args:
            input_ids: (B, T) token ids; with a cache, those that come after what it has seen.
            attention_mask: (B, seen + T), 1 at tokens and 0 at padding, left or right of them.
            position_ids: (B, T); by default counted from the first token that is not padding.
            past_key_values: the cache of an earlier call.
            labels: (B, T) `input_ids` again, -100 where they are not scored; the model shifts them.
            shift_labels: (B, T) instead of `labels`, the token after each input.
            use_cache: return a cache; by default as the config says, but not in training.
            logits_to_keep: compute logits of this many last positions only, or of these positions; 0 for all.
            key_mask: (B, T) bool instead of `attention_mask`, True = a token.
            num_items_in_batch: what the summed loss is divided by; by default the number of labels scored.

        Returns:
            With labels `surprise` (B, T) and its mean, `loss`, both in nats, and no logits: over a large vocabulary
            they would take far more memory than all the rest. Otherwise `logits` (B, T or fewer, V), which are
            log-probabilities where the vocabulary is adaptive. `past_key_values` with `use_cache`. Within
            `flexformer.parallel.sequence_parallel` inputs are this rank's part of the texts, and `loss` its share of
            the mean over all ranks.
        """
        if labels is not None and shift_labels is not None:
            raise ValueError("labels and shift_labels both given; they say the same, pass one")
        if labels is not None and active_split() is not None:
            raise ValueError("labels cannot be shifted from rank to rank; shift the whole and pass shift_labels")
        for name, given in (("labels", labels), ("shift_labels", shift_labels), ("position_ids", position_ids)):
            if given is not None and given.shape[-1] != input_ids.shape[1]:
                raise ValueError(f"{name} has shape {tuple(given.shape)}; input_ids has {tuple(input_ids.shape)}")
        targets = shift_labels if labels is None else _shifted(labels)
        keeps = self.config.use_cache and not self.training and targets is None
        if past_key_values is None and (keeps if use_cache is None else use_cache):
            past_key_values = RecurrentCache()
        x, mask = self._embed(input_ids, attention_mask, key_mask, position_ids, past_key_values)
        x = self._blocks(x, mask, past_key_values)
        if targets is not None:
            surprise = self._surprise(x, targets)
            count = _scored(targets).clamp_min(1) if num_items_in_batch is None else num_items_in_batch
            loss = cast(FloatTensor, surprise.sum() / count)
            return CausalLMOutput(loss=loss, past_key_values=past_key_values, surprise=surprise)
        kept = slice(-logits_to_keep, None) if isinstance(logits_to_keep, int) else logits_to_keep
        logits = self.vocabulary.scores(x[:, kept])
        return CausalLMOutput(logits=cast(FloatTensor, logits), past_key_values=past_key_values)

    def _embed(
        self,
        input_ids: Tensor,
        attention_mask: Tensor | None,
        key_mask: Tensor | None,
        position_ids: Tensor | None,
        cache: Cache | None,
    ) -> tuple[Tensor, Tensor | None]:
        """(B, T, E) vectors and the (B, T) mask of these positions, None where nothing is masked."""
        seen = 0 if cache is None else int(cache.get_seq_length())
        length = input_ids.shape[1]
        if attention_mask is not None and tuple(attention_mask.shape) != (len(input_ids), seen + length):
            raise ValueError(
                f"attention_mask has shape {tuple(attention_mask.shape)}; pass (B, seen + T) = "
                f"({len(input_ids)}, {seen + length})"
            )
        if position_ids is None:
            if attention_mask is not None:
                position_ids = _positions(attention_mask)[:, seen:]
            else:
                position_ids = torch.arange(seen, seen + length, device=input_ids.device)
                if (split := active_split()) is not None:
                    position_ids = position_ids + split.before(torch.tensor(length, device=input_ids.device))
        visible = None if attention_mask is None else attention_mask[:, seen:]
        mask = resolve_mask(key_mask, visible, input_ids)
        if mask is not None and not mask.is_meta and bool(mask.all()):
            mask = None  # attention is faster where there is none
        x = self.vocabulary.embed(input_ids)
        place = sinusoid_at(position_ids, x.shape[-1]) if self.positions is None else self.positions(position_ids)
        x = self.dropout(x + place.to(x.dtype))
        return x, mask

    def _blocks(self, x: Tensor, mask: Tensor | None, cache: Cache | None) -> Tensor:
        length = x.shape[1]
        if cache is not None and (split := active_split()) is not None:
            length = int(split.all_reduce(torch.tensor(length, device=x.device)))
        for index, block in enumerate(self.blocks):
            if cache is None:
                x = block(x, key_mask=mask)
                continue
            layer = recurrent_layer(cache, index)
            layer.advance(length)
            x, layer.state = block(x, key_mask=mask, state=layer.state, return_state=True)
        return x if self.norm is None else self.norm(x)

    def _surprise(self, x: Tensor, targets: Tensor) -> Tensor:
        scored = targets != IGNORED
        found = self.vocabulary.surprise(x[scored], targets[scored])
        return found.new_zeros(targets.shape).masked_scatter(scored, found)


def _scored(targets: Tensor) -> Tensor:
    """How many labels there are, on all ranks together."""
    count, split = (targets != IGNORED).sum(), active_split()
    return count if split is None else split.all_reduce(count)


def _positions(attention_mask: Tensor) -> Tensor:
    """(B, T) counted from the first token that is not padding, on whichever rank that is."""
    tokens = attention_mask.long()
    position = tokens.cumsum(-1) - 1
    if (split := active_split()) is not None:
        position = position + split.before(tokens.sum(-1))[:, None]
    return position.clamp_min(0)


def _shifted(labels: Tensor) -> Tensor:
    """The label after each; the last has none."""
    return torch.cat((labels[:, 1:], torch.full_like(labels[:, :1], IGNORED)), dim=1)


def _vocabulary(config: CausalLMConfig) -> Vocabulary:
    if config.vocabulary == "tied":
        return TiedVocabulary(config.vocab_size, config.hidden_size, config.softmax_dropout, config.pad_token_id)
    return AdaptiveVocabulary(
        config.vocab_size,
        config.hidden_size,
        config.cutoffs or (),
        config.factor,
        config.softmax_dropout,
        config.pad_token_id,
    )


def _block(config: CausalLMConfig) -> Block:
    attention = MultiheadAttention(
        config.hidden_size,
        config.num_attention_heads,
        config.attention,
        is_causal=True,
        head_dim=config.head_dim,
        dropout=config.attention_dropout,
        **config.mechanism_options(),
    )
    feed_forward = FeedForward(
        config.hidden_size,
        config.intermediate_size,
        config.hidden_act,
        config.hidden_dropout,
        config.activation_dropout,
    )
    return Block(attention, feed_forward, config.hidden_dropout, config.layer_norm_eps)
