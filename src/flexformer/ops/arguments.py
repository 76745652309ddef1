"""What attention ops accept, checked in one place."""

from __future__ import annotations

import torch
from torch import Tensor

from ..kernels import Kernel
from ..kernels.base import check_floor
from .state import State

FLOATS = (torch.float16, torch.bfloat16, torch.float32, torch.float64)


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
    query_start: int | Tensor = 0,
) -> None:
    """Raise a ValueError or TypeError that names the argument, its value and what would be right."""
    if not isinstance(kernel, Kernel):
        raise TypeError(
            f"kernel {type(kernel).__name__} is not a Kernel; build one with flexformer.kernels.build(name, ...)"
        )
    if not isinstance(is_causal, bool):
        raise TypeError(f"is_causal is a {type(is_causal).__name__}; use True or False (a mask goes to key_mask)")
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
    if floor is not None:
        check_floor(floor, kernel.policy)
    if initial_state is not None:
        _check_state(initial_state, batch, kernel, q, k, v)
    if cu_seqlens is not None:
        longest = _check_packing(cu_seqlens, batch, rows, keys)
    else:
        longest = max(rows + _first_position(query_start, kernel), keys)
    kernel.check_length(longest)


def accumulation_dtype(q: Tensor, k: Tensor, v: Tensor) -> torch.dtype:
    """What sums and states are kept in: at least float32."""
    widest = torch.promote_types(torch.promote_types(q.dtype, k.dtype), v.dtype)
    return torch.promote_types(widest, torch.float32)


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
    if not isinstance(key_mask, Tensor):
        raise TypeError(f"key_mask is a {type(key_mask).__name__}; pass a tensor of booleans, True = attend")
    if key_mask.dtype != torch.bool:
        raise TypeError(f"key_mask has dtype {key_mask.dtype}; pass booleans, True = attend")
    if tuple(key_mask.shape) != (batch, keys):
        raise ValueError(f"key_mask has shape {tuple(key_mask.shape)}; pass (B, S) = ({batch}, {keys})")
    if key_mask.device != device:
        raise ValueError(f"key_mask is on {key_mask.device} but q on {device}; move it there")


def _check_state(state: State, batch: int, kernel: Kernel, q: Tensor, k: Tensor, v: Tensor) -> None:
    if not isinstance(state, State):
        raise TypeError(f"initial_state is a {type(state).__name__}; pass the State that return_state=True gave")
    expected = (batch, kernel.num_heads, kernel.num_features, v.shape[3])
    dtype = accumulation_dtype(q, k, v)
    for name, x, dims in (("S", state.S, 4), ("z", state.z, 3), ("w", state.w, 2), ("m", state.m, 2)):
        if not isinstance(x, Tensor):
            raise TypeError(f"initial_state has a {type(x).__name__} as {name}; pass the State of an earlier call")
        if tuple(x.shape) != expected[:dims]:
            raise ValueError(f"initial_state has {name} of shape {tuple(x.shape)}; these inputs need {expected[:dims]}")
        if x.dtype != dtype or x.device != v.device:
            raise TypeError(
                f"initial_state has {name} in {x.dtype} on {x.device}; these inputs need {dtype} on {v.device}"
            )


def _first_position(query_start: int | Tensor, kernel: Kernel) -> int:
    """Where queries begin, or 0 where that cannot be known or does not matter."""
    if isinstance(query_start, bool) or not isinstance(query_start, int | Tensor):
        raise TypeError(f"query_start {query_start!r} is not a position; pass an integer or a tensor that holds one")
    if isinstance(query_start, Tensor):
        # Reading it waits for the device, and a compiled graph cannot branch on it.
        if kernel.max_length is None or torch.compiler.is_compiling() or query_start.is_meta:
            return 0
        query_start = int(query_start)
    if query_start < 0:
        raise ValueError(f"query_start {query_start} is negative; positions begin at 0")
    return query_start


def _check_packing(cu_seqlens: Tensor, batch: int, rows: int, keys: int) -> int:
    """The length of the longest sequence, or 0 where that cannot be known."""
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
        return 0
    if int(cu_seqlens[0]) != 0 or int(cu_seqlens[-1]) != rows or bool((cu_seqlens.diff() < 0).any()):
        raise ValueError(f"cu_seqlens {cu_seqlens.tolist()} must rise from 0 to the packed length {rows}")
    return int(cu_seqlens.diff().max())


def empty_state(kernel: Kernel, q: Tensor, k: Tensor, v: Tensor) -> State:
    """The state before the first key, in the dtype to accumulate in."""
    shape = (q.shape[0], kernel.num_heads, kernel.num_features, v.shape[3])
    return State.empty(*shape, dtype=accumulation_dtype(q, k, v), device=v.device)
