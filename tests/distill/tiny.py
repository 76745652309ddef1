"""Tiny pretrained-like models with a tokenizer, a corpus and a GLUE folder, all made on the spot."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import torch
import transformers
from tokenizers import Tokenizer, models, pre_tokenizers, processors
from transformers import PreTrainedModel, PreTrainedTokenizerFast

WORDS = [f"w{i}" for i in range(40)] + ["good", "bad", ".", "yes", "no"]
SPECIAL = ["[PAD]", "[CLS]", "[SEP]", "[UNK]"]
SIZES: dict[str, Any] = {
    "vocab_size": len(SPECIAL) + len(WORDS),
    "hidden_size": 32,
    "num_hidden_layers": 2,
    "num_attention_heads": 4,
    "intermediate_size": 48,
    "max_position_embeddings": 64,
    # Queries and keys of unit size, so that attention is far from uniform.
    "initializer_range": 0.2,
    "pad_token_id": 0,
    "bos_token_id": 1,
    "eos_token_id": 2,
}
NO_DROPOUT = {"hidden_dropout_prob": 0.0, "attention_probs_dropout_prob": 0.0}
KINDS = {
    "bert": ("BertModel", "BertConfig", {}),
    "llama": ("LlamaForCausalLM", "LlamaConfig", {"num_key_value_heads": 2}),
}


def tokenizer(kind: str) -> PreTrainedTokenizerFast:
    made = Tokenizer(models.WordLevel({word: i for i, word in enumerate(SPECIAL + WORDS)}, unk_token="[UNK]"))
    made.pre_tokenizer = pre_tokenizers.WhitespaceSplit()
    if kind == "bert":
        made.post_processor = processors.TemplateProcessing(
            single="[CLS] $A [SEP]",
            pair="[CLS] $A [SEP] $B:1 [SEP]:1",
            special_tokens=[("[CLS]", 1), ("[SEP]", 2)],
        )
        fields = ["input_ids", "token_type_ids", "attention_mask"]
        return PreTrainedTokenizerFast(
            tokenizer_object=made, pad_token="[PAD]", model_max_length=64, model_input_names=fields
        )
    return PreTrainedTokenizerFast(tokenizer_object=made, bos_token="[CLS]", eos_token="[SEP]", model_max_length=64)


def model(kind: str = "bert", **changes: Any) -> PreTrainedModel:
    torch.manual_seed(0)
    name, config, options = KINDS[kind]
    return getattr(transformers, name)(getattr(transformers, config)(**{**SIZES, **options, **changes})).eval()


def save(folder: Path, kind: str = "bert", **changes: Any) -> str:
    """A folder as `from_pretrained` takes it."""
    model(kind, **changes).save_pretrained(folder)
    tokenizer(kind).save_pretrained(folder)
    return str(folder)


def sentence(rng: np.random.Generator, length: int = 10) -> str:
    return " ".join(rng.choice(WORDS[:40], length))


def corpus(path: Path, paragraphs: int = 60) -> str:
    rng = np.random.default_rng(0)
    path.write_text("\n\n".join(sentence(rng, int(rng.integers(6, 40))) for _ in range(paragraphs)))
    return str(path)


def glue(root: Path, examples: int = 80) -> str:
    """CoLA, STS-B and RTE whose labels depend on a word."""
    rng = np.random.default_rng(0)
    for task in ("CoLA", "STS-B", "RTE"):
        folder = root / "glue" / task
        folder.mkdir(parents=True)
        for split in ("train", "dev"):
            rows = [_row(task, i, rng) for i in range(examples)]
            header = {
                "CoLA": [],
                "STS-B": ["index\tsentence1\tsentence2\tscore"],
                "RTE": ["index\tsentence1\tsentence2\tlabel"],
            }
            (folder / f"{split}.tsv").write_text("\n".join([*header[task], *rows]) + "\n")
    return str(root)


def _row(task: str, index: int, rng: np.random.Generator) -> str:
    label = int(rng.integers(2))
    first = f"{sentence(rng, 4)} {'good' if label else 'bad'} {sentence(rng, 3)}"
    if task == "CoLA":
        return f"x\t{label}\t\t{first}"
    if task == "RTE":
        return f"{index}\t{first}\t{sentence(rng, 5)} .\t{'entailment' if label else 'not_entailment'}"
    same = f"{first if label else sentence(rng, 8)}"
    return f"{index}\t{first}\t{same}\t{4.5 if label else 0.5 + rng.random():.3f}"
