"""Sequences of different lengths in one flat array."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass

import numpy as np


@dataclass(frozen=True)
class Ragged:
    """Sequence i is flat[offsets[i] : offsets[i + 1]].

    Args:
        flat: All sequences one after the other, uint8.
        offsets: (N + 1,) int64, from 0 to len(flat).
    """

    flat: np.ndarray
    offsets: np.ndarray

    @classmethod
    def join(cls, sequences: Iterable[bytes]) -> Ragged:
        parts = list(sequences)
        offsets = np.zeros(len(parts) + 1, np.int64)
        np.cumsum([len(part) for part in parts], out=offsets[1:])
        return cls(np.frombuffer(b"".join(parts), np.uint8), offsets)

    def __len__(self) -> int:
        return len(self.offsets) - 1

    def __getitem__(self, index: int) -> np.ndarray:
        if not 0 <= index < len(self):
            raise IndexError(f"sequence {index} of {len(self)}")
        sequence: np.ndarray = self.flat[self.offsets[index] : self.offsets[index + 1]]
        return sequence

    @property
    def lengths(self) -> np.ndarray:
        return np.diff(self.offsets)


@dataclass(frozen=True)
class Selection:
    """Some of the sequences, in the given order.

    Args:
        sequences: Where they come from.
        indices: Which ones.
    """

    sequences: Ragged
    indices: np.ndarray

    def __len__(self) -> int:
        return len(self.indices)

    def __getitem__(self, index: int) -> np.ndarray:
        return self.sequences[int(self.indices[index])]
