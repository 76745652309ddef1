"""Random ListOps expressions and their values: pure Python, without torch, for the processes that generate.

A node at depth 1 .. max_depth - 1 is an operator with probability 1/4, else a digit; at max_depth always a
digit. An operator is MIN, MAX, MED or SM with 2 .. max_args arguments. An expression is kept if its length is
strictly between min_length and max_length, counting the operator and its closing bracket as one token each.
"""

from __future__ import annotations

import random
from collections.abc import Callable
from dataclasses import dataclass

import numpy as np

SYMBOLS = (*"0123456789", "[MIN", "[MAX", "[MED", "[SM", "X")  # ids 1 .. 15; 0 is padding, 16 unknown symbols
UNKNOWN = len(SYMBOLS) + 1
VOCAB_SIZE = UNKNOWN + 1
CHUNK = 250

_FIRST_DIGIT = 1
_FIRST_OPERATOR = 1 + SYMBOLS.index("[MIN")
_CLOSE = 1 + SYMBOLS.index("X")
_OPERATOR_SHARE = 0.25
_PATIENCE = 200_000  # rejected expressions in a row; at the published lengths one in twelve is kept


@dataclass(frozen=True)
class TreeSettings:
    """Which expressions are kept and how they are drawn.

    Args:
        min_length: Tokens an expression must exceed.
        max_length: Tokens an expression must stay below.
        max_depth: Depth at which every node is a digit; the root has depth 1.
        max_args: Most arguments of an operator.
        seed: Of the whole set.
    """

    min_length: int = 500
    max_length: int = 2000
    max_depth: int = 10
    max_args: int = 10
    seed: int = 0

    def __post_init__(self) -> None:
        if self.min_length < 0 or self.max_length - self.min_length < 2:
            raise ValueError(
                f"no length is strictly between min_length {self.min_length} and max_length {self.max_length}; "
                "the published ones are 500 and 2000"
            )
        if self.max_depth < 2 or self.max_args < 2:
            raise ValueError(
                f"max_depth {self.max_depth} and max_args {self.max_args} allow no operator; use at least 2 for each"
            )


class _TooLongError(Exception):
    pass


def draw_chunk(settings: TreeSettings, chunk: int) -> list[tuple[bytes, int]]:
    """CHUNK expressions as (token ids, value). The same chunk of the same seed is always the same.

    Only `Random.random` is used: of Python's random functions it alone promises the same numbers in every version.
    """
    uniform = random.Random(f"listops {settings.seed} {chunk}").random
    kept: list[tuple[bytes, int]] = []
    rejected = 0
    while len(kept) < CHUNK:
        tokens = bytearray()
        try:
            value = _node(tokens, uniform, settings)
        except _TooLongError:
            value = -1
        if value >= 0 and settings.min_length < len(tokens) < settings.max_length:
            kept.append((bytes(tokens), value))
            rejected = 0
            continue
        rejected += 1
        if rejected > _PATIENCE:
            raise ValueError(
                f"{_PATIENCE} expressions in a row were not between min_length {settings.min_length} and "
                f"max_length {settings.max_length} with max_depth {settings.max_depth} and max_args "
                f"{settings.max_args}; widen the lengths or allow deeper expressions"
            )
    return kept


def _node(tokens: bytearray, uniform: Callable[[], float], settings: TreeSettings) -> int:
    """Append a root node; return its value."""
    limit, max_depth, counts = settings.max_length, settings.max_depth, settings.max_args - 1
    append = tokens.append

    def digit() -> int:
        value = int(uniform() * 10)
        append(_FIRST_DIGIT + value)
        return value

    def operator(depth: int) -> int:
        start = len(tokens)
        append(0)  # the operator is drawn after its arguments
        count = 2 + int(uniform() * counts)
        if depth + 1 < max_depth:
            values = [operator(depth + 1) if uniform() <= _OPERATOR_SHARE else digit() for _ in range(count)]
        else:
            values = [digit() for _ in range(count)]
        kind = int(uniform() * 4)
        tokens[start] = _FIRST_OPERATOR + kind
        append(_CLOSE)
        if len(tokens) >= limit:
            raise _TooLongError  # rejected anyway: the rest need not be drawn
        return _apply(kind, values)

    return operator(1) if uniform() <= _OPERATOR_SHARE else digit()


def _apply(kind: int, values: list[int]) -> int:
    if kind == 0:
        return min(values)
    if kind == 1:
        return max(values)
    if kind == 2:
        ordered, middle = sorted(values), len(values) // 2
        return ordered[middle] if len(values) % 2 else (ordered[middle - 1] + ordered[middle]) // 2
    return sum(values) % 10


def encode(text: str) -> np.ndarray:
    """Token ids of an expression in the benchmark's notation: parentheses are dropped, "]" and "X" both close.

    >>> encode("( ( ( [MAX 3 ) 4 ) ] )").tolist()
    [12, 4, 5, 15]
    """
    ids = {symbol: i for i, symbol in enumerate(SYMBOLS, start=1)} | {"]": _CLOSE}
    words = text.replace("(", " ").replace(")", " ").split()
    return np.array([ids.get(word, UNKNOWN) for word in words], dtype=np.uint8)


def decode(tokens: np.ndarray) -> str:
    """The expression as text, without parentheses.

    >>> decode(encode("[MAX 3 4 X"))
    '[MAX 3 4 X'
    """
    return " ".join(SYMBOLS[token - 1] if 1 <= token <= len(SYMBOLS) else "?" for token in tokens.tolist())
