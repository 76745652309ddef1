"""A tiny model with random weights of every family that can be converted, and inputs for it."""

from __future__ import annotations

from typing import Any

import torch
import transformers
from transformers import PreTrainedModel

import flexformer

TEXT = {
    "hidden_size": 32,
    "num_hidden_layers": 2,
    "num_attention_heads": 4,
    "intermediate_size": 48,
    "vocab_size": 61,
    "max_position_embeddings": 128,
    # Queries and keys of unit size, so that attention is far from uniform.
    "initializer_range": 0.2,
    "pad_token_id": 0,
    "bos_token_id": 1,
    "eos_token_id": 2,
}
GROUPED = TEXT | {"num_key_value_heads": 2}
GPT2 = {
    "n_embd": 32,
    "n_layer": 2,
    "n_head": 4,
    "vocab_size": 61,
    "n_positions": 128,
    "initializer_range": 0.2,
    "bos_token_id": 1,
    "eos_token_id": 2,
    "pad_token_id": 0,
}
ENCODERS: dict[str, tuple[str, str, dict[str, Any]]] = {
    "bert": ("BertModel", "BertConfig", TEXT),
    "roberta": ("RobertaForMaskedLM", "RobertaConfig", TEXT),
    "electra": ("ElectraModel", "ElectraConfig", TEXT | {"embedding_size": 32}),
    "distilbert": (
        "DistilBertForSequenceClassification",
        "DistilBertConfig",
        {
            "dim": 32,
            "n_layers": 2,
            "n_heads": 4,
            "hidden_dim": 48,
            "vocab_size": 61,
            "max_position_embeddings": 128,
            "initializer_range": 0.2,
        },
    ),
    "vit": (
        "ViTModel",
        "ViTConfig",
        {
            "hidden_size": 32,
            "num_hidden_layers": 2,
            "num_attention_heads": 4,
            "intermediate_size": 48,
            "image_size": 24,
            "patch_size": 8,
            "initializer_range": 0.2,
        },
    ),
}
DECODERS: dict[str, tuple[str, str, dict[str, Any]]] = {
    "gpt2": ("GPT2LMHeadModel", "GPT2Config", GPT2),
    "gpt-neox": ("GPTNeoXForCausalLM", "GPTNeoXConfig", TEXT),
    "llama": ("LlamaForCausalLM", "LlamaConfig", GROUPED),
    "qwen2": ("Qwen2ForCausalLM", "Qwen2Config", GROUPED),
    "mistral": ("MistralForCausalLM", "MistralConfig", GROUPED | {"sliding_window": None}),
}
FAMILIES = ENCODERS | DECODERS


def build(family: str, seed: int = 0, **changes: Any) -> PreTrainedModel:
    """A model in evaluation mode; the same one for the same seed."""
    model, config, options = FAMILIES[family]
    return make(model, config, seed=seed, **{**options, **changes})


def make(model: str, config: str, seed: int = 0, **options: Any) -> PreTrainedModel:
    torch.manual_seed(seed)
    made: PreTrainedModel = getattr(transformers, model)(getattr(transformers, config)(**options))
    if made.can_generate():
        made.generation_config.eos_token_id = None  # every generation has the length that was asked for
    return made.eval()


def trained(family: str = "bert", attention: str = "flexformer-n", **options: Any) -> PreTrainedModel:
    """A converted model whose kernels are no longer where they started."""
    model = flexformer.convert(build(family), attention, **options)
    with torch.no_grad():
        for _, kernel in flexformer.convert.kernels(model):
            for parameter in kernel.parameters():
                parameter.add_(0.1 * torch.randn_like(parameter))
    return model


def inputs(family: str, batch: int = 2, length: int = 20, padded: bool = True) -> dict[str, torch.Tensor]:
    """Inputs with padding, on the left for models that generate."""
    generator = torch.Generator().manual_seed(1)
    if family == "vit":
        return {"pixel_values": torch.randn(batch, 3, 24, 24, generator=generator)}
    ids = torch.randint(3, 61, (batch, length), generator=generator)
    mask = torch.ones_like(ids)
    if padded:
        hidden = slice(0, 6) if family in DECODERS else slice(length - 6, length)
        mask[-1, hidden] = 0
    return {"input_ids": ids, "attention_mask": mask}


def output(model: PreTrainedModel, **arguments: Any) -> torch.Tensor:
    """(B, ...) the first output of a model, with padded positions zero: what they hold means nothing."""
    with torch.no_grad():
        out = model(**arguments)[0]
    mask = arguments.get("attention_mask")
    if mask is not None and out.dim() == 3:
        out = out * mask[..., None]
    return out
