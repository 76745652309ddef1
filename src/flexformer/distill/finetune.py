"""Fine-tuning on a GLUE task, with any attention in a pretrained model."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn
from transformers import AutoModel, AutoModelForSequenceClassification

from ..tasks import Split
from ..tasks.glue import Glue
from ..training import Best
from .options import FinetuneOptions
from .pair_encoder import PairEncoder
from .pretrained import load_model
from .pretrained_job import PretrainedJob
from .sequences import SequenceDataset, encode, pad


class FinetuneJob(PretrainedJob):
    """A pretrained model that learns a GLUE task."""

    def __init__(self, options: FinetuneOptions) -> None:
        self.glue = Glue(options.task, options.data.root, source=options.data.source, select=options.data.select)
        self.task = self.glue.task
        self.best = Best(*self.task.selected_by)
        if options.head == "cosine" and (self.task.classes or len(self.task.sentences) != 2):
            raise ValueError(f"head cosine does not fit {options.task}; it is for scores of pairs, stsb")
        super().__init__(options)
        self._made: dict[str, SequenceDataset] = {}

    def dataset(self, split: Split) -> SequenceDataset:
        if split not in self._made:
            examples = self.glue.examples(split, self.options.data.limit(split))
            sides = [[side] for side in examples.sentences] if self.options.head == "cosine" else [examples.sentences]
            first, *second = (encode(self.tokenizer, side, self.options.data.max_length) for side in sides)
            for row, label in zip(first, examples.labels.tolist(), strict=True):
                row["labels"] = label
            for row, other in zip(first, *second, strict=True) if second else ():
                row |= {f"{name}_2": value for name, value in other.items()}
            self._made[split] = SequenceDataset(first)
        return self._made[split]

    def collate(self, examples: Sequence[Mapping[str, Any]]) -> dict[str, Tensor]:
        batch = pad(examples, self.pad_token)
        if self.options.head == "cosine":
            batch |= pad(examples, self.pad_token, "_2")
        return batch | {"labels": torch.tensor([example["labels"] for example in examples])}

    def metrics(self, logits: np.ndarray, labels: np.ndarray) -> dict[str, float]:
        return self.task.metrics(logits, labels)

    def model(self) -> nn.Module:
        torch.manual_seed(self.options.seed)
        if self.options.head == "cosine":
            return PairEncoder(self.ready(load_model(self.options.base, AutoModel), "FEATURE_EXTRACTION"))
        # A head for other classes is left behind.
        size: dict[str, Any] = {"num_labels": self.task.outputs, "ignore_mismatched_sizes": True}
        model = load_model(self.options.base, AutoModelForSequenceClassification, **size)
        model.config.problem_type = "single_label_classification" if self.task.classes else "regression"
        model.config.pad_token_id = self.pad_token
        return self.ready(model, "SEQ_CLS")

    def inside(self, model: nn.Module) -> Any:
        return model.encoder if isinstance(model, PairEncoder) else model
