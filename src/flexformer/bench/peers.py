"""Other packages' linear attention, where they are installed. None of them is a dependency.

Each gets its inputs in the layout it was written for and its random features drawn once, so that nothing but its own
attention is timed. See docs/benchmarks.md for how to install them.
"""

from __future__ import annotations

import contextlib
import importlib
import io
import warnings
from collections.abc import Callable
from functools import partial
from typing import Any, Literal, NamedTuple

import torch
from torch import Tensor
from torch.nn import functional as F

from .operations import Case, Inputs, Operation, Row, build_kernel, reference_of

DRAWN_ONCE = 10**9


class Peer(NamedTuple):
    """A package and the rows it gives."""

    distribution: str
    module: str
    """What must be importable."""
    rows: tuple[Row, ...]


def performer(case: Case) -> Operation:
    fast_attention = load("performer_pytorch").FastAttention
    with contextlib.redirect_stdout(io.StringIO()):  # it prints where it found no GPU code
        module = fast_attention(case.head_dim, 2 * case.frequencies, causal=case.is_causal)
    return Operation(lambda inputs: module(*inputs[:3]))


def linear_transformer(case: Case) -> Operation:
    module = load("linear_attention_transformer.linear_attention_transformer")
    attend = module.causal_linear_attn if case.is_causal else module.linear_attn
    return Operation(lambda inputs: attend(*inputs[:3]))


def fast_transformers(features: Literal["elu", "favor"], case: Case) -> Operation:
    attentions, masking = load("fast_transformers.attention"), load("fast_transformers.masking")
    maps = load("fast_transformers.feature_maps")
    feature_map = maps.elu_feature_map
    if features == "favor":
        feature_map = maps.Favor.factory(n_dims=2 * case.frequencies, redraw=DRAWN_ONCE)
    attention = attentions.CausalLinearAttention if case.is_causal else attentions.LinearAttention
    module = attention(case.head_dim, feature_map=feature_map)
    mask = masking.TriangularCausalMask(case.length) if case.is_causal else masking.FullMask(case.length)
    lengths = masking.LengthMask(torch.full((case.batch,), case.length))

    def attend(inputs: Inputs) -> Tensor:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")  # about functions of torch it should no longer use
            out: Tensor = module(*inputs[:3], mask, lengths, lengths)
            return out

    return Operation(attend, reference=_elu_reference(case) if features == "elu" else None)


def naive_chunks(case: Case) -> Operation:
    """Flash Linear Attention without its GPU kernels, on the features that its users most often give it."""
    attend = load("fla.ops.linear_attn.naive").naive_chunk_linear_attn

    def with_elu(inputs: Inputs) -> Tensor:
        out: Tensor = attend(F.elu(inputs.q) + 1, F.elu(inputs.k) + 1, inputs.v, normalize=True)
        return out

    return Operation(with_elu, reference=_elu_reference(case))


PEERS = (
    Peer("performer-pytorch", "performer_pytorch", (Row("performer-pytorch", "peer", performer),)),
    Peer(
        "linear-attention-transformer",
        "linear_attention_transformer",
        (Row("linear-attention-transformer", "peer", linear_transformer),),
    ),
    Peer(
        "pytorch-fast-transformers",
        "fast_transformers",
        (
            Row("fast-transformers-elu", "peer", partial(fast_transformers, "elu"), tokens_first=True),
            Row("fast-transformers-favor", "peer", partial(fast_transformers, "favor"), tokens_first=True),
        ),
    ),
    Peer(
        "flash-linear-attention",
        "fla.ops.linear_attn.naive",
        (
            Row(
                "flash-linear-attention-naive",
                "peer",
                naive_chunks,
                has_bidirectional_form=False,
                tokens_first=True,
            ),
        ),
    ),
)


def peer_rows() -> tuple[list[Row], dict[str, str]]:
    """The rows of what is installed, and for the other packages why they have none."""
    rows: list[Row] = []
    missing: dict[str, str] = {}
    for peer in PEERS:
        try:
            load(peer.module)
        except ImportError as error:
            missing[peer.distribution] = f"not importable: {error}"
        else:
            rows.extend(peer.rows)
    return rows, missing


def load(module: str) -> Any:
    """Import a module of a peer, without its warnings."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        return importlib.import_module(module)


def _elu_reference(case: Case) -> Callable[[Inputs], Tensor]:
    return reference_of(build_kernel("linear", case), case.is_causal, tokens_first=True)
