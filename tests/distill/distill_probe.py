"""For `flexformer.bench.probe`: a step of distillation on one long sequence."""

from __future__ import annotations

import torch
from transformers import BertConfig, BertModel

import flexformer
from flexformer.distill import Distiller


def prepare(layers: int, heads: int, length: int, attention: str):
    torch.manual_seed(0)
    config = BertConfig(
        vocab_size=50,
        hidden_size=16 * heads,
        num_hidden_layers=layers,
        num_attention_heads=heads,
        intermediate_size=16,
        max_position_embeddings=length,
    )
    distiller = Distiller(flexformer.convert(BertModel(config), attention)).train()
    ids = torch.randint(50, (1, length))

    def step(tokens: torch.Tensor):
        distiller(tokens, torch.ones_like(tokens))["loss"].backward()
        return [parameter.grad for parameter in distiller.parameters()]

    return (lambda: step(ids[:, :16])), (lambda: step(ids)), [ids]
