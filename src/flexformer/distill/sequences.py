"""Token sequences for pretrained models: from sentences to batches."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import torch
from torch import Tensor
from torch.utils.data import Dataset
from transformers import PreTrainedTokenizerBase

# What models are given for a sequence, with what padding holds; "input_ids" gets the tokenizer's own.
FIELDS = {"input_ids": 0, "token_type_ids": 0, "attention_mask": 0}


class SequenceDataset(Dataset[dict[str, Any]]):
    """Sequences in memory.

    An item is {"input_ids": [...], "attention_mask": [...], "labels": number}, with "token_type_ids" where the
    tokenizer gives them, and for pairs that are read apart the same once more with the suffix "_2".
    """

    def __init__(self, rows: Sequence[dict[str, Any]]) -> None:
        self.rows = rows

    def __len__(self) -> int:
        return len(self.rows)

    def __getitem__(self, index: int) -> dict[str, Any]:
        return self.rows[index]

    def lengths(self) -> dict[str, int]:
        """Tokens of the middle one and of the longest."""
        found = sorted(len(row["input_ids"]) for row in self.rows)
        return {"median": found[len(found) // 2], "longest": found[-1]}


def encode(
    tokenizer: PreTrainedTokenizerBase, sentences: Sequence[Sequence[str]], max_length: int
) -> list[dict[str, Any]]:
    """Sentences, or pairs of them as one sequence, cut to `max_length` tokens.

    Args:
        tokenizer: The model's.
        sentences: The first sentences, and for pairs the second ones.
        max_length: Of a whole sequence, with what the tokenizer adds.
    """
    found = tokenizer(*(list(side) for side in sentences), truncation=True, max_length=max_length)
    return rows_of(found)


def rows_of(found: Mapping[str, Any]) -> list[dict[str, Any]]:
    """What a tokenizer found, sequence by sequence."""
    fields = [name for name in FIELDS if name in found]
    return [{name: found[name][i] for name in fields} for i in range(len(found["input_ids"]))]


def pad(rows: Sequence[Mapping[str, Any]], pad_token: int, suffix: str = "") -> dict[str, Tensor]:
    """A batch (B, T) of sequences, padded on the right to the longest.

    Right padding leaves positions as they are, whatever kind the model has; what is padding says the mask.
    """
    width = max(len(row[f"input_ids{suffix}"]) for row in rows)
    batch = {}
    for name, filler in FIELDS.items():
        if f"{name}{suffix}" in rows[0]:
            filler = pad_token if name == "input_ids" else filler
            padded = [[*row[f"{name}{suffix}"], *[filler] * (width - len(row[f"{name}{suffix}"]))] for row in rows]
            batch[f"{name}{suffix}"] = torch.tensor(padded)
    return batch


def padding_token(tokenizer: PreTrainedTokenizerBase) -> int:
    """The tokenizer's own; without one that which ends a text, as some models look for the last token that is none."""
    return next((x for x in (tokenizer.pad_token_id, tokenizer.eos_token_id) if isinstance(x, int)), 0)
