"""Pretrained Hugging Face models with linear attention.

    model = flexformer.convert(model, attention="flexformer-c")
    flexformer.save_adapter(model, "adapter")
    flexformer.restore(model)

The functions here are the whole interface; what they need of transformers loads when they are called. The module
itself can be called too, so that `flexformer.convert` is both the function and the room.
"""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterable, Mapping
from os import PathLike
from types import ModuleType
from typing import TYPE_CHECKING, Any, TypeVar

from ..extras import too_old

if TYPE_CHECKING:
    from torch import nn
    from transformers import PreTrainedModel

    from ..kernels import Kernel, KernelStatistics

    Model = TypeVar("Model", bound=nn.Module)

__all__ = ["convert", "extend_positions", "kernels", "load", "load_adapter", "restore", "save_adapter", "statistics"]


def convert(
    model: Model,
    attention: str = "flexformer-c",
    layers: Iterable[int] | None = None,
    *,
    example_inputs: Mapping[str, Any] | None = None,
    **kernel_options: Any,
) -> Model:
    """Replace a pretrained model's softmax attention, in place.

    Works for models that go through transformers' attention interface (`ALL_ATTENTION_FUNCTIONS`): BERT, RoBERTa,
    ELECTRA, DistilBERT, ViT, GPT-2, GPT-NeoX, Llama, Qwen2, Mistral without a window and many more. One forward
    pass on a few tokens finds the attention modules; each gets a kernel as its submodule `kernel`. All other
    weights stay as they are, so a converted model usually needs training before its outputs mean much.

    Kernels that start from softmax (the flexformer ones, performer) take the model's own scaling. Attention
    dropout has no meaning for kernels and is not applied.

    `generate()` keeps a state of fixed size for every converted layer, whatever cache it makes.

    Args:
        model: a transformers model, or a PEFT model around one.
        attention: a kernel attention, or "softmax", which computes what the model did before.
        layers: the attention modules to convert, counted from 0 in the order they run; all by default. The others
            stay softmax.
        example_inputs: arguments to run the model with once, where they cannot be made up.
        **kernel_options: of the attention, see `flexformer.attention.options(attention)`.

    Returns:
        The model.

    Raises:
        ValueError: the model has what linear attention cannot do, such as sliding windows, soft-capped logits or
            position biases; the message says which layers and what. The model is left as it was.
    """
    _need_transformers()
    from .swap import convert_model

    convert_model(model, attention, layers, example_inputs, kernel_options)
    return model


def restore(model: Model) -> Model:
    """Undo `convert`: the model is what it was before, bit for bit, apart from training since. Returns it."""
    _need_transformers()
    from .swap import restore_model

    restore_model(model)
    return model


def extend_positions(model: Model, length: int) -> Model:
    """Let a model with a learned table of positions read longer inputs, in place, by repeating the table.

    BERT, RoBERTa, DistilBERT and the like have positions for 512 tokens, fewer than linear attention needs to pay. A
    position beyond that starts as a copy of one below, as Longformer's did, so that neighbours stay neighbours; short
    inputs give the same outputs as before, bit for bit. Kernels, or the model, should then be trained at that length.

    Works before a conversion and after it. The table and `config.max_position_embeddings` are saved with the model, and
    an adapter of it extends the model it is loaded into. A tokenizer has a limit of its own, `model_max_length`.

    Args:
        model: a transformers model, or a PEFT model around one.
        length: tokens that it can read afterwards, more than now.

    Returns:
        The model.

    Raises:
        ValueError: the model has no such table, as those with rotary positions, which need none; or has as many
            positions. The model is left as it was.
    """
    _need_transformers()
    from .positions import extend

    extend(model, length)
    return model


def kernels(model: nn.Module) -> list[tuple[int, Kernel]]:
    """The kernels of a converted model with the index of the layer they are in, in the order they run."""
    _need_transformers()
    from .swap import kernels_of

    return kernels_of(model)


def statistics(model: nn.Module, /, **inputs: Any) -> dict[int, KernelStatistics]:
    """How healthy the weights of each converted layer are on an input; see `flexformer.kernels.Kernel.statistics`.

    Args:
        model: a converted model.
        **inputs: what to call it with.

    Returns:
        By layer, for layers that have a kernel. Takes time quadratic in the length.
    """
    _need_transformers()
    from .inspection import kernel_statistics

    return kernel_statistics(model, inputs)


def save_adapter(model: nn.Module, path: str | PathLike[str]) -> None:
    """Write the kernels of a converted model, and how it was converted, into the folder `path`.

    Two files: `flexformer_adapter.json`, and a safetensors file with the kernels' parameters and buffers alone. An
    adapter already there is replaced once the new one is complete.
    """
    _need_transformers()
    from .adapter import save

    save(model, path)


def load_adapter(
    model: Model,
    path: str | PathLike[str],
    *,
    check_weights: bool = True,
    example_inputs: Mapping[str, Any] | None = None,
) -> Model:
    """Convert a model as an adapter says, with the adapter's kernels. A conversion it has is replaced.

    Everything is checked before the model is touched: the files, the shapes, that the model's attention has the
    same geometry, and that its weights are those the kernels were trained for or were fine-tuned from them.

    Args:
        model: a transformers model, or a PEFT model around one.
        path: a folder that `save_adapter` wrote.
        check_weights: compare a sample of the attention weights with those of the model the adapter came from.
            False takes kernels over to any model of the same shape.
        example_inputs: see `convert`.

    Returns:
        The model.

    Raises:
        ValueError: the adapter is damaged, of an unknown format, or made for another model. The model is left as
            it was.
    """
    _need_transformers()
    from .adapter import load as load_from

    load_from(model, path, check_weights, example_inputs)
    return model


def load(
    base: str | PathLike[str],
    adapter: str | PathLike[str] | None = None,
    *,
    check_weights: bool = True,
    example_inputs: Mapping[str, Any] | None = None,
    **from_pretrained_options: Any,
) -> PreTrainedModel:
    """Load a model with linear attention in one call. Runs no code from the hub and loads no pickles.

    Args:
        base: a folder or hub name of a model; or without `adapter`, a folder that `save_adapter` wrote, whose base
            model is looked up by name, or one that a converted model's `save_pretrained` or a `Trainer` wrote.
        adapter: a folder that `save_adapter` wrote.
        check_weights: see `load_adapter`.
        example_inputs: see `convert`.
        **from_pretrained_options: such as `dtype`, `device_map` or `revision`.

    Returns:
        A model of the class that its config names, converted, in evaluation mode.
    """
    _need_transformers()
    from .loading import load_model

    return load_model(base, adapter, check_weights, example_inputs, from_pretrained_options)


def _need_transformers() -> None:
    for package in ("transformers", "safetensors"):
        try:
            __import__(package)
        except ModuleNotFoundError as error:
            if error.name != package:
                raise
            message = f"converting models needs {package}; pip install 'flexformer-pytorch[hf]'"
            raise ModuleNotFoundError(message, name=package) from None
        if complaint := too_old(package):
            raise ImportError(f"converting models: {complaint}", name=package)


class _CallableModule(ModuleType):
    """This module, which calls `convert`."""

    __call__: Callable[..., Any] = staticmethod(convert)


sys.modules[__name__].__class__ = _CallableModule
