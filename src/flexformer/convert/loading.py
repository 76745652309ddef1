"""A model and its adapter in one call."""

from __future__ import annotations

from collections.abc import Mapping
from os import PathLike
from pathlib import Path
from typing import Any

import torch
import transformers
from safetensors import SafetensorError, safe_open
from torch import Tensor
from transformers import AutoConfig, AutoModel, PreTrainedModel
from transformers.configuration_utils import PreTrainedConfig
from transformers.core_model_loading import revert_weight_conversion

from . import manifest
from .adapter import check_shapes, load
from .swap import CONFIG_KEY, convert_model, kernels_of


def load_model(
    base: str | PathLike[str],
    adapter: str | PathLike[str] | None,
    check_weights: bool,
    example_inputs: Mapping[str, Any] | None,
    options: dict[str, Any],
) -> PreTrainedModel:
    """See `flexformer.load`."""
    if "trust_remote_code" in options:
        raise TypeError("trust_remote_code is not taken here; load the model yourself and call flexformer.load_adapter")
    if options.get("output_loading_info"):
        raise TypeError("output_loading_info is not taken here; what does not fit is an error in any case")
    by_adapter = adapter is None and (Path(base) / manifest.FILE).is_file()
    if by_adapter:
        base, adapter, options = _base_of_adapter(Path(base), options)
    name = str(base)
    if adapter is not None:
        manifest.read(Path(adapter))  # a damaged adapter should not cost a download first
    shared = ("revision", "cache_dir", "token", "local_files_only", "subfolder", "force_download")
    try:
        given = {key: options[key] for key in shared if key in options}
        config = AutoConfig.from_pretrained(name, trust_remote_code=False, **given)
    except OSError as error:
        if not by_adapter:
            raise
        raise ValueError(
            f"{adapter} was made for {name}, which is not found from here; say where it is, with "
            "flexformer.load(base, adapter) or the option base of commands"
        ) from error
    summary = getattr(config, CONFIG_KEY, None)
    if adapter is None and summary is None:
        raise ValueError(
            f"{name} is a model that was not converted, or of which only a part was; name an adapter, or convert the "
            "whole with flexformer.convert"
        )
    model = _load_quietly(model_class(config), name, options, has_kernels=summary is not None)
    if adapter is not None:
        load(model, adapter, check_weights, example_inputs)
    else:
        _convert_as_saved(model, Path(name), summary, example_inputs)
    return model.eval()


def model_class(config: PreTrainedConfig) -> Any:
    """The class that a config names in `architectures`, if transformers has it; `AutoModel` otherwise."""
    for name in config.architectures or ():
        known = getattr(transformers, name, None)
        if isinstance(known, type) and issubclass(known, PreTrainedModel):
            return known
    return AutoModel


def _base_of_adapter(folder: Path, options: dict[str, Any]) -> tuple[str, Path, dict[str, Any]]:
    found = manifest.read(folder)
    if not found.base.name:
        raise ValueError(f"{folder} does not say what its base model is called; use flexformer.load(base, adapter)")
    revision = {"revision": found.base.revision} if found.base.revision else {}
    return found.base.name, folder, revision | options


def _load_quietly(loader: Any, name: str, options: dict[str, Any], has_kernels: bool) -> PreTrainedModel:
    """`from_pretrained`, without its report of unexpected weights where those are kernels, which are loaded next."""
    verbosity = transformers.logging.get_verbosity()
    if has_kernels:
        transformers.logging.set_verbosity_error()
    try:
        model: PreTrainedModel = loader.from_pretrained(name, use_safetensors=True, trust_remote_code=False, **options)
    finally:
        transformers.logging.set_verbosity(verbosity)
    return model


def _convert_as_saved(
    model: PreTrainedModel, folder: Path, summary: Any, example_inputs: Mapping[str, Any] | None
) -> None:
    """Convert a model as its config says, with kernels from the weights it was saved with."""
    if not isinstance(summary, dict) or set(summary) != {"attention", "options", "layers"}:
        raise ValueError(f"{folder / 'config.json'} has an entry {CONFIG_KEY!r} that flexformer did not write")
    if not folder.is_dir():
        raise ValueError(f"{folder} is not a folder; models converted and saved whole are loaded from folders")
    delattr(model.config, CONFIG_KEY)
    with torch.random.fork_rng(devices=[]):
        convert_model(model, summary["attention"], summary["layers"], example_inputs, dict(summary["options"]))
    names = {id(module): name for name, module in model.named_modules()}
    wanted = {
        f"{names[id(kernel)]}.{key}": tensor
        for _, kernel in kernels_of(model)
        for key, tensor in kernel.state_dict().items()
    }
    # Some models save weights under other names than they have in memory; kernels inside them are renamed too.
    saved_as = {key: next(iter(revert_weight_conversion(model, {key: tensor}))) for key, tensor in wanted.items()}
    found = _tensors(folder, set(saved_as.values()))
    check_shapes(
        folder,
        {key: tuple(tensor.shape) for key, tensor in found.items()},
        {saved_as[key]: tuple(tensor.shape) for key, tensor in wanted.items()},
    )
    with torch.no_grad():
        for key, tensor in wanted.items():
            tensor.copy_(found[saved_as[key]])


def _tensors(folder: Path, names: set[str]) -> Mapping[str, Tensor]:
    """Those of `names` that a safetensors file of the folder holds."""
    found: dict[str, Tensor] = {}
    for path in sorted(folder.glob("*.safetensors")):
        try:
            with safe_open(path, framework="pt") as file:
                found |= {name: file.get_tensor(name) for name in names.intersection(file.keys())}
        except SafetensorError as error:
            raise ValueError(f"{path} is damaged: {error}") from None
    return found
