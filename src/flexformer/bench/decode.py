"""Decoding: what one more token costs after a context, by a state of fixed size or by a cache that grows."""

from __future__ import annotations

import functools
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, NamedTuple

import torch
from torch import Tensor
from torch.nn import functional as F

from .. import attention
from ..attention import MultiheadAttention, SoftmaxState
from .attention import Progress, silent
from .operations import SDPA
from .timing import Timing, alternate, fixed_threads

PREALLOCATED = "softmax-preallocated"
MOST_STEPS = 2**20  # after a context, for kernels that must know the longest sequence
PIECE = 4096  # tokens of context taken in at once


@dataclass(frozen=True)
class DecodeOptions:
    """See `flexformer bench decode --help`."""

    contexts: tuple[int, ...] = (64, 1024, 8192, 65536)
    rows: tuple[str, ...] = ()
    batch: int = 1
    heads: int = 8
    head_dim: int = 64
    threads: int = 1
    rounds: int = 15
    smoke: bool = False

    def __post_init__(self) -> None:
        for option in ("batch", "heads", "head_dim", "threads", "rounds"):
            if getattr(self, option) < 1:
                raise ValueError(f"{option} {getattr(self, option)} is too small; use at least 1")
        if not self.contexts or min(self.contexts) < 1:
            raise ValueError(f"contexts {list(self.contexts)} must be one or more numbers of tokens, each at least 1")


class Step(NamedTuple):
    """One more token after a context."""

    call: Callable[[], Any]
    state_bytes: int


def decode_rows() -> list[str]:
    """Softmax with both kinds of cache, and every attention that has a state."""
    named = [name for name in attention.ATTENTIONS if attention.build(name, 2, 8).has_causal_form]
    return [SDPA, PREALLOCATED, *(name for name in named if name != SDPA)]


@torch.no_grad()
def measure_decode(options: DecodeOptions, progress: Progress = silent) -> dict[str, Any]:
    """Time one token after every context for every row, all in turn."""
    known = decode_rows()
    for name in options.rows:
        if name not in known:
            raise ValueError(f"rows: {name!r} is unknown; use some of {', '.join(known)}")
    rows = list(options.rows) or known
    contexts = sorted(set(options.contexts))
    keys = [(row, context) for row in rows for context in contexts]
    steps: dict[tuple[str, int], Step] = {}
    with fixed_threads(options.threads):
        for number, (row, context) in enumerate(keys):
            progress(f"{row}: a context of {context}", number, len(keys))
            steps[row, context] = step_after(row, context, options)
        timings = alternate(
            {key: torch.no_grad()(step.call) for key, step in steps.items()},
            rounds=options.rounds,
            seconds=float("inf"),
            on_sample=lambda done, total: progress("timing a token of each in turn", done, total),
        )
    found = []
    for (row, context), step in steps.items():
        timing = timings[row, context]
        ours = isinstance(timing, Timing)
        found.append(
            {
                "row": row,
                "context": context,
                "seconds": timing._asdict() if isinstance(timing, Timing) else None,
                "state_bytes": step.state_bytes,
                "note": None if ours else str(timing[0]),
            }
        )
    return {"measurements": found}


def step_after(row: str, context: int, options: DecodeOptions) -> Step:
    """The call that decodes one token after `context` random ones."""
    name = SDPA if row == PREALLOCATED else row
    size: dict[str, Any] = {"max_length": context + MOST_STEPS} if "max_length" in attention.options(name) else {}
    torch.manual_seed(0)
    width = options.heads * options.head_dim
    module = MultiheadAttention(width, options.heads, name, is_causal=True, **size).eval()
    x = torch.randn(options.batch, context, width)
    token = torch.randn(options.batch, 1, width)
    if row == PREALLOCATED:
        return _preallocated(module, x, token)
    if row == SDPA:
        # The same as taking in the context, whose cost grows with its square, would leave.
        state: Any = SoftmaxState(_heads(module.k_proj, x, module), _heads(module.v_proj, x, module), None)
    else:
        state = None
        for piece in x.split(PIECE, dim=1):
            _, state = module(piece, state=state, return_state=True)
    held = sum(part.nbytes for part in state if isinstance(part, Tensor))
    update = {} if row == SDPA else {"update_state": True}
    return Step(functools.partial(module, token, state=state, **update), held)


def _preallocated(module: MultiheadAttention, x: Tensor, token: Tensor) -> Step:
    """Softmax with a cache made for the whole sequence, into which the new key and value are written."""
    context = x.shape[1]
    keys, values = (
        F.pad(_heads(projection, x, module), (0, 0, 0, 1)).contiguous() for projection in (module.k_proj, module.v_proj)
    )

    def call() -> Tensor:
        keys[:, :, context:] = _heads(module.k_proj, token, module)
        values[:, :, context:] = _heads(module.v_proj, token, module)
        out = F.scaled_dot_product_attention(_heads(module.q_proj, token, module), keys, values)
        mixed: Tensor = module.o_proj(out.transpose(1, 2).flatten(2))
        return mixed

    return Step(call, keys.nbytes + values.nbytes)


def _heads(projection: Any, x: Tensor, module: MultiheadAttention) -> Tensor:
    """(B, T, E) to (B, H, T, D)."""
    projected: Tensor = projection(x)
    return projected.unflatten(-1, (module.num_heads, module.head_dim)).transpose(1, 2)
