"""What the generated tasks share: sizes, a cache on disk, a command that fills it."""

from __future__ import annotations

import abc
import os
from pathlib import Path
from typing import Any

import numpy as np

from flexformer.tasks.base import SPLITS, Padding, Split, Task
from flexformer.tasks.cache import ArrayCache
from flexformer.tasks.progress import Progress, silent


class GeneratedTask(Task):
    """A task whose data `prepare` makes, once, and keeps in `root/<name>/`.

    Args:
        root: The folder data lives in; default $FLEXFORMER_DATA, else ~/.cache/flexformer/data.
        sizes: Examples to train on, validate with and test with.
        settings: All else the data depends on.
        label: Beginning of the name of the folder in the cache.
        max_length: Longest sequence.
        pad_to: Batches are padded to their longest sequence, or all to max_length.
    """

    generated = True
    version: int  # of the generator: raised when the same settings give other bytes

    def __init__(
        self,
        root: str | os.PathLike[str] | None,
        *,
        sizes: tuple[int, int, int],
        settings: dict[str, Any],
        label: str,
        max_length: int,
        pad_to: Padding,
    ) -> None:
        super().__init__(root, max_length=max_length, pad_to=pad_to)
        for split, size in zip(SPLITS, sizes, strict=True):
            if size < 1:
                raise ValueError(f"{split} {size} leaves no examples; use 1 or more")
        self.sizes = dict(zip(SPLITS, sizes, strict=True))
        self.settings = {"generator": self.name, "version": self.version, "sizes": list(sizes), **settings}
        remedy = f"run `flexformer data prepare {self.name} --root {self.root}` with the same options"
        self.cache = ArrayCache(self.root / self.name, label, self.settings, remedy)

    @abc.abstractmethod
    def generate(self, total: int, progress: Progress, workers: int | None) -> dict[str, np.ndarray]:
        """Arrays whose first axis has all examples, train first, then validation, then test."""

    @abc.abstractmethod
    def pack(self, arrays: dict[str, np.ndarray], rows: slice) -> dict[str, np.ndarray]:
        """The part of the generated arrays that is one split."""

    def prepare(self, progress: Progress = silent, *, workers: int | None = None) -> None:
        if self.cache.exists():
            self.cache.verify()
            return
        total = sum(self.sizes.values())
        arrays = self.generate(total, progress, workers)
        files: dict[str, np.ndarray] = {}
        start = 0
        for split in SPLITS:
            rows = slice(start, start + self.sizes[split])
            files |= {f"{split}.{name}": array for name, array in self.pack(arrays, rows).items()}
            start = rows.stop
        self.cache.write(files)

    def files(self) -> tuple[Path, ...]:
        return self.cache.files()

    def load(self, split: Split, name: str) -> np.ndarray:
        """One array of the cache, its checksum compared."""
        return self.cache.load(f"{split}.{name}")
