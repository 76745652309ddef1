"""Finding a model's attention modules by letting it run once."""

from __future__ import annotations

import copy
import inspect
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from contextvars import ContextVar
from dataclasses import dataclass, replace
from typing import Any

import torch
from torch import Tensor, nn
from transformers import PreTrainedModel
from transformers.configuration_utils import PreTrainedConfig
from transformers.masking_utils import AttentionMaskInterface
from transformers.modeling_utils import AttentionInterface
from transformers.utils.generic import ModelOutput

from .interface import looks_back, reads_shared_keys, softmax, visible_keys
from .refusals import unsupported_softmax, unsupported_terms, unsupported_visibility

NAME = "flexformer-discovery"
TOKENS = 8
TOLERANCES = {torch.float32: 1e-4, torch.float64: 1e-4}
"""How much of its size an output may differ by where attention takes another path; a tenth in narrower dtypes."""
_SHARED = "shares keys and values with other layers, which need all of them, while a state keeps sums"


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


_found: ContextVar[dict[nn.Module, list[Site]] | None] = ContextVar("flexformer_found", default=None)


def discover(model: PreTrainedModel, example_inputs: Mapping[str, Any] | None = None) -> list[Site]:
    """All attention modules that go through transformers' attention interface, in the order they run.

    The model runs on a few tokens or one image of noise, without gradients and in evaluation mode: once with the
    softmax attention that converted models have where there is no kernel, and once with its own, which has to give the
    same. It is left as it was.

    Args:
        model: a transformers model.
        example_inputs: keyword arguments to run it with instead.
    """
    if model.device.type == "meta":
        raise ValueError(f"{type(model).__name__} is on the meta device and has no weights to run with; load it first")
    inputs = _example(model) if example_inputs is None else dict(example_inputs)
    found: dict[nn.Module, list[Site]] = {}
    token = _found.set(found)
    try:
        with torch.no_grad(), evaluation(model):
            outputs = _run(model, inputs, made_up=example_inputs is None)
            if not found:
                raise ValueError(
                    f"{type(model).__name__} computes attention by itself instead of through transformers' attention "
                    "interface (ALL_ATTENTION_FUNCTIONS), so it cannot be converted"
                )
            firsts = [calls[0] for calls in found.values()]
            if all(map(_is_comparable, firsts)) and not all(site.kernel_refusal for site in firsts):
                _check_path(model, inputs, outputs)
    finally:
        _found.reset(token)
    names = {module: name for name, module in model.named_modules()}
    has_sharing = any(map(reads_shared_keys, found))
    return [_named(calls, names[module], has_sharing) for module, calls in found.items()]


def _named(calls: list[Site], name: str, has_sharing: bool) -> Site:
    refusal, module = calls[0].kernel_refusal, calls[0].module
    # The layer that others share with is marked also where there are no others.
    if has_sharing and (reads_shared_keys(module) or getattr(module, "store_full_length_kv", False)):
        refusal = refusal or _SHARED
    if len(calls) > 1 and calls[0].is_causal:
        refusal = refusal or "computes attention more than once for each token, while a state serves one"
    return replace(calls[0], name=name, kernel_refusal=refusal)


def _is_comparable(site: Site) -> bool:
    """Whether attention is softmax as yet, computed, and without terms that are refused anyway."""
    return not site.softmax_refusal and site.device.type != "meta" and not hasattr(site.module, "_flexformer")


def _check_path(model: PreTrainedModel, inputs: dict[str, Any], outputs: list[Tensor]) -> None:
    """Raise unless the model's own attention gives these outputs too."""
    for ours, own in zip(outputs, _outputs(model, inputs), strict=False):
        tolerance = TOLERANCES.get(model.dtype, 0.1)
        difference = float((ours - own).norm() / own.norm().clamp_min(1e-30)) if ours.shape == own.shape else 1.0
        if own.isfinite().all() and not difference <= tolerance:
            raise ValueError(
                f"{type(model).__name__} does more in its attention than it tells transformers' attention interface, "
                "such as a pattern of its own: with softmax attention through that interface its outputs differ by "
                f"{difference:.0%} from those that it has, so it cannot be converted"
            )


def _outputs(model: PreTrainedModel, inputs: dict[str, Any]) -> list[Tensor]:
    """All that a model gives for these inputs, in float32 or more."""
    with torch.random.fork_rng(devices=range(torch.cuda.device_count())):
        torch.manual_seed(0)  # some models draw in evaluation mode too
        found = model(**inputs)
    values = found.to_tuple() if isinstance(found, ModelOutput) else found
    tensors = [x for x in values if isinstance(x, Tensor) and x.is_floating_point()]
    return [x.to(torch.promote_types(x.dtype, torch.float32)) for x in tensors]


def _run(model: PreTrainedModel, inputs: dict[str, Any], made_up: bool) -> list[Tensor]:
    """Run the model with `_record` as its attention."""
    try:
        with implementation(model, NAME):
            return _outputs(model, inputs)
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
) -> tuple[Tensor, Tensor | None]:
    """The attention function of the trial run: note who calls, and attend as a converted model without kernels."""
    found = _found.get()
    causal = looks_back(module, is_causal)
    if found is not None:
        refusal = unsupported_terms(kwargs) or unsupported_visibility(attention_mask, kwargs)
        if query.shape[2] != key.shape[2]:
            refusal = refusal or "attends to another sequence (cross attention), which is not converted"
        site = Site(
            name="",
            module=module,
            num_heads=query.shape[1],
            num_kv_heads=key.shape[1],
            head_dim=query.shape[3],
            scaling=float(query.shape[3] ** -0.5 if scaling is None else scaling),
            is_causal=causal,
            device=query.device,
            dtype=query.dtype,
            kernel_refusal=refusal,
            softmax_refusal=unsupported_softmax(kwargs),
        )
        found.setdefault(module, []).append(site)
    if unsupported_softmax(kwargs):
        return value.new_zeros(query.shape[0], query.shape[2], query.shape[1], value.shape[3]), None
    return softmax(module, query, key, value, attention_mask, causal, 0, scaling=scaling, dropout=0.0, **kwargs)


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
        noise = torch.randn(shape, generator=torch.Generator().manual_seed(0))
        inputs = {"pixel_values": noise.to(model.device, model.dtype)}
    else:
        raise ValueError(
            f"{type(model).__name__} takes {name!r}, which cannot be made up; pass example_inputs, a dict of arguments "
            "to run the model with once"
        )
    if "use_cache" in taken or "past_key_values" in taken:
        inputs["use_cache"] = False
    return inputs


@contextmanager
def evaluation(model: nn.Module) -> Iterator[None]:
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


def own_configs(model: nn.Module) -> None:
    """Give the model copies of its configs, since other models may have been made from the same."""
    memo: dict[int, Any] = {}
    for module in model.modules():
        if isinstance(config := vars(module).get("config"), PreTrainedConfig):
            module.config = copy.deepcopy(config, memo)  # type: ignore[assignment]


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
