"""Finding a model's attention modules by letting it run once."""

from __future__ import annotations

import inspect
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from contextvars import ContextVar
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, nn
from transformers import PreTrainedModel
from transformers.configuration_utils import PreTrainedConfig
from transformers.masking_utils import AttentionMaskInterface
from transformers.modeling_utils import AttentionInterface

from .interface import visible_keys
from .refusals import unsupported_softmax, unsupported_terms, unsupported_visibility

NAME = "flexformer-discovery"
TOKENS = 3


@dataclass(frozen=True)
class Site:
    """An attention module and how the model uses it."""

    name: str
    """Where it is in the model, such as `encoder.layer.0.attention.self`."""
    module: nn.Module
    num_heads: int
    num_kv_heads: int
    head_dim: int
    scaling: float
    is_causal: bool
    device: torch.device
    dtype: torch.dtype
    kernel_refusal: str | None
    """Why it cannot have a kernel."""
    softmax_refusal: str | None
    """Why it cannot even stay as it is beside modules that have one."""

    @property
    def geometry(self) -> dict[str, int | float | bool]:
        """What must agree for a kernel trained here to fit elsewhere."""
        return {
            "num_heads": self.num_heads,
            "num_kv_heads": self.num_kv_heads,
            "head_dim": self.head_dim,
            "scaling": self.scaling,
            "is_causal": self.is_causal,
        }


_found: ContextVar[dict[nn.Module, Site] | None] = ContextVar("flexformer_found", default=None)


def discover(model: PreTrainedModel, example_inputs: Mapping[str, Any] | None = None) -> list[Site]:
    """All attention modules that go through transformers' attention interface, in the order they run.

    The model runs once on a few tokens or one empty image, without gradients and in evaluation mode. It is left
    as it was.

    Args:
        model: a transformers model.
        example_inputs: keyword arguments to run it with instead.
    """
    inputs = _example(model) if example_inputs is None else dict(example_inputs)
    found: dict[nn.Module, Site] = {}
    token = _found.set(found)
    try:
        with torch.no_grad(), _evaluation(model):
            _run(model, inputs, made_up=example_inputs is None)
    finally:
        _found.reset(token)
    if not found:
        raise ValueError(
            f"{type(model).__name__} computes attention by itself instead of through transformers' attention interface "
            "(ALL_ATTENTION_FUNCTIONS), so it cannot be converted"
        )
    names = {module: name for name, module in model.named_modules()}
    return [Site(**{**vars(site), "name": names[module]}) for module, site in found.items()]


def _run(model: PreTrainedModel, inputs: dict[str, Any], made_up: bool) -> None:
    """Run the model with `_record` as its attention."""
    try:
        with implementation(model, NAME):
            model(**inputs)
    except Exception as error:
        try:
            model(**inputs)
        except Exception:
            if not made_up:
                raise
            raise ValueError(
                f"{type(model).__name__} does not run on {', '.join(inputs)} alone ({type(error).__name__}: {error}); "
                "pass example_inputs, a dict of arguments to run the model with once"
            ) from error
        # It runs with its own attention, so it relies on more than the attention interface gives.
        raise ValueError(
            f"{type(model).__name__} does not leave attention to transformers' attention interface "
            f"(ALL_ATTENTION_FUNCTIONS), so it cannot be converted ({type(error).__name__}: {error})"
        ) from error


def _record(
    module: nn.Module,
    query: Tensor,
    key: Tensor,
    value: Tensor,
    attention_mask: Tensor | None,
    scaling: float | None = None,
    dropout: float = 0.0,
    is_causal: bool | None = None,
    **kwargs: Any,
) -> tuple[Tensor, None]:
    """The attention function of the trial run: note who calls, and return zeros."""
    found = _found.get()
    if found is not None and module not in found:
        refusal = unsupported_terms(kwargs) or unsupported_visibility(attention_mask, kwargs)
        if query.shape[2] != key.shape[2]:
            refusal = refusal or "attends to another sequence (cross attention), which is not converted"
        found[module] = Site(
            name="",
            module=module,
            num_heads=query.shape[1],
            num_kv_heads=key.shape[1],
            head_dim=query.shape[3],
            scaling=float(query.shape[3] ** -0.5 if scaling is None else scaling),
            is_causal=bool(getattr(module, "is_causal", True) if is_causal is None else is_causal),
            device=query.device,
            dtype=query.dtype,
            kernel_refusal=refusal,
            softmax_refusal=unsupported_softmax(kwargs),
        )
    return value.new_zeros(query.shape[0], query.shape[2], query.shape[1], value.shape[3]), None


def _example(model: PreTrainedModel) -> dict[str, Any]:
    config, name = model.config, model.main_input_name
    taken = inspect.signature(model.forward).parameters
    if name == "input_ids":
        text: Any = config.get_text_config()
        ids = torch.arange(TOKENS, device=model.device)[None] % int(getattr(text, "vocab_size", TOKENS))
        inputs: dict[str, Any] = {"input_ids": ids}
        if "attention_mask" in taken:
            inputs["attention_mask"] = torch.ones_like(ids)
    elif name == "pixel_values" and hasattr(config, "image_size"):
        size = config.image_size
        height, width = (size, size) if isinstance(size, int) else tuple(size)
        shape = (1, getattr(config, "num_channels", 3), height, width)
        inputs = {"pixel_values": torch.zeros(shape, device=model.device, dtype=model.dtype)}
    else:
        raise ValueError(
            f"{type(model).__name__} takes {name!r}, which cannot be made up; pass example_inputs, a dict of arguments "
            "to run the model with once"
        )
    if "use_cache" in taken or "past_key_values" in taken:
        inputs["use_cache"] = False
    return inputs


@contextmanager
def _evaluation(model: nn.Module) -> Iterator[None]:
    """Evaluation mode inside, each module's own mode after."""
    modes = {module: module.training for module in model.modules()}
    model.eval()
    try:
        yield
    finally:
        for module, training in modes.items():
            module.training = training


def configs(model: nn.Module) -> list[PreTrainedConfig]:
    """Every config that a module of the model reads, outermost first."""
    found: list[PreTrainedConfig] = []

    def add(config: Any) -> None:
        if isinstance(config, PreTrainedConfig) and not any(config is known for known in found):
            found.append(config)
            for name in config.sub_configs:
                add(getattr(config, name, None))

    for module in model.modules():
        add(getattr(module, "config", None))
    return found


@contextmanager
def implementation(model: nn.Module, name: str) -> Iterator[None]:
    """The model with the attention implementation `name` inside, with its own after."""
    before = [(config, config._attn_implementation) for config in configs(model)]
    try:
        for config, _ in before:
            config._attn_implementation = name
        yield
    finally:
        set_implementations(before)


def set_implementations(chosen: list[tuple[PreTrainedConfig, str]]) -> None:
    """Set each config's attention implementation; outermost first, as setting one sets those inside it too."""
    for config, name in chosen:
        config._attn_implementation = name


AttentionInterface.register(NAME, _record)
AttentionMaskInterface.register(NAME, visible_keys)
