"""Training a language model: the model of a run, its blocks of text, and how well it predicts them."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
import torch
from rich.console import Console
from rich.progress import BarColumn, Progress, TextColumn, TimeRemainingColumn
from torch import Tensor, nn

from ..files import write_folder
from ..models import CausalLM, CausalLMConfig
from ..tasks import Split
from ..tasks.language import IGNORED, Blocks, LanguageModelling
from .job import Best, Job
from .language_options import LanguageOptions
from .record import RunFolder
from .trainer import TaskTrainer

if TYPE_CHECKING:
    from transformers import PreTrainedTokenizerFast

BITS, PERPLEXITY = Best("bits_per_byte", False), Best("perplexity", False)


class LanguageJob(Job):
    """A language model on a text."""

    options: LanguageOptions
    best = PERPLEXITY

    def __init__(self, options: LanguageOptions) -> None:
        super().__init__(options)
        data = options.data
        self.text = LanguageModelling(
            data.root,
            source=data.source,
            unit=data.unit,
            length=data.length,
            vocab_limit=data.vocab_limit,
            min_count=data.min_count,
        )

    def prepare(self, console: Console) -> None:
        with torch.device("meta"):  # refuses impossible settings at no cost, before a long text is read
            build_language_model(self.options, vocab_size=max(self.options.model.cutoffs, default=0) + 1)
        prepare_text(self.text, console)
        with torch.device("meta"):
            self.model()  # the text's own vocabulary may not fit
        self.best = BITS if self.text.unit == "byte" else PERPLEXITY

    def model(self) -> CausalLM:
        text = self.text
        return build_language_model(self.options, text.vocab_size, text.start_token, text.pad_token)

    def dataset(self, split: Split) -> Blocks:
        return self.text.dataset(split, limit=self.options.data.limit(split))

    def collate(self, examples: Sequence[Mapping[str, Any]]) -> dict[str, Tensor]:
        return self.text.collate(examples)

    def metrics(self, logits: np.ndarray, labels: np.ndarray) -> dict[str, float]:
        return self.text.metrics(logits, labels)

    def trainer_class(self) -> type[TaskTrainer]:
        return LanguageTrainer

    def save(self, model: nn.Module, folder: RunFolder) -> None:
        assert isinstance(model, CausalLM)
        tokenizer = self.tokenizer()

        def fill(path: Path) -> None:
            model.save_pretrained(path)
            tokenizer.save_pretrained(path)

        write_folder(folder.model, fill)

    def tokenizer(self) -> PreTrainedTokenizerFast:
        """Saved beside the weights, so that a checkpoint is all that `generate` needs."""
        return self.text.tokenizer()


class LanguageTrainer(TaskTrainer):
    """Evaluates by what every block adds up to, without logits."""

    def __init__(self, model: nn.Module, task: LanguageJob, *args: Any, **kwargs: Any) -> None:
        super().__init__(model, task, *args, **kwargs)
        self.processing_class = task.tokenizer()

    def prediction_step(
        self,
        model: nn.Module,
        inputs: dict[str, Tensor | Any],
        prediction_loss_only: bool,
        ignore_keys: list[str] | None = None,
    ) -> tuple[Tensor | None, Tensor | None, Tensor | None]:
        """No loss, which `Trainer` would average by batches; per block the sum of -log p, and the number of tokens."""
        inputs = self._prepare_inputs(inputs)
        with torch.no_grad(), self.compute_loss_context_manager():
            surprise = model(**inputs).surprise
        return None, surprise.double().sum(1), (inputs["shift_labels"] != IGNORED).sum(1)


def build_language_model(
    options: LanguageOptions, vocab_size: int, start_token: int | None = None, pad_token: int | None = None
) -> CausalLM:
    """The run's model with freshly drawn weights.

    Args:
        options: Of the run.
        vocab_size: Distinct tokens.
        start_token: What stands before a text.
        pad_token: Fills up batches.
    """
    wanted = options.model
    adaptive = vocab_size > max(wanted.cutoffs, default=vocab_size)
    vocabulary = ("adaptive" if adaptive else "tied") if wanted.vocabulary == "auto" else wanted.vocabulary
    config = CausalLMConfig(
        vocab_size=vocab_size,
        hidden_size=wanted.width,
        intermediate_size=wanted.feed_forward,
        num_hidden_layers=wanted.layers,
        num_attention_heads=wanted.heads,
        head_dim=wanted.head_dim,
        max_position_embeddings=options.data.length,
        attention=options.attention,
        attention_options=dict(wanted.attention_options),
        vocabulary=vocabulary,
        cutoffs=list(wanted.cutoffs) if vocabulary == "adaptive" else None,
        factor=wanted.factor,
        positions=wanted.positions,
        final_norm=wanted.final_norm,
        hidden_act=wanted.activation,
        hidden_dropout=wanted.dropout,
        attention_dropout=wanted.attention_dropout,
        activation_dropout=wanted.activation_dropout,
        softmax_dropout=wanted.softmax_dropout,
        bos_token_id=start_token,
        pad_token_id=pad_token,
    )
    return CausalLM(config)


def prepare_text(text: LanguageModelling, console: Console) -> None:
    """Read the text and build its token files, with a bar, or a line where there is no terminal."""
    if not console.is_terminal:
        if not text.tokens.cache.exists():
            console.print(f"reading {text.source}, word by word" if text.unit == "word" else f"reading {text.source}")
        text.prepare()
        return
    with Progress(
        TextColumn("reading {task.description}"), BarColumn(), TimeRemainingColumn(), console=console, transient=True
    ) as progress:
        bar = progress.add_task(text.source, total=None)
        text.prepare(lambda done, total: progress.update(bar, completed=done, total=total))
