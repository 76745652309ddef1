"""Pathfinder: are the two discs joined by a dashed line?"""

from __future__ import annotations

import functools
import os
from dataclasses import asdict

import numpy as np

from flexformer.tasks.base import Examples, Padding, Split
from flexformer.tasks.generated import GeneratedTask
from flexformer.tasks.parallel import ordered_map
from flexformer.tasks.pathfinder_images import CHUNK, PathfinderSettings, draw_chunk
from flexformer.tasks.progress import Progress


class Pathfinder(GeneratedTask):
    """Images of 32 x 32 pixels read row by row as 1024 tokens; the label is 1 if one contour joins the discs.

    Args:
        root: The folder data lives in; default $FLEXFORMER_DATA, else ~/.cache/flexformer/data.
        train: Images to train on.
        validation: Images to validate with.
        test: Images to test with.
        contour_length: Dashes in each long contour: 14 is the benchmark's "hard", 9 "intermediate", 6 "easy".
        seed: Of the set.
        lra_pixel_mask: As the original code has it: pixel values are token ids, so black counts as padding.
        pad_to: Without effect: all images are of one size.
    """

    name = "pathfinder"
    title = "Pathfinder"
    num_classes = 2
    paper_length = 1024
    version = 1
    question = "Are the two discs joined by one contour?"
    origin = "generated here, after the algorithm of the benchmark (32 x 32, hard)"

    def __init__(
        self,
        root: str | os.PathLike[str] | None = None,
        *,
        train: int = 160_000,
        validation: int = 20_000,
        test: int = 20_000,
        contour_length: int = 14,
        seed: int = 0,
        lra_pixel_mask: bool = False,
        pad_to: Padding = "longest",
    ) -> None:
        self.scenes = PathfinderSettings(contour_length, seed)
        self.lra_pixel_mask = lra_pixel_mask
        self.vocab_size = 256 if lra_pixel_mask else 257
        super().__init__(
            root,
            sizes=(train, validation, test),
            settings=asdict(self.scenes),
            label=f"contour-{contour_length}-seed-{seed}",
            max_length=self.paper_length,
            pad_to=pad_to,
        )

    def generate(self, total: int, progress: Progress, workers: int | None) -> dict[str, np.ndarray]:
        chunks = range(-(-total // CHUNK))
        if len(chunks) <= 2:
            workers = 1  # starting processes would take longer
        images = np.empty((total, 32, 32), np.uint8)
        labels = np.empty(total, np.uint8)
        for i, scenes in enumerate(ordered_map(functools.partial(draw_chunk, self.scenes), chunks, workers)):
            rows = slice(i * CHUNK, min((i + 1) * CHUNK, total))
            images[rows] = scenes.images[: rows.stop - rows.start]
            labels[rows] = scenes.labels[: rows.stop - rows.start]
            progress(rows.stop, total)
        return {"images": images, "labels": labels}

    def pack(self, arrays: dict[str, np.ndarray], rows: slice) -> dict[str, np.ndarray]:
        return {name: array[rows] for name, array in arrays.items()}

    def examples(self, split: Split) -> Examples:
        images = self.load(split, "images")
        return Examples((images.reshape(len(images), -1),), self.load(split, "labels"), 0 if self.lra_pixel_mask else 1)

    def layout(self) -> tuple[str, ...]:
        return (f"{self.name}/{self.cache.folder.name}/",)

    def notes(self) -> tuple[str, ...]:
        notes: tuple[str, ...] = ("drawn afresh from a seed, by the algorithm of the original code",)
        if self.lra_pixel_mask:
            notes += ("black pixels are masked like padding, as in the original code",)
        else:
            notes += ("token id = pixel + 1, so that black is not padding; lra_pixel_mask brings the original back",)
        if self.scenes.contour_length != 14:
            notes += ("not the benchmark's contour length: results cannot be compared with the paper's",)
        return notes

    def _check_cut(self, length: int) -> None:
        raise ValueError(f"max_length {length} would cut images of 1024 pixels; pathfinder has no shorter form")
