"""The small bitmaps Pathfinder images are made of: dashes ("paddles"), the room they need, discs.

Drawn at twice the size and reduced with a Lanczos filter on 8-bit pixels, as the original does through Pillow;
the arithmetic is Pillow's own fixed-point one, written out so that the bytes do not depend on its version.
Coordinates are (y, x), angles turn from x towards y.
"""

from __future__ import annotations

import functools
import math

import numpy as np

LENGTH = 2  # of a paddle, in pixels
MARGIN = 1
SCALE = 2  # of the drawing before it is reduced
REACH = LENGTH + 1 + MARGIN  # a paddle's bitmap reaches so far around its start
MARKER_RADIUS = 1.5

_LANCZOS = 3
_PRECISION = 22  # bits of Pillow's filter coefficients


def move(place: tuple[int, int], angle: float, distance: float) -> tuple[int, int]:
    """From a pixel (y, x) along `angle`, each coordinate rounded up.

    The sum is rounded, not the step, because the original does it so: at small coordinates a sine that should be
    zero and is 1e-16 makes a difference of one pixel.
    """
    return math.ceil(place[0] + distance * math.sin(angle)), math.ceil(place[1] + distance * math.cos(angle))


def paddle(angle: float) -> tuple[np.ndarray, np.ndarray]:
    """A paddle that starts in the middle and points along `angle`: its pixels and the room it needs, 9 x 9 uint8."""
    centre = REACH * SCALE
    drawn = np.zeros((2 * centre + 1, 2 * centre + 1), np.uint8)
    for y, x in line((centre, centre), move((centre, centre), angle, LENGTH * SCALE)):
        drawn[y, x] = 255
    room = dilate(drawn, disc(MARGIN * SCALE))
    return reduce(drawn, 2 * REACH + 1), reduce(room, 2 * REACH + 1)


def marker(y: int, x: int, size: int) -> np.ndarray:
    """A disc around pixel (y, x) of a size x size image, uint8."""
    rows = np.arange(size * SCALE)[:, None] - y * SCALE
    columns = np.arange(size * SCALE)[None, :] - x * SCALE
    drawn = np.where(rows**2 + columns**2 <= (MARKER_RADIUS * SCALE) ** 2, 255, 0).astype(np.uint8)
    return reduce(drawn, size)


def disc(radius: int) -> np.ndarray:
    """Offsets (n, 2) within `radius` of the origin."""
    span = range(-radius, radius + 1)
    return np.array([(y, x) for y in span for x in span if y * y + x * x <= radius * radius])


def dilate(image: np.ndarray, offsets: np.ndarray) -> np.ndarray:
    """Every pixel becomes the largest among those at `offsets` from it; there is nothing outside the image."""
    height, width = image.shape
    result = np.zeros_like(image)
    for dy, dx in offsets.tolist():
        target = result[max(0, -dy) : height - max(0, dy), max(0, -dx) : width - max(0, dx)]
        source = image[max(0, dy) : height - max(0, -dy), max(0, dx) : width - max(0, -dx)]
        np.maximum(target, source, out=target)
    return result


def line(start: tuple[int, int], end: tuple[int, int]) -> list[tuple[int, int]]:
    """The pixels of a line one pixel wide, both ends included."""
    (y, x), (dy, dx) = start, (end[0] - start[0], end[1] - start[1])
    sy, sx, dy, dx = (1 if dy >= 0 else -1), (1 if dx >= 0 else -1), abs(dy), abs(dx)
    steep = dy >= dx
    long, short = (dy, dx) if steep else (dx, dy)
    error = 2 * short - long
    pixels = []
    for _ in range(long + 1):
        pixels.append((y, x))
        if error >= 0:
            y, x = (y, x + sx) if steep else (y + sy, x)
            error -= 2 * long
        error += 2 * short
        y, x = (y + sy, x) if steep else (y, x + sx)
    return pixels


def reduce(image: np.ndarray, size: int) -> np.ndarray:
    """A square uint8 image reduced to size x size: rows first, rounded to 8 bits, then columns."""
    weights = _weights(len(image), size)
    rows = _round(image.astype(np.int64) @ weights.T)
    return _round(weights @ rows.astype(np.int64))


def _round(sums: np.ndarray) -> np.ndarray:
    return np.clip((sums + (1 << (_PRECISION - 1))) >> _PRECISION, 0, 255).astype(np.uint8)


@functools.cache
def _weights(size: int, reduced: int) -> np.ndarray:
    """Filter coefficients (reduced, size) in units of 2^-22."""
    scale = size / reduced
    support = _LANCZOS * scale
    weights = np.zeros((reduced, size), np.int64)
    for i in range(reduced):
        centre = (i + 0.5) * scale
        first, last = max(0, int(centre - support + 0.5)), min(size, int(centre + support + 0.5))
        row = [_lanczos((j - centre + 0.5) / scale) for j in range(first, last)]
        total = sum(row)
        weights[i, first:last] = [math.trunc(math.copysign(0.5, w) + w / total * (1 << _PRECISION)) for w in row]
    return weights


def _lanczos(x: float) -> float:
    return _sinc(x) * _sinc(x / _LANCZOS) if -_LANCZOS <= x < _LANCZOS else 0.0


def _sinc(x: float) -> float:
    return 1.0 if x == 0 else math.sin(math.pi * x) / (math.pi * x)
