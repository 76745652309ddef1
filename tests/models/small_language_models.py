"""Language models small enough for tests."""

from __future__ import annotations

import torch

from flexformer import kernels
from flexformer.models import CausalLM, CausalLMConfig

CAUSAL = ("softmax", *kernels.names())
SIZES = {
    "vocab_size": 61,
    "hidden_size": 32,
    "intermediate_size": 48,
    "num_hidden_layers": 2,
    "num_attention_heads": 2,
    "max_position_embeddings": 64,
    "pad_token_id": 1,
    "eos_token_id": 2,
}
ADAPTIVE = {"vocabulary": "adaptive", "cutoffs": [12, 30]}


def config(attention: str = "flexformer-n", **changes) -> CausalLMConfig:
    return CausalLMConfig(**(SIZES | {"attention": attention} | changes))


def language_model(attention: str = "flexformer-n", **changes) -> CausalLM:
    torch.manual_seed(5)
    return CausalLM(config(attention, **changes)).eval()


def prompts(batch: int = 3, length: int = 14, padding: int = 5) -> dict[str, torch.Tensor]:
    """Random tokens; the last text is shorter and padded on the left."""
    generator = torch.Generator().manual_seed(3)
    ids = torch.randint(3, SIZES["vocab_size"], (batch, length), generator=generator)
    mask = torch.ones_like(ids)
    if padding:
        mask[-1, :padding] = 0
        ids[-1, :padding] = SIZES["pad_token_id"]
    return {"input_ids": ids, "attention_mask": mask}
