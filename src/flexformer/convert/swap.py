"""Giving a model's attention modules kernels, and taking them away again."""

from __future__ import annotations

import inspect
import json
import operator
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Any

import torch
from torch import nn
from transformers import PreTrainedModel
from transformers.configuration_utils import PreTrainedConfig

from .. import kernels
from ..attention import options as attention_options
from ..kernels import Kernel
from . import interface
from .discovery import Site, configs, discover, own_configs, set_implementations
from .interface import Seat, active_kernel

CONFIG_KEY = "flexformer"

# Attentions that are no function of queries, keys and values alone, with what they lack here.
_NOT_CONVERTIBLE = {
    "polaformer": "its gate is computed from the layer's input, which attention functions of transformers do not get",
    "reformer": "it shares one projection between queries and keys, which pretrained models do not",
    "longformer": "a pattern of softmax attention, not a kernel",
    "bigbird": "a pattern of softmax attention, not a kernel",
    "skyformer": "it has no causal form and no state",
}


# How configs say that there is cross attention, and what models that have it are called with.
_CROSSING = ("add_cross_attention", "cross_attention_layers")
_ELSEWHERE = {"encoder_hidden_states", "decoder_input_ids", "cross_attention_states"}


@dataclass
class Conversion:
    """What `convert` did to a model, noted on it."""

    attention: str
    options: dict[str, Any]
    """Of the kernels, with the defaults they were built with."""
    layers: tuple[int, ...]
    """The attention modules that have a kernel, counted in the order they run."""
    sites: list[Site]
    """All attention modules."""
    implementations: list[tuple[PreTrainedConfig, str]]
    """Each config's attention implementation before."""

    @property
    def summary(self) -> dict[str, Any]:
        """Goes into the model's config, so that what `save_pretrained` writes tells how the model was converted."""
        return {"attention": self.attention, "options": dict(self.options), "layers": list(self.layers)}


def base_of(model: nn.Module) -> PreTrainedModel:
    """The transformers model itself, also inside a PEFT model."""
    inside: Any = getattr(model, "get_base_model", None)
    if not isinstance(model, PreTrainedModel) and callable(inside):
        model = inside()
    if not isinstance(model, PreTrainedModel):
        raise TypeError(
            f"model is a {type(model).__name__}; pass a transformers PreTrainedModel (of a wrapper, the model inside: "
            "sentence_transformer[0].model, ddp.module)"
        )
    return model


def conversion_of(model: PreTrainedModel) -> Conversion:
    """What was done to the model; an error if nothing was."""
    conversion = getattr(model, "_flexformer_conversion", None)
    if isinstance(conversion, Conversion):
        return conversion
    if any(hasattr(module, "_flexformer") for module in model.modules()):
        raise ValueError(f"{type(model).__name__} is part of the converted model or contains it; pass that one itself")
    raise ValueError(f"{type(model).__name__} is not converted; call flexformer.convert(model) first")


def convert_model(
    model: nn.Module,
    attention: str,
    layers: Iterable[int] | None,
    example_inputs: Mapping[str, Any] | None,
    options: dict[str, Any],
) -> None:
    """See `flexformer.convert`. Nothing is changed before everything is known to work."""
    base = base_of(model)
    require_unconverted(base)
    check_attention(attention)
    sites = find_sites(base, example_inputs)
    chosen = choose(base, sites, layers)
    options = json_options(options)
    if attention == "softmax" and options:
        raise TypeError(f"option {next(iter(options))!r} is unknown to attention 'softmax', which has none")
    made = [build_kernel(attention, sites[i], options) for i in chosen] if attention != "softmax" else []
    attach(base, Conversion(attention, in_effect(attention, options, made), chosen, sites, []), made)


def require_unconverted(base: PreTrainedModel) -> None:
    """Raise if the model, or one that it contains or is part of, is converted."""
    if any(hasattr(module, "_flexformer") for module in base.modules()):
        raise ValueError(
            "model is converted already, or contains one that is; call flexformer.restore on that one first"
        )


def restore_model(model: nn.Module) -> None:
    """See `flexformer.restore`."""
    base = base_of(model)
    conversion = conversion_of(base)
    for site in conversion.sites:
        if site.module._flexformer.has_kernel:  # type: ignore[union-attr]
            del site.module.kernel
        interface.stand_up(site.module)
    set_implementations(conversion.implementations)
    for config, _ in conversion.implementations:
        if hasattr(config, CONFIG_KEY):
            delattr(config, CONFIG_KEY)
    for module in base.modules():
        vars(module).pop("_is_stateful", None)
    del base._flexformer_conversion


def kernels_of(model: nn.Module) -> list[tuple[int, Kernel]]:
    """See `flexformer.convert.kernels`."""
    conversion = conversion_of(base_of(model))
    if conversion.attention == "softmax":
        return []
    return [(i, active_kernel(conversion.sites[i].module)) for i in conversion.layers]


def check_attention(attention: str) -> None:
    """Raise unless `attention` is one that a pretrained model can be converted to."""
    attention_options(attention)  # raises for unknown names, listing the known
    if attention in _NOT_CONVERTIBLE:
        raise ValueError(
            f"attention {attention!r} cannot replace that of a pretrained model: {_NOT_CONVERTIBLE[attention]}"
        )


