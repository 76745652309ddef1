"""Every attention by name."""

from __future__ import annotations

import inspect
from functools import partial
from typing import Any

from .. import kernels
from .bigbird import BigBirdAttention
from .kernel import KernelAttention
from .longformer import LongformerAttention
from .mechanism import Mechanism
from .polaformer import PolaformerAttention
from .reformer import ReformerAttention
from .skyformer import SkyformerAttention
from .softmax import SoftmaxAttention

ATTENTIONS = (
    "softmax",
    "flexformer-s",
    "flexformer-n",
    "linear",
    "performer",
    "rfa",
    "cosformer",
    "hedgehog",
    "polaformer",
    "reformer",
    "longformer",
    "bigbird",
    "skyformer",
    "flexformer-c",
)

_MECHANISMS: dict[str, type[Mechanism]] = {
    "softmax": SoftmaxAttention,
    "polaformer": PolaformerAttention,
    "reformer": ReformerAttention,
    "longformer": LongformerAttention,
    "bigbird": BigBirdAttention,
    "skyformer": SkyformerAttention,
}


def options(attention: str) -> dict[str, Any]:
    """The options of an attention with their defaults.

    Args:
        attention: a name in `ATTENTIONS` or of a registered kernel.
    """
    if not isinstance(attention, str):
        raise TypeError(f"attention {attention!r} is not a name; use one of {', '.join(ATTENTIONS)}")
    if attention in _MECHANISMS:
        parameters = inspect.signature(_MECHANISMS[attention]).parameters.values()
        return {p.name: p.default for p in parameters if p.kind is inspect.Parameter.KEYWORD_ONLY}
    if attention in kernels.names():
        return kernels.options(attention)
    known = [*ATTENTIONS, *(name for name in kernels.names() if name not in ATTENTIONS)]
    raise ValueError(f"attention {attention!r} is unknown; use one of {', '.join(known)}")


def build(
    attention: str,
    num_heads: int,
    head_dim: int,
    *,
    num_kv_heads: int | None = None,
    dropout: float = 0.0,
    embed_dim: int | None = None,
    **mechanism_options: Any,
) -> Mechanism:
    """Build the mechanism of an attention, without projections around it."""
    known = options(attention)
    for option in mechanism_options:
        if option not in known:
            takes = ", ".join(known) or "none"
            raise TypeError(f"option {option!r} is unknown to attention {attention!r}; its options are: {takes}")
    factory = _MECHANISMS.get(attention) or partial(KernelAttention, name=attention)
    return factory(num_heads, head_dim, num_kv_heads, dropout, embed_dim, **mechanism_options)
