"""What is to be said about a task: the facts of the benchmark, as data."""

from __future__ import annotations

from dataclasses import dataclass, field


@dataclass(frozen=True)
class Protocol:
    """Model and optimisation settings of one task in the benchmark.

    Args:
        layers: Encoder blocks.
        heads: Attention heads.
        embed_dim: Width of the residual stream.
        qkv_dim: Total width of queries, keys and values; a head has qkv_dim / heads.
        mlp_dim: Hidden width of the feed-forward layers and of the classifier's.
        max_length: Tokens per sequence.
        pooling: "cls", "mean" or "first".
        positions: "sinusoid" or "learned".
        dropout: Of embeddings and blocks.
        attention_dropout: Of softmax weights; linear attention has none.
        batch_size: Examples (pairs for Retrieval) per step.
        steps: Optimiser steps.
        learning_rate: The base rate; with "rsqrt" the peak is base / sqrt(warmup).
        schedule: "rsqrt" or "cosine", both after a linear warm-up.
        warmup_steps: Steps of that warm-up.
        weight_decay: Decoupled.
        evaluate_every: Steps between evaluations.
    """

    layers: int
    heads: int
    embed_dim: int
    qkv_dim: int
    mlp_dim: int
    max_length: int
    pooling: str
    positions: str
    dropout: float
    attention_dropout: float
    batch_size: int
    steps: int
    learning_rate: float
    schedule: str
    warmup_steps: int
    weight_decay: float
    evaluate_every: int

    @property
    def head_dim(self) -> int:
        return self.qkv_dim // self.heads


@dataclass(frozen=True)
class TaskDescription:
    """Everything worth telling about a task without touching its data.

    Args:
        name: As in `tasks.build(name)`.
        title: As in tables.
        kind: "classification", or "pair" for two towers.
        question: What the model has to answer, in one sentence.
        vocab_size: Token ids are 0 .. vocab_size - 1; 0 is padding.
        num_classes: Labels are 0 .. num_classes - 1.
        max_length: Tokens per sequence as this task was built.
        source: Where the data comes from.
        layout: Files looked for, relative to the root; the first complete set is used.
        paper_sizes: Split -> the paper's count as printed, None where it prints a dash.
        true_sizes: Split -> examples in the published data; None where it has no such split of its own.
        paper_accuracy: Attention -> (mean, standard deviation) of test accuracy in per cent; empty if not in the paper.
        official: Settings of the original code as it runs.
        recommended: Settings for comparison with the paper, where it differs from the original code.
        notes: What we do differently, and why.
    """

    name: str
    title: str
    kind: str
    question: str
    vocab_size: int
    num_classes: int
    max_length: int
    source: str
    layout: tuple[str, ...]
    paper_sizes: dict[str, str | None]
    true_sizes: dict[str, int | None]
    paper_accuracy: dict[str, tuple[float, float]]
    official: Protocol | None
    recommended: Protocol | None
    notes: tuple[str, ...] = field(default=())
