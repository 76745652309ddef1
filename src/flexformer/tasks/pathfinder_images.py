"""Whole Pathfinder images: two long contours, short distractors, two discs.

The discs lie on the two ends of one contour (label 1) or on an end of each (label 0).
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from flexformer.tasks.pathfinder_bitmaps import REACH, marker
from flexformer.tasks.pathfinder_contours import WIDTH, Contour, distractor, pairs, paste
from flexformer.tasks.pathfinder_tables import SIZE, tables

CHUNK = 200

_ATTEMPTS = 4096
_PATIENCE = 200  # batches of attempts without a single image
_CONTOUR_CONTRAST = 1.5
_DISTRACTOR_CONTRAST = 2.0
_DISTRACTOR_TRIES = 5
_DISTRACTOR_PADDLES = 20  # in all


@dataclass(frozen=True)
class PathfinderSettings:
    """What the images show.

    Args:
        contour_length: Paddles in each of the two contours: 14 is the benchmark's "hard", 9 "intermediate", 6 "easy".
        seed: Of the whole set.
    """

    contour_length: int = 14
    seed: int = 0

    def __post_init__(self) -> None:
        if not 3 <= self.contour_length <= 18:
            raise ValueError(
                f"contour_length {self.contour_length} is not in 3..18: shorter ones have no distractors, longer ones "
                "hardly ever fit; the benchmark has 14"
            )

    @property
    def distractor_length(self) -> int:
        return self.contour_length // 3

    @property
    def num_distractors(self) -> int:
        return _DISTRACTOR_PADDLES // self.distractor_length


@dataclass(frozen=True)
class Scenes:
    """A chunk of images with what is known about them.

    Args:
        images: (N, 32, 32) uint8.
        labels: (N,) uint8, 1 where one contour joins the discs.
        markers: (N, 2, 2) uint8, where the discs are, (y, x).
        distractors: (N,) uint8, how many distractors found room.
    """

    images: np.ndarray
    labels: np.ndarray
    markers: np.ndarray
    distractors: np.ndarray


def draw_chunk(settings: PathfinderSettings, chunk: int, count: int = CHUNK) -> Scenes:
    """`count` images. The same chunk of the same seed is always the same."""
    rng = np.random.Generator(np.random.PCG64([settings.seed, chunk]))
    maps, first, second = _targets(rng, settings, count)
    canvas = np.zeros((count, WIDTH, WIDTH))
    everyone = np.arange(count)
    for contour in (first, second):
        _draw(canvas, everyone, contour, _CONTOUR_CONTRAST)
    placed = _add_distractors(rng, settings, maps, canvas)
    image = canvas[:, REACH:-REACH, REACH:-REACH]
    labels, ends = _choose_ends(rng, first, second)
    for row, places in zip(image, ends, strict=True):
        for y, x in places:
            np.maximum(row, marker(int(y), int(x), SIZE) / 255, out=row)
    return Scenes(_to_bytes(image), labels.astype(np.uint8), ends.astype(np.uint8), placed.astype(np.uint8))


def _targets(rng: np.random.Generator, settings: PathfinderSettings, count: int) -> tuple[np.ndarray, Contour, Contour]:
    found: list[tuple[np.ndarray, Contour, Contour]] = []
    total = 0
    for _ in range(_PATIENCE * count):
        batch = pairs(rng, _ATTEMPTS, settings.contour_length)
        found.append(batch)
        total += len(batch[0])
        if total >= count:
            break
        if total == 0 and len(found) >= _PATIENCE:
            raise ValueError(f"contour_length {settings.contour_length} hardly ever fits; use a shorter one")
    maps = np.concatenate([batch[0] for batch in found])[:count]
    return maps, _join([batch[1] for batch in found], count), _join([batch[2] for batch in found], count)


def _join(contours: list[Contour], count: int) -> Contour:
    return Contour(
        np.concatenate([contour.directions for contour in contours])[:count],
        np.concatenate([contour.starts for contour in contours])[:count],
        np.concatenate([contour.pivot for contour in contours])[:count],
    )


def _add_distractors(
    rng: np.random.Generator, settings: PathfinderSettings, maps: np.ndarray, canvas: np.ndarray
) -> np.ndarray:
    placed = np.zeros(len(maps), np.int64)
    for _ in range(settings.num_distractors):
        waiting = np.arange(len(maps))
        for _ in range(_DISTRACTOR_TRIES):
            where, grown, contour = distractor(rng, maps[waiting], settings.distractor_length)
            rows = waiting[where]
            maps[rows] = grown
            _draw(canvas, rows, contour, _DISTRACTOR_CONTRAST)
            placed[rows] += 1
            waiting = np.setdiff1d(waiting, rows)
    return placed


def _draw(canvas: np.ndarray, rows: np.ndarray, contour: Contour, contrast: float) -> None:
    pixels = canvas[rows]
    lines = tables().lines
    for paddle in range(contour.directions.shape[1]):
        strength = lines[contour.directions[:, paddle]] / 255 * contrast
        paste(pixels, strength, contour.starts[:, paddle] + REACH)
    canvas[rows] = pixels


def _choose_ends(rng: np.random.Generator, first: Contour, second: Contour) -> tuple[np.ndarray, np.ndarray]:
    count = len(first.origin)
    labels = rng.random(count) < 0.5
    start = (rng.random(count) * 2).astype(np.int64)
    end = np.where(labels, start, 1 - start)
    each = np.arange(count)
    origins, terminals = np.stack([first.origin, second.origin], 1), np.stack([first.end, second.end], 1)
    return labels, np.stack([origins[each, start], terminals[each, end]], axis=1)


def _to_bytes(images: np.ndarray) -> np.ndarray:
    """Each image stretched to 0 .. 255, as the original saves it."""
    low, high = images.min(axis=(1, 2), keepdims=True), images.max(axis=(1, 2), keepdims=True)
    return ((images - low) * (255 / (high - low)) + 0.5).astype(np.uint8)
