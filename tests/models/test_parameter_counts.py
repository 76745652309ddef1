"""Parameters, counted without allocating any: those of the original code's models, and what each attention adds."""

from __future__ import annotations

import pytest
import torch
from torch import nn

from flexformer import ATTENTIONS
from flexformer.models import Classifier, DualEncoder, DualEncoderConfig, EncoderConfig

# The original code's dimensions: pixels without an offset, projections narrower than the model where it has them so,
# and for Retrieval the head that its released code builds.
LISTOPS = {
    "vocab_size": 17,
    "hidden_size": 512,
    "intermediate_size": 1024,
    "num_hidden_layers": 4,
    "num_attention_heads": 8,
    "num_labels": 10,
}
TEXT = {
    "vocab_size": 257,
    "hidden_size": 256,
    "intermediate_size": 1024,
    "num_hidden_layers": 4,
    "num_attention_heads": 4,
    "num_labels": 2,
}
RETRIEVAL = {
    "vocab_size": 257,
    "hidden_size": 128,
    "intermediate_size": 512,
    "num_hidden_layers": 4,
    "num_attention_heads": 4,
    "num_labels": 2,
}
IMAGE = {
    "vocab_size": 256,
    "hidden_size": 128,
    "intermediate_size": 128,
    "num_hidden_layers": 1,
    "num_attention_heads": 8,
    "head_dim": 8,
    "max_position_embeddings": 1024,
    "positions": "learned",
    "num_labels": 10,
}
PATHFINDER = {
    "vocab_size": 256,
    "hidden_size": 128,
    "intermediate_size": 128,
    "num_hidden_layers": 1,
    "num_attention_heads": 4,
    "head_dim": 16,
    "pooling": "mean",
    "num_labels": 2,
}
PATHFINDER_LATEST = PATHFINDER | {
    "hidden_size": 32,
    "intermediate_size": 32,
    "num_hidden_layers": 4,
    "head_dim": 4,
}


def count(model_class: type[nn.Module], config: EncoderConfig) -> int:
    with torch.device("meta"):
        model = model_class(config)
    assert all(p.is_meta for p in model.parameters())
    return sum(p.numel() for p in model.parameters())


@pytest.mark.parametrize(
    ("settings", "total", "published"),
    [
        (LISTOPS, 8_948_746, 8.95e6),
        (TEXT, 3_486_722, 3.49e6),
        (IMAGE, 248_458, 0.248e6),
        (PATHFINDER, 116_098, 0.116e6),
        (PATHFINDER_LATEST, 26_530, 0.027e6),
    ],
    ids=["listops", "text", "image", "pathfinder", "pathfinder-latest"],
)
def test_classifier_has_as_many_parameters_as_the_original(settings, total, published):
    assert count(Classifier, EncoderConfig(**settings, attention="softmax")) == total
    assert total == pytest.approx(published, rel=0.02)


def test_dual_encoder_has_as_many_parameters_as_the_original():
    released = DualEncoderConfig(**RETRIEVAL, attention="softmax", pooling="first", interaction="concatenation")
    assert count(DualEncoder, released) == 1_087_618  # published: 1.09 million
    ours = DualEncoderConfig(**RETRIEVAL, attention="softmax")
    extra = 128 + 2 * 128 * 512  # the class token, and two more blocks of the head's input
    assert count(DualEncoder, ours) == 1_087_618 + extra


def extra_parameters(attention: str, layers: int, heads: int, width: int, dim: int) -> int:
    """What an attention has beyond the four projections of softmax."""
    per_head = {
        "flexformer-s": dim * dim + 1,
        "flexformer-n": 2 * dim * dim + 1,
        "flexformer-c": 2 * dim * dim + 1,
        "rfa": dim,
        "hedgehog": dim * dim,
        "polaformer": 2 * dim,
    }
    whole = {"reformer": -width * heads * dim, "polaformer": width * heads * dim}
    return layers * (heads * per_head.get(attention, 0) + whole.get(attention, 0))


@pytest.mark.parametrize("attention", ATTENTIONS)
@pytest.mark.parametrize(("settings", "dim"), [(LISTOPS, 64), (TEXT, 64), (IMAGE, 8)], ids=["listops", "text", "image"])
def test_attention_adds_exactly_its_own_parameters(attention, settings, dim):
    added = count(Classifier, EncoderConfig(**settings, attention=attention)) - count(
        Classifier, EncoderConfig(**settings, attention="softmax")
    )
    layers, heads, width = (settings[k] for k in ("num_hidden_layers", "num_attention_heads", "hidden_size"))
    assert added == extra_parameters(attention, layers, heads, width, dim)
