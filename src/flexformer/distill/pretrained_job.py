"""What every fine-tuning does with a pretrained model: swap its attention, add LoRA, keep the result."""

from __future__ import annotations

import abc
from pathlib import Path
from typing import Any, Literal, TypeAlias

from rich.console import Console
from torch import nn
from transformers import PreTrainedModel

from ..convert import convert, load_adapter, save_adapter
from ..convert import manifest as adapters
from ..convert.swap import check_attention
from ..files import write_folder
from ..tasks import Split
from ..tasks.base import SPLITS
from ..training import Job, RunFolder
from .options import FinetuneOptions
from .pretrained import check_lengths, load_config, load_tokenizer, longest_input
from .sequences import SequenceDataset, padding_token

LORA = "lora"

LoraTask: TypeAlias = Literal["SEQ_CLS", "FEATURE_EXTRACTION", "CAUSAL_LM"]


class PretrainedJob(Job):
    """A pretrained model that learns: as it is, converted, or with kernels that were distilled before.

    The run's folder gets the model, which `flexformer.load` or, with softmax, `from_pretrained` brings back; where
    there are kernels also `adapter/`, and with LoRA `lora/`.
    """

    options: FinetuneOptions

    def __init__(self, options: FinetuneOptions) -> None:
        super().__init__(options)
        extended: int | None = None
        if options.adapter is not None:
            made = adapters.read(Path(options.adapter))
            if made.attention != options.attention:
                raise ValueError(
                    f"adapter {options.adapter} is of {made.attention}, not of attention {options.attention}"
                )
            extended = made.base.positions
        if options.attention != "softmax":
            check_attention(options.attention)
        self.config = load_config(options.base)
        self.longest = extended or longest_input(self.config)
        self.tokenizer = load_tokenizer(options.base)
        self.pad_token = padding_token(self.tokenizer)

    def prepare(self, console: Console) -> None:
        with console.status("reading examples"):
            check_lengths(map(self.dataset, SPLITS), self.longest, self.options.base)

    @abc.abstractmethod
    def dataset(self, split: Split) -> SequenceDataset: ...

    def ready(self, model: PreTrainedModel, task: LoraTask) -> nn.Module:
        """The model with the attention and the LoRA that the options ask for."""
        options = self.options
        if options.adapter is not None:
            load_adapter(model, options.adapter)
        elif options.attention != "softmax":
            convert(model, options.attention, options.kernel.layers, **options.kernel.options)
        if not options.lora.rank:
            return model
        from peft import LoraConfig, get_peft_model

        config = LoraConfig(
            r=options.lora.rank,
            lora_alpha=options.lora.alpha,  # type: ignore[arg-type]
            lora_dropout=options.lora.dropout,
            target_modules=options.lora.modules,
            modules_to_save=None if options.attention == "softmax" else ["kernel"],
            task_type=task,
        )
        return get_peft_model(model, config)

    def inside(self, model: nn.Module) -> Any:
        """The transformers or PEFT model in what is trained."""
        return model

    def save(self, model: nn.Module, folder: RunFolder) -> None:
        trained = self.inside(model)
        if self.options.attention != "softmax":
            save_adapter(trained, folder.adapter)
        if self.options.lora.rank:
            write_folder(folder.path / LORA, lambda path: trained.save_pretrained(path))
            trained = trained.merge_and_unload()

        def fill(path: Path) -> None:
            trained.save_pretrained(path)
            self.tokenizer.save_pretrained(path)  # the next step, a distillation, starts from this folder alone

        write_folder(folder.model, fill)
