"""One token after another, with a state that is overwritten."""

from __future__ import annotations

import torch
from torch import Tensor

from ..kernels import Kernel
from .bidirectional import read
from .chunks import hide
from .state import State, log_ratio


def decode_step(
    q: Tensor, k: Tensor, v: Tensor, kernel: Kernel, key_mask: Tensor | None, state: State, floor: float
) -> Tensor:
    """Attention of one new token, (B, H, 1, D), to all before it and itself. The state takes it in, in place."""
    batch, heads, _, dim = q.shape
    dtype = state.S.dtype
    positions = torch.as_tensor(state.length, device=q.device)[None] if kernel.uses_positions else None
    hidden = None
    if key_mask is not None:
        hidden = ~key_mask[:, None, :]
        k, v = k.masked_fill(hidden[..., None], 0.0), v.masked_fill(hidden[..., None], 0.0)
    phi, g = kernel.key_features(k.to(dtype), positions)
    g = hide(g, hidden, phi)
    g = phi.new_zeros(phi.shape[:3]) if g is None else g
    largest = torch.maximum(state.m, g.squeeze(2))
    carry = log_ratio(state.m, largest).exp_()[..., None]
    scale = log_ratio(g, largest[..., None]).exp_()
    state.S.mul_(carry[..., None]).addcmul_(phi.mT, v.to(dtype) * scale[..., None])
    state.z.mul_(carry).addcmul_(phi.squeeze(2), scale)
    state.w.mul_(carry.squeeze(2)).add_(scale.squeeze(2))
    state.m.copy_(largest)
    rows = kernel.query_features(q.to(dtype).reshape(batch, kernel.num_heads, -1, dim), positions)
    assert isinstance(state.length, Tensor)
    state.length.add_(1)  # last, because positions may share its memory
    return read(rows, state, kernel.policy, floor).reshape(batch, heads, 1, v.shape[3])


def overwrite(state: State, after: State) -> None:
    """`state` made equal to `after`, in place."""
    for old, new in zip(state, after, strict=True):
        assert isinstance(old, Tensor)
        old.copy_(torch.as_tensor(new))


def check_overwritable(state: State | None, inputs: tuple[Tensor, ...]) -> None:
    """Raise where a state cannot be overwritten."""
    if state is None:
        raise ValueError("update_state needs an initial_state to update; start with flexformer.State.empty(...)")
    if not isinstance(state.length, Tensor):
        raise TypeError(
            f"initial_state.length is the number {state.length}, which cannot be updated; pass a tensor, as "
            "flexformer.State.empty(...) and return_state do"
        )
    if torch.is_grad_enabled() and any(x.requires_grad for x in (*inputs, *state) if isinstance(x, Tensor)):
        raise ValueError("update_state overwrites what a backward pass would need; call under torch.no_grad()")
