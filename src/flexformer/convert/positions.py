"""More positions for models that look them up in a table, as BERT, RoBERTa and GPT-2 do."""

from __future__ import annotations

import inspect
import operator
from collections.abc import Callable, Iterable, Iterator, Mapping
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn
from torch.overrides import TorchFunctionMode
from transformers import PreTrainedModel
from transformers.configuration_utils import PreTrainedConfig

from .discovery import evaluation, own_configs
from .manifest import MOST_POSITIONS
from .swap import base_of

CONFIG_KEY = "flexformer_positions"
"""What a config calls the tokens that a model was extended to, so that adapters can tell."""
TOKENS = 4


class Tables:
    """The learned positions of a model: one table, or several that are alike.

    Args:
        base: A transformers model.

    Raises:
        ValueError: It has no positions that could be extended.
    """

    def __init__(self, base: PreTrainedModel) -> None:
        self.base, self.name = base, type(base).__name__
        if base.main_input_name != "input_ids":
            raise ValueError(f"{self.name} takes {base.main_input_name!r}; only positions of tokens can be extended")
        self.weights, firsts = _looked_up(base)
        if not self.weights:
            if is_rotary(base.config):
                raise ValueError(f"{self.name} has rotary positions, which have no end: there is nothing to extend")
            raise ValueError(f"{self.name} has no learned table of positions, so there is nothing to extend")
        shapes = {(first, len(weight)) for first, weight in zip(firsts, self.weights, strict=True)}
        if len(shapes) > 1 or not hasattr(base.config.get_text_config(), "max_position_embeddings"):
            raise ValueError(
                f"{self.name} has tables of positions that are not alike, or that its config does not describe by "
                "max_position_embeddings; they cannot be extended"
            )
        self.first, self.rows = shapes.pop()
        """The row of a sequence's first token; RoBERTa keeps those before it for padding."""

    @property
    def length(self) -> int:
        """Tokens that there are positions for."""
        return self.rows - self.first

    def extend(self, length: int) -> None:
        """Repeat the rows until there are positions for `length` tokens; nothing is changed if that is not enough."""
        if not self.length < length <= MOST_POSITIONS:
            raise ValueError(
                f"length {length} is not above the {self.length} tokens that {self.name} has positions for, or is more "
                f"than {MOST_POSITIONS}"
            )
        added = length - self.length
        counters = [
            (module, name, _longer(buffer, added))
            for module in self._around()
            for name, buffer in module.named_buffers(recurse=False)
            if not buffer.is_floating_point() and buffer.dtype != torch.bool and buffer.shape[-1:] == (self.rows,)
        ]
        tables = [
            (module, name, nn.Parameter(self._repeated(weight, length), weight.requires_grad))
            for module, name, weight in self._places()
        ]
        if not hasattr(self.base, "_flexformer_conversion"):  # which gave the model configs of its own
            own_configs(self.base)
        text: Any = self.base.config.get_text_config()
        before = [(module, name, getattr(module, name)) for module, name, _ in (*counters, *tables)]
        self._set([*counters, *tables])
        text.max_position_embeddings += added
        try:
            _read(self.base, self.length + 1)
        except Exception as error:
            self._set(before)
            text.max_position_embeddings -= added
            raise ValueError(
                f"{self.name} does not read more than {self.length} tokens with a longer table either: something else "
                f"in it has a fixed length ({type(error).__name__}: {error})"
            ) from error
        setattr(self.base.config, CONFIG_KEY, length)

    def _set(self, values: Iterable[tuple[nn.Module, str, Tensor]]) -> None:
        for module, name, value in values:
            setattr(module, name, value)
            if isinstance(module, nn.Embedding):
                module.num_embeddings = len(module.weight)

    def _repeated(self, weight: Tensor, length: int) -> Tensor:
        again = torch.arange(length, device=weight.device) % self.length
        return torch.cat((weight.detach()[: self.first], weight.detach()[self.first :][again]))

    def _places(self) -> Iterator[tuple[nn.Module, str, Tensor]]:
        for module in self.base.modules():
            for name, parameter in module.named_parameters(recurse=False):
                if any(parameter is weight for weight in self.weights):
                    yield module, name, parameter

    def _around(self) -> list[nn.Module]:
        """Modules that hold a table and those they are in, which may count positions in buffers as well."""
        holders = [module for module, _, _ in self._places()]
        return [
            module
            for module in self.base.modules()
            if any(each is holder for holder in holders for each in (module, *module.children()))
        ]


def extend(model: nn.Module, length: int) -> None:
    """See `flexformer.extend_positions`."""
    if isinstance(length, bool) or not hasattr(length, "__index__"):
        raise TypeError(f"length is {length!r}; use a number of tokens")
    Tables(base_of(model)).extend(operator.index(length))


def extend_to(base: PreTrainedModel, length: int) -> None:
    """Extend a model unless it has as many positions already."""
    tables = Tables(base)
    if tables.length < length:
        tables.extend(length)


def is_rotary(config: PreTrainedConfig) -> bool:
    """Whether positions are rotations, which go on for ever."""
    text = config.get_text_config()
    is_said = getattr(text, "position_embedding_type", None) == "rotary"  # by ESM's
    return is_said or any(getattr(text, name, None) is not None for name in ("rope_theta", "rope_parameters"))


class _Lookups(TorchFunctionMode):
    """Notes tables whose rows are looked up one after the other, and at which they begin."""

    def __init__(self) -> None:
        super().__init__()
        self.firsts: dict[Tensor, int] = {}

    def __torch_function__(
        self, function: Callable[..., Any], types: Any, args: Any = (), kwargs: Mapping[str, Any] | None = None
    ) -> Any:
        if function is F.embedding:
            rows, weight = args[:2]
            rows = rows.flatten().tolist()
            if rows == list(range(rows[0], rows[0] + TOKENS)):
                self.firsts[weight] = rows[0]
        return function(*args, **(kwargs or {}))


def _looked_up(base: PreTrainedModel) -> tuple[list[Tensor], list[int]]:
    """Tables of positions with their first rows, found by letting the model read."""
    with _Lookups() as found:
        _read(base, TOKENS)
    return list(found.firsts), list(found.firsts.values())


def _read(base: PreTrainedModel, tokens: int) -> None:
    """Let the model read one token several times."""
    padding = getattr(base.config.get_text_config(), "pad_token_id", None)
    token = int(padding == 0)  # any but padding, which some models leave out when they count
    ids = torch.full((1, tokens), token, device=base.device)
    inputs = {"input_ids": ids, "attention_mask": torch.ones_like(ids)}
    taken = inspect.signature(base.forward).parameters
    with torch.no_grad(), evaluation(base):
        base(**{name: value for name, value in inputs.items() if name in taken})


def _longer(buffer: Tensor, added: int) -> Tensor:
    """A buffer that counts positions, or is the same at all of them, with more of the same."""
    last = buffer[..., -1:]
    step = last - buffer[..., -2:-1]
    more = last + step * torch.arange(1, added + 1, device=buffer.device)
    return torch.cat((buffer, more), dim=-1)
