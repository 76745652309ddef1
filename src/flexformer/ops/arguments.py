"""What attention ops accept, checked in one place."""

from __future__ import annotations

import math
from contextlib import AbstractContextManager, nullcontext

import torch
from torch import Tensor

from ..kernels import Kernel
from .state import State

FLOATS = (torch.float16, torch.bfloat16, torch.float32, torch.float64)


def full_precision(x: Tensor) -> AbstractContextManager[object]:
    """A region that autocast leaves alone: phases, norms and sums lose their meaning in half precision."""
    if x.is_meta:  # shapes only, and autocast does not know the device
        return nullcontext()
    return torch.autocast(device_type=x.device.type, enabled=False)


def check_arguments(
    q: Tensor,
    k: Tensor,
    v: Tensor,
    kernel: Kernel,
    *,
    is_causal: bool,
    key_mask: Tensor | None,
    floor: float | None,
    initial_state: State | None = None,
    cu_seqlens: Tensor | None = None,
) -> None:
    """Raise a ValueError or TypeError that names the argument, its value and what would be right."""
    if not isinstance(kernel, Kernel):
        raise TypeError(
            f"kernel {type(kernel).__name__} is not a Kernel; build one with flexformer.kernels.build(name, ...)"
        )
    _check_tensors(q, k, v)
    batch, heads, rows, dim = q.shape
    kv_heads, keys = k.shape[1], k.shape[2]
    if dim != kernel.head_dim:
        raise ValueError(f"q has head_dim {dim} but kernel was built with head_dim {kernel.head_dim}")
    if kv_heads != kernel.num_heads:
        raise ValueError(f"k has {kv_heads} heads but kernel was built with num_heads {kernel.num_heads}")
    if heads % kv_heads:
        raise ValueError(f"q has {heads} heads, not a multiple of k's {kv_heads}; grouped heads need one")
    if is_causal and rows != keys:
        raise ValueError(
            f"is_causal with {rows} queries and {keys} keys is ambiguous; pass as many keys as queries and earlier "
            "ones as initial_state"
        )
    if key_mask is not None:
        _check_mask(key_mask, batch, keys, q.device)
    if floor is not None and not (math.isfinite(floor) and floor > 0):
        raise ValueError(f"floor {floor} is not a positive number; leave it None for the kernel's own")
    if initial_state is not None:
        _check_state(initial_state, batch, kernel, v)
    if cu_seqlens is not None:
        _check_packing(cu_seqlens, batch, rows, keys)
    if kernel.max_length is not None and max(rows, keys) > kernel.max_length:
        raise ValueError(
            f"length {max(rows, keys)} exceeds max_length {kernel.max_length} of kernel {kernel.name!r}; "
            f"build it with max_length={max(rows, keys)} or more"
        )


def _check_tensors(q: Tensor, k: Tensor, v: Tensor) -> None:
    for name, x in (("q", q), ("k", k), ("v", v)):
        if not isinstance(x, Tensor):
            raise TypeError(f"{name} is a {type(x).__name__}; pass a tensor of shape (B, H, T, D)")
        if x.dim() != 4:
            raise ValueError(f"{name} has shape {tuple(x.shape)}; pass (B, H, T, D)")
        if x.dtype not in FLOATS:
            raise TypeError(f"{name} has dtype {x.dtype}; use float16, bfloat16, float32 or float64")
        if x.device != q.device:
            raise ValueError(f"{name} is on {x.device} but q on {q.device}; move them to one device")
        if x.dtype != q.dtype and (x.is_meta or not torch.is_autocast_enabled(q.device.type)):
            raise TypeError(f"{name} has dtype {x.dtype} but q has {q.dtype}; use one dtype for all three")
    if k.shape[0] != q.shape[0] or k.shape[3] != q.shape[3]:
        raise ValueError(f"k has shape {tuple(k.shape)}, which does not fit q's {tuple(q.shape)} in batch or width")
    if v.shape[:3] != k.shape[:3]:
        raise ValueError(f"v has shape {tuple(v.shape)}; its first three sizes must be k's {tuple(k.shape[:3])}")


def _check_mask(key_mask: Tensor, batch: int, keys: int, device: torch.device) -> None:
    if key_mask.dtype != torch.bool:
        raise TypeError(f"key_mask has dtype {key_mask.dtype}; pass booleans, True = attend")
    if tuple(key_mask.shape) != (batch, keys):
        raise ValueError(f"key_mask has shape {tuple(key_mask.shape)}; pass (B, S) = ({batch}, {keys})")
    if key_mask.device != device:
        raise ValueError(f"key_mask is on {key_mask.device} but q on {device}; move it there")


def _check_state(state: State, batch: int, kernel: Kernel, v: Tensor) -> None:
    if not isinstance(state, State):
        raise TypeError(f"initial_state is a {type(state).__name__}; pass the State that return_state=True gave")
    expected = (batch, kernel.num_heads, kernel.num_features, v.shape[3])
    if tuple(state.S.shape) != expected:
        raise ValueError(f"initial_state has S of shape {tuple(state.S.shape)}; these inputs need {expected}")
    for name, x, shape in (
        ("z", state.z, expected[:3]),
        ("w", state.w, expected[:2]),
        ("m", state.m, expected[:2]),
    ):
        if tuple(x.shape) != shape:
            raise ValueError(f"initial_state has {name} of shape {tuple(x.shape)}; these inputs need {shape}")


def _check_packing(cu_seqlens: Tensor, batch: int, rows: int, keys: int) -> None:
    if not isinstance(cu_seqlens, Tensor) or cu_seqlens.dim() != 1 or cu_seqlens.numel() < 2:
        raise ValueError(f"cu_seqlens {cu_seqlens!r} is not a vector of boundaries; pass for example tensor([0, 3, 7])")
    if cu_seqlens.dtype not in (torch.int32, torch.int64):
        raise TypeError(f"cu_seqlens has dtype {cu_seqlens.dtype}; use int32 or int64")
    if batch != 1:
        raise ValueError(f"cu_seqlens needs batch 1 but q has batch {batch}; pack all sequences along T")
    if rows != keys:
        raise ValueError(f"cu_seqlens needs as many keys as queries but got {keys} and {rows}")
    # Reading the boundaries waits for the device, and a compiled graph cannot branch on them.
    if torch.compiler.is_compiling() or cu_seqlens.device.type != "cpu":
        return
    if int(cu_seqlens[0]) != 0 or int(cu_seqlens[-1]) != rows or bool((cu_seqlens.diff() < 0).any()):
        raise ValueError(f"cu_seqlens {cu_seqlens.tolist()} must rise from 0 to the packed length {rows}")
