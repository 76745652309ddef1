"""The kernels of a run, a model or an adapter, and how they started."""

from __future__ import annotations

import json
from dataclasses import dataclass, field
from functools import cached_property
from pathlib import Path
from typing import Any

import torch
from torch import nn
from transformers import AutoConfig, PreTrainedModel
from transformers.configuration_utils import PreTrainedConfig

from .. import kernels, models
from ..attention.kernel import KernelAttention
from ..convert import load as load_converted
from ..convert import manifest
from ..convert.adapter import read_tensors
from ..convert.manifest import Manifest
from ..convert.swap import CONFIG_KEY, kernels_of
from ..kernels import Kernel
from ..training.record import ADAPTER
from ..training.run import quiet_libraries
from .weights import NoWeightsError, weights_of

MODEL = "model"


class CheckpointError(ValueError):
    """There are no kernels to look at."""


@dataclass
class Checkpoint:
    """Kernels by layer, in the order they run.

    The model itself is loaded when it is first asked for: an adapter's kernels can be looked at without its base.
    """

    path: Path
    """as it was given"""
    weights: Path
    """the folder of the weights"""
    attention: str
    kernels: dict[int, Kernel]
    starts: dict[int, Kernel] | None
    start_note: str
    """how the start is known, or why it is not"""
    is_adapter: bool
    scaling: dict[int, float] = field(default_factory=dict)
    """of the softmax that each layer is compared with"""
    base: str | None = None
    """of an adapter, where it does not have the name it had"""
    loaded: PreTrainedModel | None = None

    @cached_property
    def model(self) -> PreTrainedModel:
        """The whole model, in evaluation mode."""
        if self.loaded is None:
            with quiet_libraries():
                weights, base = self.weights, self.base
                self.loaded = load_converted(weights) if base is None else load_converted(base, weights)
        return self.loaded.eval()

    @property
    def is_converted(self) -> bool:
        """Kernels were put into a pretrained model, whose own softmax they can be compared with."""
        return self.is_adapter or hasattr(self.model.config, CONFIG_KEY)


def load(path: Path, base: str | None = None) -> Checkpoint:
    """Find the kernels that a path means.

    Args:
        path: The folder of a run, of an adapter, or of a model with kernels.
        base: The model that an adapter was made for, where it does not have the name it had.

    Raises:
        CheckpointError: There are none.
    """
    try:
        weights = weights_of(path)
    except NoWeightsError as error:
        raise CheckpointError(str(error)) from None
    record = _record_of(path, weights)
    if (weights / manifest.FILE).is_file():
        return _adapter(path, weights, None, base, record)
    if base is not None:
        raise CheckpointError(f"base {base} is for adapters; {weights} holds a whole model")
    beside = weights.parent / ADAPTER
    if weights.name == MODEL and (beside / manifest.FILE).is_file():  # a fine-tuning; its adapter says how it started
        return _adapter(path, beside, weights, None, record)
    with quiet_libraries():
        config = AutoConfig.from_pretrained(weights, trust_remote_code=False)
        if hasattr(config, CONFIG_KEY):
            return _converted(path, weights, load_converted(weights))
        return _own(path, weights, config, record)


def _record_of(path: Path, weights: Path) -> dict[str, Any] | None:
    """The record of the run that made the weights, if it lies where a run puts it."""
    for folder in (path, weights.parent, weights.parent.parent):
        file = folder / "run.json"
        if file.is_file():
            try:
                content = json.loads(file.read_text(encoding="utf-8"))
            except ValueError as error:
                raise CheckpointError(f"{file} is damaged: it is not JSON ({error})") from None
            return content if isinstance(content, dict) else None
    return None


