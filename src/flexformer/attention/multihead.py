"""Multi-head attention with any mechanism inside."""

from __future__ import annotations

from typing import Any, Literal, overload

import torch
from torch import Tensor, nn

from .. import kernels
from ..kernels.base import require_bool, require_positive_int
from ..ops.split import active_split
from . import registry
from .kernel import KernelAttention


class MultiheadAttention(nn.Module):
    """Projections to heads, an attention by name, and a projection back.

    Args:
        embed_dim: width E of input and output.
        num_heads: query heads.
        attention: a name in `flexformer.ATTENTIONS` or of a registered kernel.
        is_causal: every position sees itself and earlier ones only.
        num_kv_heads: key and value heads, fewer than `num_heads` for grouped heads.
        head_dim: width of one head; `embed_dim / num_heads` by default.
        context_dim: width of `context` in cross attention; `embed_dim` by default.
        bias: whether the four projections have biases.
        device: where parameters live.
        dtype: of parameters; kernels compute in at least float32 all the same.
        dropout: probability of dropping an attention weight while training. Means something only where weights
            are formed: softmax, reformer, longformer, bigbird; others accept and ignore it.
        **options: the attention's own options, see `flexformer.attention.options(name)`.
    """

    def __init__(
        self,
        embed_dim: int,
        num_heads: int,
        attention: str = "flexformer-n",
        is_causal: bool = False,
        *,
        num_kv_heads: int | None = None,
        head_dim: int | None = None,
        context_dim: int | None = None,
        bias: bool = True,
        dropout: float = 0.0,
        device: torch.device | str | None = None,
        dtype: torch.dtype | None = None,
        **options: Any,
    ) -> None:
        super().__init__()
        for argument, flag in (("is_causal", is_causal), ("bias", bias)):
            require_bool(argument, flag)
        if isinstance(dropout, bool) or not isinstance(dropout, int | float):
            raise TypeError(f"dropout {dropout!r} is not a number; use at least 0 and less than 1")
        num_kv_heads = num_heads if num_kv_heads is None else num_kv_heads
        for argument, value in (
            ("embed_dim", embed_dim),
            ("num_heads", num_heads),
            ("num_kv_heads", num_kv_heads),
        ):
            require_positive_int(argument, value)
        if head_dim is None:
            if embed_dim % num_heads:
                raise ValueError(
                    f"embed_dim {embed_dim} is not divisible by {num_heads} (num_heads); use a multiple or set head_dim"
                )
            head_dim = embed_dim // num_heads
        require_positive_int("head_dim", head_dim)
        context_dim = embed_dim if context_dim is None else context_dim
        require_positive_int("context_dim", context_dim)
        if num_heads % num_kv_heads:
            raise ValueError(f"num_kv_heads {num_kv_heads} does not divide num_heads {num_heads}; use a divisor of it")
        if not 0.0 <= dropout < 1.0:
            raise ValueError(f"dropout {dropout} is not a probability; use at least 0 and less than 1")
        mechanism = registry.build(
            attention,
            num_heads,
            head_dim,
            num_kv_heads=num_kv_heads,
            dropout=dropout,
            embed_dim=embed_dim,
            **options,
        )
        if is_causal and not mechanism.has_causal_form:
            raise ValueError(
                f"attention {attention!r} has no causal form; for is_causal=True use softmax or a kernel attention"
            )
        if context_dim != embed_dim and (is_causal or mechanism.self_attention_only):
            why = "is_causal=True" if is_causal else f"attention {attention!r}"
            raise ValueError(
                f"context_dim {context_dim} is for cross attention, which {why} does not have; leave it out"
            )
        self.embed_dim = embed_dim
        self.num_heads = num_heads
        self.num_kv_heads = num_kv_heads
        self.head_dim = head_dim
        self.context_dim = context_dim
        self.attention = attention
        self.is_causal = is_causal
        self.dropout = dropout
        self.q_proj = nn.Linear(embed_dim, num_heads * head_dim, bias=bias)
        self.k_proj = None if mechanism.shares_query_key else nn.Linear(context_dim, num_kv_heads * head_dim, bias=bias)
        self.v_proj = nn.Linear(context_dim, num_kv_heads * head_dim, bias=bias)
        self.o_proj = nn.Linear(num_heads * head_dim, embed_dim, bias=bias)
        self.mechanism = mechanism
        self._reset_projections()
        self.to(device=device, dtype=dtype)

    def reset_parameters(self) -> None:
        """Draw everything anew: projections Xavier uniform with zero biases, the mechanism as it starts."""
        # Parts first: a mechanism may want another start for them than they give themselves.
        for module in reversed([*self.mechanism.modules()]):
            reset = getattr(module, "reset_parameters", None)
            if callable(reset):
                reset()
        self._reset_projections()

    def _reset_projections(self) -> None:
        for linear in (self.q_proj, self.k_proj, self.v_proj, self.o_proj):
            if linear is not None:
                nn.init.xavier_uniform_(linear.weight)
                if linear.bias is not None:
                    nn.init.zeros_(linear.bias)

    @overload
    def forward(
        self,
        x: Tensor,
        key_mask: Tensor | None = ...,
        context: Tensor | None = ...,
        state: Any = ...,
        return_state: Literal[False] = ...,
        *,
        cu_seqlens: Tensor | None = ...,
        query_start: int | Tensor | None = ...,
        update_state: bool = ...,
    ) -> Tensor: ...
    @overload
    def forward(
        self,
        x: Tensor,
        key_mask: Tensor | None = ...,
        context: Tensor | None = ...,
        state: Any = ...,
        *,
        return_state: Literal[True],
        cu_seqlens: Tensor | None = ...,
        query_start: int | Tensor | None = ...,
        update_state: bool = ...,
    ) -> tuple[Tensor, Any]: ...
    def forward(
        self,
        x: Tensor,
        key_mask: Tensor | None = None,
        context: Tensor | None = None,
        state: Any = None,
        return_state: bool = False,
        *,
        cu_seqlens: Tensor | None = None,
        query_start: int | Tensor | None = None,
        update_state: bool = False,
    ) -> Tensor | tuple[Tensor, Any]:
        """Attend.

        Args:
            x: (B, T, E).
            key_mask: (B, S) bool, True = attend, over `context` if given, else over `x`.
            context: (B, S, context_dim) what to attend to in cross attention; `x` itself by default.
            state: what an earlier call returned, to go on from. In cross attention `context[:, :0]` with a state
                attends to the state alone.
            return_state: also return the state after these keys: of fixed size for kernel attentions, all keys
                and values for softmax.
            cu_seqlens: (sequences + 1,) boundaries of sequences packed along T in a batch of one, for kernel
                attentions; see `linear_attention`.
            query_start: position of the first query where the module is not causal, for kernels that use positions;
                by default where the state ends in self-attention, and 0 in cross attention.
            update_state: overwrite `state` instead of making a new one, for decoding; kernel attentions, no gradients.

        Returns:
            (B, T, E), with `return_state` also the state.
        """
        self._check(x, key_mask, context)
        source = x if context is None else context
        q = self._heads(self.q_proj(x), self.num_heads)
        k = q if self.k_proj is None else self._heads(self.k_proj(source), self.num_kv_heads)
        v = self._heads(self.v_proj(source), self.num_kv_heads)
        if not self.mechanism.groups_heads:
            group = self.num_heads // self.num_kv_heads
            k = k if self.k_proj is None else k.repeat_interleave(group, dim=1)
            v = v.repeat_interleave(group, dim=1)
        forms: dict[str, Any] = {}
        if self.mechanism.has_kernel_forms:
            if query_start is None:
                query_start = getattr(state, "length", 0) if context is None else 0
            forms = {"query_start": query_start}
        elif cu_seqlens is not None:
            raise ValueError(f"cu_seqlens is for kernel attentions; attention {self.attention!r} has no packed form")
        if update_state:
            if not self.mechanism.has_kernel_forms:
                raise ValueError(
                    f"update_state is for kernel attentions; {self.attention!r} has no state of fixed size"
                )
            forms["update_state"] = True
        if state is None and not return_state and not update_state:
            if cu_seqlens is not None:
                forms["cu_seqlens"] = cu_seqlens
            out = self.mechanism(q, k, v, x=x, key_mask=key_mask, is_causal=self.is_causal, **forms)
            return self._merged(out)
        if cu_seqlens is not None:
            raise ValueError("cu_seqlens cannot go with state or return_state: packed sequences have no common state")
        if not self.mechanism.has_causal_form:
            raise ValueError(f"attention {self.attention!r} has no state; call it without state and return_state")
        out, state = self.mechanism.forward_with_state(
            q, k, v, x=x, key_mask=key_mask, is_causal=self.is_causal, state=state, **forms
        )
        return (self._merged(out), state) if return_state else self._merged(out)

    @torch.no_grad()
    def statistics(
        self, x: Tensor, key_mask: Tensor | None = None, context: Tensor | None = None
    ) -> kernels.KernelStatistics:
        """How healthy the kernel's weights are on this input; see `Kernel.statistics`. Kernel attentions only."""
        self._check(x, key_mask, context)
        if not isinstance(self.mechanism, KernelAttention) or self.k_proj is None:
            raise ValueError(f"attention {self.attention!r} has no kernel and so no statistics of one")
        q = self._heads(self.q_proj(x), self.num_heads)
        k = self._heads(self.k_proj(x if context is None else context), self.num_kv_heads)
        return self.mechanism.kernel.statistics(q, k, is_causal=self.is_causal, key_mask=key_mask)

    def _heads(self, x: Tensor, count: int) -> Tensor:
        return x.unflatten(-1, (count, self.head_dim)).transpose(1, 2)

    def _merged(self, out: Tensor) -> Tensor:
        merged: Tensor = self.o_proj(out.transpose(1, 2).flatten(2))
        return merged

    def _check(self, x: Tensor, key_mask: Tensor | None, context: Tensor | None) -> None:
        for name, value in (("x", x), ("key_mask", key_mask), ("context", context)):
            if value is not None and not isinstance(value, Tensor):
                raise TypeError(f"{name} is a {type(value).__name__}; pass a tensor")
        if active_split() is not None and not self.mechanism.has_kernel_forms:
            raise ValueError(
                f"attention {self.attention!r} cannot run over a divided sequence; use a kernel attention, or leave "
                "sequence_parallel"
            )
        weight = self.q_proj.weight
        for name, value in (("x", x), ("context", context)):
            if value is None or torch.is_autocast_enabled(weight.device.type if not weight.is_meta else "cpu"):
                continue
            if value.dtype != weight.dtype:
                raise TypeError(f"{name} has dtype {value.dtype} but the module {weight.dtype}; convert one of them")
        if x.dim() != 3 or x.shape[2] != self.embed_dim:
            raise ValueError(f"x has shape {tuple(x.shape)}; pass (B, T, E) with E = embed_dim = {self.embed_dim}")
        if context is not None:
            if self.is_causal:
                raise ValueError("context with is_causal=True has no meaning; build the module with is_causal=False")
            if self.mechanism.self_attention_only:
                raise ValueError(f"context is not possible: attention {self.attention!r} is for self-attention only")
            if context.dim() != 3 or context.shape[2] != self.context_dim or context.shape[0] != x.shape[0]:
                raise ValueError(
                    f"context has shape {tuple(context.shape)}; pass (B, S, {self.context_dim}) with B = {x.shape[0]}"
                )
        elif self.context_dim != self.embed_dim:
            raise ValueError(f"context None: this module was built for a context of width {self.context_dim}")
        if key_mask is not None:
            keys = (x if context is None else context).shape[1]
            if key_mask.dtype != torch.bool:
                raise TypeError(f"key_mask has dtype {key_mask.dtype}; pass booleans, True = attend")
            if key_mask.device != x.device:
                raise ValueError(f"key_mask is on {key_mask.device} but x on {x.device}; move it there")
            if tuple(key_mask.shape) != (x.shape[0], keys):
                raise ValueError(f"key_mask has shape {tuple(key_mask.shape)}; pass (B, S) = ({x.shape[0]}, {keys})")

    def extra_repr(self) -> str:
        heads = f"{self.num_heads} heads of {self.head_dim}"
        if self.num_kv_heads != self.num_heads:
            heads += f" on {self.num_kv_heads} key heads"
        parts = [
            f"{self.embed_dim} wide",
            heads,
            self.attention,
            "causal" if self.is_causal else "bidirectional",
        ]
        if isinstance(self.mechanism, KernelAttention):
            features = self.mechanism.kernel.num_features
            parts.append(f"cost linear in length, state of {self.num_kv_heads} x {features} x {self.head_dim}")
        if self.dropout:
            parts.append(f"dropout={self.dropout:g}")
        return ", ".join(parts)

    @classmethod
    def from_torch(
        cls,
        module: nn.MultiheadAttention,
        attention: str = "flexformer-n",
        is_causal: bool = False,
        **options: Any,
    ) -> MultiheadAttention:
        """The same projections around another attention.

        The result takes (B, T, E) whatever `module.batch_first` was, and masks with True = attend.

        Args:
            module: torch's own module, with `kdim` equal to `vdim` and without `bias_k` or `add_zero_attn`.
            attention: as in the constructor. For "reformer" the query projection also serves as the key's.
            is_causal: as in the constructor.
            **options: as in the constructor.
        """
        if not isinstance(module, nn.MultiheadAttention):
            raise TypeError(f"module is a {type(module).__name__}; pass a torch.nn.MultiheadAttention")
        if module.bias_k is not None or module.add_zero_attn:
            raise ValueError("module has add_bias_kv or add_zero_attn, extra keys that other attentions do not have")
        for option in ("num_kv_heads", "head_dim", "context_dim", "bias", "dropout", "device", "dtype"):
            if option in options:
                raise TypeError(f"option {option!r} comes from the module; leave it out")
        if module.kdim != module.vdim:
            raise ValueError(
                f"module has kdim {module.kdim} and vdim {module.vdim}; keys and values share a context here"
            )
        made = cls(
            module.embed_dim,
            module.num_heads,
            attention,
            is_causal,
            context_dim=module.kdim,
            bias=module.in_proj_bias is not None,
            dropout=module.dropout,
            **options,
        )
        weights = (
            module.in_proj_weight.chunk(3)
            if module.in_proj_weight is not None
            else (module.q_proj_weight, module.k_proj_weight, module.v_proj_weight)
        )
        biases = [None] * 3 if module.in_proj_bias is None else module.in_proj_bias.chunk(3)
        made.to(module.out_proj.weight)
        with torch.no_grad():
            linears = (made.q_proj, made.k_proj, made.v_proj, made.o_proj)
            for linear, weight, bias in zip(
                linears, (*weights, module.out_proj.weight), (*biases, module.out_proj.bias), strict=True
            ):
                if linear is not None:
                    linear.weight.copy_(weight)
                    if bias is not None:
                        linear.bias.copy_(bias)
        return made.train(module.training)
