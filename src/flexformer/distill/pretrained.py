"""Loading what is to be converted: models and tokenizers, from folders or the hub."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import Any, TypeVar

import torch
from transformers import AutoConfig, AutoTokenizer, PreTrainedModel, PreTrainedTokenizerBase
from transformers.configuration_utils import PreTrainedConfig

from ..convert import extend_positions
from ..convert.loading import model_class
from ..convert.positions import is_rotary
from ..convert.swap import CONFIG_KEY
from ..tasks import MissingDataError
from .sequences import SequenceDataset

Found = TypeVar("Found")
UNBOUNDED = 2**31
# As RoBERTa does: rows of the table up to that of padding are of no token.
COUNT_FROM_PADDING = (
    "camembert",
    "data2vec-text",
    "esm",
    "ibert",
    "layoutlmv3",
    "lilt",
    "longformer",
    "luke",
    "markuplm",
    "mpnet",
    "xmod",
)


def load_config(base: str) -> PreTrainedConfig:
    """The config of a model that was not converted yet."""
    config: PreTrainedConfig = _having(base, lambda: AutoConfig.from_pretrained(base, trust_remote_code=False))
    if hasattr(config, CONFIG_KEY):
        raise ValueError(
            f"base {base} is converted already; name the model it came from, and its kernels as an adapter"
        )
    return config


def load_model(base: str, loader: Any = None, *, positions: int | None = None, **options: Any) -> PreTrainedModel:
    """A pretrained model in float32.

    Args:
        base: Folder or hub name.
        loader: A model class; default the one that the config names.
        positions: Tokens that its positions are extended to; default leaves them.
        **options: For `from_pretrained`.
    """
    chosen = model_class(load_config(base)) if loader is None else loader
    safely = {"use_safetensors": True, "trust_remote_code": False}
    model: PreTrainedModel = _having(
        base, lambda: chosen.from_pretrained(base, dtype=torch.float32, **safely, **options)
    )
    if positions is None:
        return model
    try:
        return extend_positions(model, positions)
    except ValueError as error:
        raise ValueError(f"positions {positions} cannot be given to {base}: {error}") from error


def load_tokenizer(base: str) -> PreTrainedTokenizerBase:
    """The model's tokenizer."""
    found: PreTrainedTokenizerBase = _having(base, lambda: AutoTokenizer.from_pretrained(base, trust_remote_code=False))
    return found


def positions(config: PreTrainedConfig) -> int:
    """Tokens that a model has positions for, or was made for where positions have no end."""
    config = config.get_text_config()
    most = int(getattr(config, "max_position_embeddings", UNBOUNDED))
    counts_from_padding = "roberta" in config.model_type or config.model_type in COUNT_FROM_PADDING
    return most - config.pad_token_id - 1 if counts_from_padding else most


def longest_input(config: PreTrainedConfig) -> int | None:
    """Tokens that a model can read at most; None where positions go on, as rotary ones do."""
    return None if is_rotary(config) else positions(config)


def check_lengths(data: Iterable[SequenceDataset], most: int | None, base: str) -> None:
    """Raise if a sequence has more tokens than a model can read."""
    longest = max(len(row["input_ids"]) for dataset in data for row in dataset.rows)
    if most is not None and longest > most:
        raise ValueError(f"a sequence has {longest} tokens, {base} positions for {most}; use data.max_length {most}")


def start_token(config: PreTrainedConfig, tokenizer: PreTrainedTokenizerBase) -> int | None:
    """What sequences of a language model begin with; None for models that read both ways."""
    writes = any("CausalLM" in name or "LMHead" in name for name in config.architectures or ())
    found = tokenizer.bos_token_id if writes else None
    return found if isinstance(found, int) else None


def with_start(ids: list[int], config: PreTrainedConfig, tokenizer: PreTrainedTokenizerBase) -> list[int]:
    """Tokens of a text as distillation and fine-tuning read it: after the start token, whoever puts it there."""
    start = start_token(config, tokenizer)
    return ids if start is None or ids[:1] == [start] else [start, *ids]


def _having(base: str, load: Callable[[], Found]) -> Found:
    try:
        return load()
    except OSError as error:
        reason = str(error).splitlines()[0] if str(error) else type(error).__name__
        raise MissingDataError(f"base {base} cannot be loaded: {reason}") from error
