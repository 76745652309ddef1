"""Long ListOps: the value of a nested expression of 500 to 2000 tokens."""

from __future__ import annotations

import functools
import itertools
import os
from dataclasses import asdict

import numpy as np

from flexformer.tasks.arrays import Ragged
from flexformer.tasks.base import Examples, Padding, Split
from flexformer.tasks.generated import GeneratedTask
from flexformer.tasks.listops_trees import CHUNK, VOCAB_SIZE, TreeSettings, draw_chunk
from flexformer.tasks.parallel import ordered_map
from flexformer.tasks.progress import Progress

_PATIENCE = 20  # chunks without anything new


class ListOps(GeneratedTask):
    """Expressions of MIN, MAX, MED and SM over digits; the label is the value, 0 to 9.

    Args:
        root: The folder data lives in; default $FLEXFORMER_DATA, else ~/.cache/flexformer/data.
        train: Examples to train on.
        validation: Examples to validate with.
        test: Examples to test with.
        min_length: Tokens an expression must exceed; the benchmark's 500.
        max_length: Tokens an expression must stay below; the benchmark's 2000.
        max_depth: Depth at which every node is a digit.
        max_args: Most arguments of an operator.
        seed: Of the set.
        pad_to: Batches are padded to their longest sequence, or all to max_length.
    """

    name = "listops"
    title = "ListOps"
    num_classes = 10
    paper_length = 2000
    vocab_size = VOCAB_SIZE
    version = 1
    question = "What is the value of this expression?"
    origin = "generated here, after the algorithm of the benchmark"

    def __init__(
        self,
        root: str | os.PathLike[str] | None = None,
        *,
        train: int = 96_000,
        validation: int = 2_000,
        test: int = 2_000,
        min_length: int = 500,
        max_length: int = 2000,
        max_depth: int = 10,
        max_args: int = 10,
        seed: int = 0,
        pad_to: Padding = "longest",
    ) -> None:
        self.trees = TreeSettings(min_length, max_length, max_depth, max_args, seed)
        super().__init__(
            root,
            sizes=(train, validation, test),
            settings=asdict(self.trees),
            label=f"length-{min_length}-{max_length}-seed-{seed}",
            max_length=max_length,
            pad_to=pad_to,
        )

    def generate(self, total: int, progress: Progress, workers: int | None) -> dict[str, np.ndarray]:
        """Distinct expressions, in the order in which they were drawn."""
        if total <= 2 * CHUNK:
            workers = 1  # starting processes would take longer
        chunks = ordered_map(functools.partial(draw_chunk, self.trees), itertools.count(), workers)
        kept: dict[bytes, int] = {}
        stale = 0
        for chunk in chunks:
            before = len(kept)
            kept.update(chunk)
            progress(min(len(kept), total), total)
            if len(kept) >= total:
                break
            stale = stale + 1 if len(kept) == before else 0
            if stale == _PATIENCE:
                raise ValueError(f"there are only {before} distinct expressions, not {total}; widen the lengths")
        chunks.close()
        expressions = Ragged.join(itertools.islice(kept, total))
        labels = np.fromiter(itertools.islice(kept.values(), total), np.uint8)
        return {"tokens": expressions.flat, "offsets": expressions.offsets, "labels": labels}

    def pack(self, arrays: dict[str, np.ndarray], rows: slice) -> dict[str, np.ndarray]:
        offsets = arrays["offsets"][rows.start : rows.stop + 1]
        return {
            "tokens": arrays["tokens"][offsets[0] : offsets[-1]],
            "offsets": offsets - offsets[0],
            "labels": arrays["labels"][rows],
        }

    def examples(self, split: Split) -> Examples:
        tokens = Ragged(self.load(split, "tokens"), self.load(split, "offsets"))
        return Examples((tokens,), self.load(split, "labels"), shift=0)

    def layout(self) -> tuple[str, ...]:
        return (f"{self.name}/{self.cache.folder.name}/",)

    def notes(self) -> tuple[str, ...]:
        notes = (
            "drawn afresh from a seed: the released files date from a generator that miscounted lengths",
            "expressions cannot be cut; shorter ones are drawn with min_length and max_length",
        )
        if self.trees == TreeSettings(seed=self.trees.seed):
            return notes
        return (*notes, "not the benchmark's lengths: results cannot be compared with the paper's")

    def _check_cut(self, length: int) -> None:
        raise ValueError(
            f"max_length {length} would cut expressions, which then have no value; build listops with "
            f"max_length={length} and a smaller min_length instead"
        )
