"""Adapter files: the kernels of a converted model, without the model.

A folder holds `flexformer_adapter.json` and a safetensors file named after its own checksum. Writing an adapter over
another puts the new tensors beside the old ones and then replaces the JSON file, in one step of the file system:
whoever reads the folder, at any moment, finds one adapter or the other.
"""

from __future__ import annotations

import hashlib
from collections.abc import Mapping
from contextlib import suppress
from os import PathLike
from pathlib import Path
from typing import Any

import torch
from safetensors import SafetensorError, safe_open
from safetensors.torch import save as serialise
from torch import Tensor, nn
from transformers import PreTrainedModel

from .. import __version__, kernels
from ..files import write_bytes, write_text
from ..kernels import Kernel
from . import fingerprint, manifest
from .discovery import Site
from .manifest import Base, Manifest
from .positions import CONFIG_KEY, extend_to
from .swap import (
    Conversion,
    attach,
    base_of,
    build_kernel,
    check_attention,
    choose,
    conversion_of,
    find_sites,
    kernel_options,
    kernels_of,
    require_unconverted,
    restore_model,
)


def save(model: nn.Module, path: str | PathLike[str]) -> None:
    """See `flexformer.save_adapter`."""
    base = base_of(model)
    conversion = conversion_of(base)
    tensors = {
        f"layers.{i}.{name}": tensor.detach().cpu().contiguous()
        for i, kernel in kernels_of(model)
        for name, tensor in kernel.state_dict().items()
    }
    content = serialise(tensors, metadata={"format": "pt"})
    made = Manifest(
        attention=conversion.attention,
        options=conversion.options,
        layers=list(conversion.layers),
        base=Base(
            name=_lasting_name(base.name_or_path),
            revision=getattr(base.config, "_commit_hash", None),
            model_type=base.config.model_type,
            geometry=[site.geometry for site in conversion.sites],
            sample=fingerprint.sample(conversion.sites),
            positions=getattr(base.config, CONFIG_KEY, None),
        ),
        sha256=hashlib.sha256(content).hexdigest(),
        size=len(content),
        flexformer_version=__version__,
    )
    folder = Path(path)
    folder.mkdir(parents=True, exist_ok=True)
    write_bytes(folder / made.tensor_file, content)
    write_text(folder / manifest.FILE, made.to_json())
    for other in folder.glob("flexformer_adapter-*.safetensors"):
        if other.name != made.tensor_file:
            with suppress(OSError):  # someone reads it still; it does no harm
                other.unlink()


def _lasting_name(name: str | None) -> str | None:
    """What finds the model from other folders too."""
    return str(Path(name).resolve()) if name and Path(name).is_dir() else name or None


def load(
    model: nn.Module,
    path: str | PathLike[str],
    check_weights: bool,
    example_inputs: Mapping[str, Any] | None = None,
) -> None:
    """See `flexformer.load_adapter`. The model is changed only once nothing can fail any more."""
    base, folder = base_of(model), Path(path)
    if not hasattr(base, "_flexformer_conversion"):
        require_unconverted(base)
    found = manifest.read(folder)
    try:
        check_attention(found.attention)
    except ValueError as error:
        raise ValueError(f"{folder / manifest.FILE}: {error}") from None
    sites = find_sites(base, example_inputs)
    _check_base(base, sites, found, folder, check_weights)
    chosen = choose(base, sites, found.layers)
    has_kernels = found.attention != "softmax"
    expected = _expected(found, sites, folder) if has_kernels else {}
    if not (folder / found.tensor_file).is_file() and manifest.read(folder) != found:
        load(model, path, check_weights, example_inputs)  # another one was saved here meanwhile
        return
    tensors = read_tensors(folder / found.tensor_file, found, expected)
    made = [filled_kernel(found, i, sites[i], tensors) for i in chosen] if has_kernels else []
    if found.base.positions is not None:
        extend_to(base, found.base.positions)
    if hasattr(base, "_flexformer_conversion"):
        restore_model(base)
    attach(base, Conversion(found.attention, found.options, chosen, sites, []), made)


