"""Models small enough for tests."""

from __future__ import annotations

from flexformer.models import Classifier, DualEncoder, DualEncoderConfig, EncoderConfig

# Patterns that fit short inputs.
OPTIONS = {
    "reformer": {"chunk_length": 4},
    "longformer": {"window": 8},
    "bigbird": {"block_size": 4, "num_random_blocks": 1},
    "skyformer": {"num_landmarks": 8},
}
SIZES = {
    "vocab_size": 17,
    "hidden_size": 32,
    "intermediate_size": 48,
    "num_hidden_layers": 2,
    "num_attention_heads": 2,
    "max_position_embeddings": 40,
    "num_labels": 5,
}


def config(attention: str = "flexformer-n", **changes) -> EncoderConfig:
    return EncoderConfig(**(SIZES | {"attention": attention, "attention_options": OPTIONS.get(attention)} | changes))


def classifier(attention: str = "flexformer-n", **changes) -> Classifier:
    return Classifier(config(attention, **changes))


def dual_encoder(attention: str = "flexformer-n", **changes) -> DualEncoder:
    settings = SIZES | {"attention": attention, "attention_options": OPTIONS.get(attention)} | changes
    return DualEncoder(DualEncoderConfig(**settings))
