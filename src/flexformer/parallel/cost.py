"""What a divided sequence costs: bytes on the way and seconds, for our states and for ring attention.

Per attention layer, forward and backward, for the rank that sends most. P ranks, N tokens in all, H heads of width D
with F features, e bytes to a number.

    state       s = e B H (F (D + 1) + 1), and e B H more for its largest log-weight
    whole       2 (P - 1) / P (2 s + e B H)            two all-reduces, one of them with the maxima
    causal      2 (1 + ceil(log2(P - 1))) (s + e B H)  at most: to the next rank, then by doubling; the same way back
    ring        6 (P - 1) e B H D N / P                keys and values forward, both again and their gradients backward

The first two do not depend on N. Seconds are those of computing, c N / P for linear attention and c N^2 / P for softmax
(half of it causal, if the ring is balanced), plus bytes over bandwidth, plus a latency for each round of messages.
"""

from __future__ import annotations

import math
from dataclasses import dataclass

RING_FORWARD, RING_BACKWARD = 2, 4  # tensors of N / P tokens that travel on every hop


@dataclass(frozen=True)
class Shape:
    """What attention is computed on, besides the length."""

    heads: int
    dim: int
    features: int
    batch: int = 1
    element: int = 4
    """bytes of a number"""

    @property
    def maxima(self) -> int:
        """Bytes of the largest log-weights."""
        return self.element * self.batch * self.heads

    @property
    def state(self) -> int:
        """Bytes of the sums of a state."""
        return self.maxima * (self.features * (self.dim + 1) + 1)

    @property
    def token(self) -> int:
        """Bytes of one token's keys, or values."""
        return self.maxima * self.dim


@dataclass(frozen=True)
class Speeds:
    """How fast ranks and what is between them are.

    Args:
        per_token: seconds to compute linear attention, for each token.
        per_pair: seconds to compute softmax attention, for each pair of a query and a key.
        bandwidth: bytes a second that a rank can send.
        latency: seconds of a round of messages, however small.
    """

    per_token: float
    per_pair: float
    bandwidth: float
    latency: float


def rounds(ranks: int, is_causal: bool) -> int:
    """Exchanges one after the other, forward and backward together."""
    if ranks == 1:
        return 0
    if is_causal:
        return 2 * (1 + math.ceil(math.log2(ranks - 1)))
    # Halving and doubling, as NCCL and MPI reduce messages of this size; gloo's ring takes P - 1 steps instead.
    return 3 * 2 * math.ceil(math.log2(ranks))


def causal_messages(rank: int, ranks: int) -> int:
    """States that one rank sends, forward and backward: to its neighbour, then at distances 1, 2, 4 ..."""
    distances = [1 << i for i in range(max(ranks - 2, 0).bit_length())]
    forward = (rank < ranks - 1) + sum(rank >= 1 and rank + distance < ranks for distance in distances)
    backward = (rank >= 1) + sum(rank - distance >= 1 for distance in distances)
    return forward + backward


def bytes_sent(shape: Shape, ranks: int, is_causal: bool) -> int:
    """By the rank that sends most, forward and backward, whatever the length."""
    if ranks == 1:
        return 0
    if is_causal:
        return max(causal_messages(rank, ranks) for rank in range(ranks)) * (shape.state + shape.maxima)
    reduced = (shape.maxima, shape.state, shape.state)
    return sum(2 * size * (ranks - 1) // ranks for size in reduced)


def ring_bytes_sent(shape: Shape, ranks: int, length: int, tensors: int = RING_FORWARD + RING_BACKWARD) -> int:
    """By each rank of ring attention."""
    return tensors * (ranks - 1) * shape.token * length // ranks


def seconds(shape: Shape, speeds: Speeds, ranks: int, length: int, is_causal: bool) -> float:
    """Of our attention, forward and backward."""
    exchanged = bytes_sent(shape, ranks, is_causal) / speeds.bandwidth + rounds(ranks, is_causal) * speeds.latency
    return speeds.per_token * length / ranks + exchanged


def ring_seconds(shape: Shape, speeds: Speeds, ranks: int, length: int, is_causal: bool) -> float:
    """Of ring attention, forward and backward, without overlap as ours."""
    pairs = length**2 / ranks / (2 if is_causal else 1)
    hops = 2 * (ranks - 1)
    sent = ring_bytes_sent(shape, ranks, length)
    return speeds.per_pair * pairs + sent / speeds.bandwidth + hops * speeds.latency
