"""Fine-tuning a language model on text, with any attention in it."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn

from ..tasks import Split
from ..training import Best
from .options import TEXT_PREFIX, FinetuneOptions, TextOptions
from .pretrained import load_model, start_token
from .pretrained_job import PretrainedJob
from .sequences import SequenceDataset, pad
from .texts import Texts


class Writer(nn.Module):
    """A language model that tells of each sequence how surprised it was, not its logits, which would fill the memory.

    Args:
        model: A transformers model with a head for tokens.
    """

    accepts_loss_kwargs = True  # of `Trainer`, which then counts the tokens of all portions of a batch

    def __init__(self, model: nn.Module) -> None:
        super().__init__()
        self.model = model
        names: dict[Tensor, str] = {}
        every = self.named_parameters(remove_duplicate=False)
        self._copies = {name: names[p] for name, p in every if names.setdefault(p, name) != name}
        """names of tied weights -> the name they are kept under"""
        self.register_state_dict_post_hook(Writer._leave_copies_out)
        self.register_load_state_dict_pre_hook(Writer._bring_copies_back)

    def _leave_copies_out(self, state: dict[str, Any], prefix: str, _: Any) -> None:
        for name in self._copies:
            state.pop(prefix + name)

    def _bring_copies_back(self, state: dict[str, Any], prefix: str, *_: Any) -> None:
        for name, kept in self._copies.items():
            if prefix + kept in state:
                state.setdefault(prefix + name, state[prefix + kept])

    @staticmethod
    def count_items(batch: Mapping[str, Tensor]) -> Tensor:
        """How many tokens of a batch are scored, for `num_items_in_batch`."""
        return _scored(batch["attention_mask"]).sum().clamp_min(1)

    def forward(
        self,
        input_ids: Tensor,
        attention_mask: Tensor,
        labels: Tensor | None = None,
        num_items_in_batch: Tensor | None = None,
    ) -> dict[str, Tensor]:
        """Read sequences.

        Args:
            input_ids: (B, T).
            attention_mask: (B, T), 0 at padding.
            labels: Not used; trainers measure only batches that have them.
            num_items_in_batch: What the summed loss is divided by; by default the number of tokens scored.

        Returns:
            "loss", the mean of -log p of each token given those before it, and "logits" (B, 2), the sum of these over
            a sequence and how many they are.
        """
        logits = self.model(input_ids=input_ids, attention_mask=attention_mask, use_cache=False).logits[:, :-1].float()
        counted = _scored(attention_mask).to(logits.dtype)
        surprise = nn.functional.cross_entropy(logits.transpose(1, 2), input_ids[:, 1:], reduction="none") * counted
        sums = torch.stack((surprise.sum(1), counted.sum(1)), dim=1)
        count = counted.sum().clamp_min(1.0) if num_items_in_batch is None else num_items_in_batch
        return {"loss": surprise.sum() / count, "logits": sums.detach()}


def _scored(mask: Tensor) -> Tensor:
    """(B, T) to (B, T - 1): tokens that have one before them."""
    return mask[:, 1:] * mask[:, :-1]


class TextFinetuneJob(PretrainedJob):
    """A pretrained language model that goes on learning to write."""

    best = Best("perplexity", False)

    def __init__(self, options: FinetuneOptions) -> None:
        if options.head != "classifier":
            raise ValueError(f"head {options.head} does not fit {options.task}; it is for scores of pairs, stsb")
        super().__init__(options)
        data, source = options.data, options.task.removeprefix(TEXT_PREFIX)
        given = TextOptions(
            data.root,
            data.source,
            data.max_length,
            train_limit=data.train_limit,
            validation_limit=data.validation_limit,
        )
        start = start_token(self.config, self.tokenizer)
        self.texts = Texts(source, given, self.tokenizer, start, data.test_limit)

    def dataset(self, split: Split) -> SequenceDataset:
        return self.texts.dataset(split)

    def collate(self, examples: Sequence[Mapping[str, Any]]) -> dict[str, Tensor]:
        batch = pad(examples, self.pad_token)
        batch.pop("token_type_ids", None)
        return batch | {"labels": torch.tensor([example["labels"] for example in examples])}

    def metrics(self, logits: np.ndarray, labels: np.ndarray) -> dict[str, float]:
        nats, tokens = np.asarray(logits, np.float64).sum(0)
        return {"perplexity": math.exp(min(nats / max(tokens, 1.0), 700.0))}

    def model(self) -> nn.Module:
        model = load_model(self.options.base)
        if not model.can_generate():
            raise ValueError(f"base {self.options.base} is no language model; {TEXT_PREFIX} is for those that are")
        torch.manual_seed(self.options.seed)
        return Writer(self.ready(model, "CAUSAL_LM"))

    def inside(self, model: nn.Module) -> Any:
        return model.model if isinstance(model, Writer) else model