def filled_kernel(found: Manifest, layer: int, site: Site, tensors: Mapping[str, Tensor]) -> Kernel:
    """A kernel with the tensors of one layer, in the dtype they were saved in."""
    prefix = f"layers.{layer}."
    with torch.random.fork_rng(
        devices=[]
    ):  # what is drawn here is overwritten; the user's random numbers go on as before
        kernel = build_kernel(found.attention, site, found.options)
    own = {name.removeprefix(prefix): t.to(site.device) for name, t in tensors.items() if name.startswith(prefix)}
    kernel.load_state_dict(own, assign=True)
    return kernel


def read_tensors(path: Path, found: Manifest, expected: Mapping[str, tuple[int, ...]]) -> dict[str, Tensor]:
    """The tensors of a safetensors file, after its checksum, its names and its shapes have been found right."""
    if not path.is_file():
        raise ValueError(f"{path} is missing; the adapter is not complete")
    if path.stat().st_size != found.size:
        raise ValueError(f"{path} is damaged: it has {path.stat().st_size} bytes instead of {found.size}")
    digest = hashlib.sha256()
    with path.open("rb") as file:
        while block := file.read(2**20):
            digest.update(block)
    if digest.hexdigest() != found.sha256:
        raise ValueError(f"{path} is damaged: its checksum is not the one in {manifest.FILE}")
    try:
        with safe_open(path, framework="pt") as file:
            shapes = {name: tuple(file.get_slice(name).get_shape()) for name in file.keys()}  # noqa: SIM118
            check_shapes(path, shapes, expected)
            return {name: file.get_tensor(name) for name in shapes}
    except SafetensorError as error:
        raise ValueError(f"{path} is damaged: {error}") from None


def check_shapes(path: Path, shapes: Mapping[str, tuple[int, ...]], expected: Mapping[str, tuple[int, ...]]) -> None:
    """Raise unless names and shapes are exactly those expected."""
    for name in sorted(expected.keys() - shapes.keys()):
        raise ValueError(f"{path} lacks the tensor {name}")
    for name in sorted(shapes.keys() - expected.keys()):
        raise ValueError(f"{path} holds a tensor {name} that the kernels do not have")
    for name, shape in shapes.items():
        if shape != expected[name]:
            raise ValueError(f"{path} holds {name} of shape {shape}; the kernels have {expected[name]}")


def _expected(found: Manifest, sites: list[Site], folder: Path) -> dict[str, tuple[int, ...]]:
    """Shapes of all tensors by the manifest's options, found without allocating any."""
    shapes: dict[str, tuple[int, ...]] = {}
    for i in found.layers:
        site = sites[i]
        try:
            with torch.device("meta"), torch.random.fork_rng(devices=[]):
                options = kernel_options(found.attention, site, found.options)
                empty = kernels.build(found.attention, site.num_kv_heads, site.head_dim, **options)
        except (TypeError, ValueError, RuntimeError, OverflowError) as error:
            raise ValueError(f"{folder / manifest.FILE} has options that do not work: {error}") from None
        shapes |= {f"layers.{i}.{name}": tuple(tensor.shape) for name, tensor in empty.state_dict().items()}
    return shapes


def _check_base(base: PreTrainedModel, sites: list[Site], found: Manifest, folder: Path, check_weights: bool) -> None:
    made_for = f"{folder} was made for {found.base.name or 'a model'} ({found.base.model_type})"
    if base.config.model_type != found.base.model_type:
        raise ValueError(f"{made_for}, but this model is a {base.config.model_type}")
    if len(sites) != len(found.base.geometry):
        raise ValueError(
            f"{made_for} with {len(found.base.geometry)} attention layers, but this model has {len(sites)}"
        )
    for i, (site, geometry) in enumerate(zip(sites, found.base.geometry, strict=True)):
        for name, value in site.geometry.items():
            if value != geometry[name]:
                raise ValueError(
                    f"{made_for} whose attention layer {i} has {name} {geometry[name]}; here it is {value}"
                )
    if found.layers and found.layers[-1] >= len(sites):
        raise ValueError(f"{folder / manifest.FILE} is damaged: it names layer {found.layers[-1]} of {len(sites)}")
    similar = fingerprint.similarity(sites, found.base.sample) if check_weights else None
    if similar is not None and not similar >= fingerprint.KINDRED:
        raise ValueError(
            f"{made_for} with other weights: a sample of them has a cosine of {similar:.2f} with those here, while "
            f"that of a model and its fine-tuned descendants is above {fingerprint.KINDRED}; use check_weights=False "
            "if you mean it"
        )
