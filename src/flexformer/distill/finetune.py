"""Fine-tuning on a GLUE task, with any attention in a pretrained model."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import torch
from rich.console import Console
from torch import Tensor, nn
from transformers import AutoModel, AutoModelForSequenceClassification, PreTrainedModel

from ..convert import convert, load_adapter, save_adapter
from ..convert import manifest as adapters
from ..convert.swap import check_attention
from ..tasks import Split
from ..tasks.glue import Glue
from ..training import Best, Job, RunFolder
from ..training.atomic import write_folder
from .job import ADAPTER
from .options import FinetuneOptions
from .pair_encoder import PairEncoder
from .pretrained import load_config, load_model, load_tokenizer
from .sequences import SequenceDataset, encode, pad, padding_token

LORA = "lora"


class FinetuneJob(Job):
    """A pretrained model that learns a GLUE task: as it is, converted, or with kernels that were distilled before.

    The run's folder gets the model, which `flexformer.load` or, with softmax, `from_pretrained` brings back; where
    there are kernels also `adapter/`, and with LoRA `lora/`.
    """

    options: FinetuneOptions

    def __init__(self, options: FinetuneOptions) -> None:
        super().__init__(options)
        self.glue = Glue(options.task, options.data.root, source=options.data.source, select=options.data.select)
        self.task = self.glue.task
        self.best = Best(*self.task.selected_by)
        if options.head == "cosine" and (self.task.classes or len(self.task.sentences) != 2):
            raise ValueError(f"head cosine does not fit {options.task}; it is for scores of pairs, stsb")
        if options.adapter is not None:
            made_for = adapters.read(Path(options.adapter)).attention
            if made_for != options.attention:
                raise ValueError(f"adapter {options.adapter} is of {made_for}, not of attention {options.attention}")
        if options.attention != "softmax":
            check_attention(options.attention)
        load_config(options.base)
        self.tokenizer = load_tokenizer(options.base)
        self.pad_token = padding_token(self.tokenizer)
        self._made: dict[str, SequenceDataset] = {}

    def prepare(self, console: Console) -> None:
        with console.status("reading examples"):
            for split in ("train", "validation", "test"):
                self.dataset(split)

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
        options = self.options
        torch.manual_seed(options.seed)
        if options.head == "cosine":
            model = load_model(options.base, AutoModel)
        else:
            # A head for other classes is left behind.
            size: dict[str, Any] = {"num_labels": self.task.outputs, "ignore_mismatched_sizes": True}
            model = load_model(options.base, AutoModelForSequenceClassification, **size)
            model.config.problem_type = "single_label_classification" if self.task.classes else "regression"
            model.config.pad_token_id = self.pad_token
        if options.adapter is not None:
            load_adapter(model, options.adapter)
        elif options.attention != "softmax":
            convert(model, options.attention, options.kernel.layers, **options.kernel.options)
        trained = self._with_lora(model)
        return PairEncoder(trained) if options.head == "cosine" else trained

    def _with_lora(self, model: PreTrainedModel) -> nn.Module:
        lora = self.options.lora
        if not lora.rank:
            return model
        from peft import LoraConfig, get_peft_model

        kept = ["kernel"] if self.options.attention != "softmax" else []
        is_classifier = self.options.head == "classifier"
        config = LoraConfig(
            r=lora.rank,
            lora_alpha=lora.alpha,  # type: ignore[arg-type]
            lora_dropout=lora.dropout,
            target_modules=lora.modules,
            modules_to_save=kept or None,
            task_type="SEQ_CLS" if is_classifier else "FEATURE_EXTRACTION",
        )
        return get_peft_model(model, config)

    def save(self, model: nn.Module, folder: RunFolder) -> None:
        trained: Any = model.encoder if isinstance(model, PairEncoder) else model
        if self.options.attention != "softmax":
            save_adapter(trained, folder.path / ADAPTER)
        if self.options.lora.rank:
            write_folder(folder.path / LORA, lambda path: trained.save_pretrained(path))
            trained = trained.merge_and_unload()

        def fill(path: Path) -> None:
            trained.save_pretrained(path)
            self.tokenizer.save_pretrained(path)  # the next step, a distillation, starts from this folder alone

        write_folder(folder.model, fill)