def find_sites(base: PreTrainedModel, example_inputs: Mapping[str, Any] | None = None) -> list[Site]:
    """The model's attention modules; an error if some cannot run in a converted model at all."""
    config = base.config
    crosses = config.is_encoder_decoder or any(getattr(config, name, False) for name in _CROSSING)
    # An encoder keeps the config of the whole model that it is part of; what it is not given it cannot attend to.
    crosses &= not _ELSEWHERE.isdisjoint(inspect.signature(base.forward).parameters)
    if crosses and getattr(base, "is_decoder", True):  # T5's encoder and decoder are of one class, which knows
        raise ValueError(
            f"{type(base).__name__} has cross attention, which would keep its own cache; convert a model that is an "
            "encoder or a decoder alone, such as model.get_encoder()"
        )
    sites = discover(base, example_inputs)
    for i, site in enumerate(sites):
        if site.softmax_refusal:
            raise ValueError(f"attention layer {i} ({site.name}) {site.softmax_refusal}; the model cannot be converted")
    return sites


def choose(base: PreTrainedModel, sites: list[Site], layers: Iterable[int] | None) -> tuple[int, ...]:
    """The layers to convert, checked; all by default."""
    count = len(sites)
    if layers is None:
        chosen = tuple(range(count))
    else:
        if not isinstance(layers, Iterable):
            raise TypeError(f"layers is {layers!r}; use a list of numbers from 0 to {count - 1}")
        chosen = tuple(_index(layer, count) for layer in layers)
        for layer in chosen:
            if not 0 <= layer < count:
                raise ValueError(
                    f"layers has {layer}; {type(base).__name__} has {count}, so use numbers from 0 to {count - 1}"
                )
        if len(set(chosen)) < len(chosen) or not chosen:
            raise ValueError(f"layers {list(chosen)} is empty or names a layer twice; name each layer to convert once")
        chosen = tuple(sorted(chosen))
    refused = [i for i in chosen if sites[i].kernel_refusal]
    if refused:
        able = [i for i in range(count) if not sites[i].kernel_refusal]
        remedy = f"convert the others with layers={able}" if able else "the model cannot be converted"
        first = sites[refused[0]]
        which = f"layers {refused}, of which {first.name}" if len(refused) > 1 else f"layer {refused[0]}, {first.name},"
        raise ValueError(f"{type(base).__name__}: attention {which} {first.kernel_refusal}; {remedy}")
    return chosen


def _index(layer: Any, count: int) -> int:
    if isinstance(layer, bool) or not hasattr(layer, "__index__"):
        raise TypeError(f"layers has {layer!r}, which is not an index; use numbers from 0 to {count - 1}")
    return operator.index(layer)


def json_options(options: Mapping[str, Any]) -> dict[str, Any]:
    """The kernel options as they come back from JSON; they are saved with adapters."""
    try:
        same = json.loads(json.dumps(dict(options), allow_nan=False))
    except (TypeError, ValueError) as error:
        raise TypeError(
            f"kernel options {dict(options)} cannot be saved as JSON ({error}); use numbers, names and lists"
        ) from None
    return dict(same)


def kernel_options(attention: str, site: Site, options: Mapping[str, Any]) -> dict[str, Any]:
    """The user's options, over what the kernel starts with to approximate softmax at the model's own scaling."""
    start = {"scaling": site.scaling} if "scaling" in kernels.options(attention) else {}
    return start | _starts(attention, options) | dict(options)


def _starts(attention: str, options: Mapping[str, Any]) -> dict[str, Any]:
    """What a kernel starts with to approximate softmax, where the user's options leave room for it."""
    return {
        name: value
        for name, value in kernels.conversion_options(attention).items()
        if not (name == "match_tau" and options.get("tau") is not None)
    }


def in_effect(attention: str, options: Mapping[str, Any], made: list[Kernel]) -> dict[str, Any]:
    """The options that make the same kernels again, also where a later release has other defaults.

    The scaling is left to the model, as it may differ from layer to layer.
    """
    if not made:
        return dict(options)
    known = {name: value for name, value in kernels.options(attention).items() if _is_plain(value)}
    known |= _starts(attention, options)
    if "floor" in known:
        known["floor"] = made[0].floor
    known.pop("scaling", None)
    return known | dict(options)


def _is_plain(value: Any) -> bool:
    return value is None or isinstance(value, bool | int | float | str)


def build_kernel(attention: str, site: Site, options: Mapping[str, Any]) -> Kernel:
    """A kernel for one attention module, on its device, in at least float32."""
    kernel = kernels.build(attention, site.num_kv_heads, site.head_dim, **kernel_options(attention, site, options))
    kernel.train(site.module.training)
    return kernel.to(device=site.device, dtype=torch.promote_types(site.dtype, torch.float32))


def attach(base: PreTrainedModel, conversion: Conversion, made: list[Kernel]) -> None:
    """Put kernels in place and lead the model's attention to them."""
    holders = dict(zip(conversion.layers, made, strict=True)) if made else {}
    for i in holders:
        if hasattr(conversion.sites[i].module, "kernel"):
            name = conversion.sites[i].name
            raise ValueError(
                f"{name} has an attribute 'kernel' of its own, so a kernel cannot be added under that name"
            )
    for i, site in enumerate(conversion.sites):
        if i in holders:
            site.module.kernel = holders[i]
        interface.sit(site.module, Seat(i, has_kernel=i in holders))
    own_configs(base)
    found = configs(base)
    conversion.implementations = [(config, config._attn_implementation) for config in found]
    set_implementations([(config, interface.NAME) for config in found])
    setattr(base.config, CONFIG_KEY, conversion.summary)
    if holders:
        for module in base.modules():
            if isinstance(module, PreTrainedModel):
                module._is_stateful = True  # generate() then refuses to take tokens back, as assisted decoding must
    base._flexformer_conversion = conversion  # type: ignore[assignment]