def _own(path: Path, weights: Path, config: PreTrainedConfig, record: dict[str, Any] | None) -> Checkpoint:
    """A model of this package. Its start is drawn again: the seed, then the model, as the run itself did."""
    names = config.architectures or [""]
    kind = getattr(models, names[0], None)
    if kind is None or not str(config.model_type).startswith("flexformer"):
        raise CheckpointError(
            f"{path} holds a {names[0] or config.model_type} that was not converted: it has no kernels"
        )
    model = kind.from_pretrained(weights, use_safetensors=True)
    found = kernel_modules(model)
    attention = str(config.attention)
    if not found:
        raise CheckpointError(f"{path} attends with {attention}, which has no kernel to look at")
    starts, note = None, "the start is not known: no run.json says which seed it was drawn with"
    if record is not None and isinstance(record.get("seed"), int):
        with torch.random.fork_rng(devices=[]):
            torch.manual_seed(record["seed"])
            starts = kernel_modules(kind(config))
        note = f"the start was drawn again from the run's seed, {record['seed']}"
    scaling = {layer: kernel.head_dim**-0.5 for layer, kernel in found.items()}
    return Checkpoint(path, weights, attention, found, starts, note, False, scaling, None, model)


def kernel_modules(model: nn.Module) -> dict[int, Kernel]:
    """The kernels of a model of this package, by layer."""
    found = [module.kernel for module in model.modules() if isinstance(module, KernelAttention)]
    return dict(enumerate(found))


def _adapter(
    path: Path, weights: Path, whole: Path | None, base: str | None, record: dict[str, Any] | None
) -> Checkpoint:
    """An adapter, read without its base model; or with `whole`, the model that learned together with its kernels."""
    made = manifest.read(weights)
    if made.attention == "softmax":
        raise CheckpointError(f"{path} attends with softmax, which has no kernel to look at")
    found = _build(made, seed=0)
    expected = {
        f"layers.{i}.{name}": tuple(value.shape) for i, k in found.items() for name, value in k.state_dict().items()
    }
    tensors = read_tensors(weights / made.tensor_file, made, expected)
    for layer, kernel in found.items():
        prefix = f"layers.{layer}."
        kernel.load_state_dict({n.removeprefix(prefix): t for n, t in tensors.items() if n.startswith(prefix)})
        kernel.eval()
    starts, note = _adapter_start(made, record)
    scaling = {layer: float(made.base.geometry[layer]["scaling"]) for layer in found}
    return Checkpoint(path, whole or weights, made.attention, found, starts, note, whole is None, scaling, base)


def _adapter_start(made: Manifest, record: dict[str, Any] | None) -> tuple[dict[int, Kernel] | None, str]:
    options = (record or {}).get("options") or {}
    if record is None or not isinstance(record.get("seed"), int):
        return None, "the start is not known: no run.json says which seed it was drawn with"
    if made.options.get("data_start"):
        return None, "the start is not known: it took its shape from data"
    if record.get("task") == "distill":
        note = f"the start was drawn again from the run's seed, {record['seed']}; centres, which start from data, apart"
        return _build(made, record["seed"]), note
    earlier = options.get("adapter")
    if earlier and (Path(earlier) / manifest.FILE).is_file():
        return load(Path(earlier)).kernels, f"the start is the adapter {earlier}"
    return None, "the start is not known: fine-tuning drew it after its base model, and did not keep it"


def _build(made: Manifest, seed: int) -> dict[int, Kernel]:
    """Kernels as a conversion draws them, layer after layer."""
    found = {}
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(seed)
        for layer in made.layers:
            shape = made.base.geometry[layer]
            options = dict(made.options)
            if "scaling" in kernels.options(made.attention):
                options = {"scaling": float(shape["scaling"])} | options
            found[layer] = kernels.build(made.attention, int(shape["num_kv_heads"]), int(shape["head_dim"]), **options)
    return found


def _converted(path: Path, weights: Path, model: PreTrainedModel) -> Checkpoint:
    """A converted model that was saved whole."""
    found = dict(kernels_of(model))
    if not found:
        raise CheckpointError(f"{path} attends with softmax, which has no kernel to look at")
    summary = getattr(model.config, CONFIG_KEY)
    scaling = {layer: float(getattr(kernel, "scaling", kernel.head_dim**-0.5)) for layer, kernel in found.items()}
    note = "the start is not known: a converted model saved whole does not say how its kernels were drawn"
    return Checkpoint(path, weights, str(summary["attention"]), found, None, note, False, scaling, None, model)
