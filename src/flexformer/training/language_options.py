"""What the training of a language model can be told: the one source of options, their help and preset keys."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any, Literal

from .options import OptimizerOptions, ScheduleOptions, TrainingOptions, check
from .plain import Limited, Plain

TASK = "lm"


@dataclass(frozen=True)
class LanguageDataOptions(Limited):
    """Which text is read, and how much of it.

    Args:
        source: python (the standard library's own sources), wikitext103, wikitext2 or enwik8 under the root, a text
            file, a folder, or a Hugging Face datasets id such as owner/name.
        unit: Words at white space, or bytes; default words for WikiText and bytes for the rest.
        length: Tokens of a block.
        vocab_limit: Keep at most this many words.
        min_count: Keep words that occur at least so often; the others become <unk>.
        root: Folder the data lives in; default $FLEXFORMER_DATA, else flexformer/data in the user's cache.
        train_limit: Train on this many blocks only.
        validation_limit: Validate on this many only.
        test_limit: Test on this many only.
    """

    source: str = "python"
    unit: Literal["word", "byte"] | None = None
    length: int = 512
    vocab_limit: int | None = None
    min_count: int = 1
    root: str | None = None
    train_limit: int | None = None
    validation_limit: int | None = None
    test_limit: int | None = None


@dataclass(frozen=True)
class LanguageModelOptions:
    """The model's size and shape.

    Args:
        layers: Blocks.
        heads: Attention heads.
        width: Of the residual stream.
        feed_forward: Width inside the feed-forward layers.
        head_dim: Width of one head; default width / heads.
        vocabulary: One vector for each token (tied), or narrower ones for rarer words (adaptive); auto is adaptive
            where there are more tokens than the last cutoff.
        cutoffs: Where bands of the adaptive vocabulary begin.
        factor: By which each band is narrower than the one before.
        positions: Fixed sinusoids, or learned vectors.
        final_norm: Normalise what the last layer gives.
        activation: Of the feed-forward layers.
        dropout: Of embeddings and of every layer's output.
        attention_dropout: Of attention weights, where an attention forms them.
        activation_dropout: Inside the feed-forward layers.
        softmax_dropout: Of the vectors that are scored against the vocabulary.
        attention_options: The attention's own options by name, such as num_frequencies.
    """

    layers: int = 2
    heads: int = 2
    width: int = 64
    feed_forward: int = 256
    head_dim: int | None = None
    vocabulary: Literal["auto", "tied", "adaptive"] = "auto"
    cutoffs: list[int] = field(default_factory=lambda: [20_000, 60_000])
    factor: int = 4
    positions: Literal["sinusoid", "learned"] = "sinusoid"
    final_norm: bool = False
    activation: Literal["relu", "gelu"] = "relu"
    dropout: float = 0.1
    attention_dropout: float = 0.1
    activation_dropout: float = 0.1
    softmax_dropout: float = 0.2
    attention_options: dict[str, Any] = field(default_factory=dict)


@dataclass(frozen=True)
class LanguageOptions(Plain):
    """Everything that decides what a run does.

    Args:
        attention: A name in `flexformer.ATTENTIONS` that has a causal form, or of a registered kernel.
        preset: The name of the settings it started from; the scale its results are labelled with.
        seed: Of weights, dropout and the order of blocks.
        data: See `LanguageDataOptions`.
        model: See `LanguageModelOptions`.
        optimizer: See `OptimizerOptions`.
        schedule: See `ScheduleOptions`.
        training: See `TrainingOptions`.
    """

    attention: str = "flexformer-n"
    preset: str = "custom"
    seed: int = 0
    data: LanguageDataOptions = field(default_factory=LanguageDataOptions)
    model: LanguageModelOptions = field(default_factory=LanguageModelOptions)
    optimizer: OptimizerOptions = field(default_factory=OptimizerOptions)
    schedule: ScheduleOptions = field(default_factory=ScheduleOptions)
    training: TrainingOptions = field(default_factory=TrainingOptions)

    def __post_init__(self) -> None:
        check(self.optimizer, self.schedule, self.training)

    @property
    def task(self) -> str:
        """How records name the task."""
        return TASK
