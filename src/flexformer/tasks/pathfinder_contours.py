"""Contours grown paddle by paddle, thousands of attempts at a time.

Every attempt has an occupancy map: the border, and the room of each paddle but the last of every contour. A
contour grows from a pivot: one of the pixels around it becomes the next head, more likely where it is free and
straight ahead, and the paddle is drawn from there backwards. It is accepted if its room and the occupancy add up
to less than 1.8 everywhere.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from flexformer.tasks.pathfinder_bitmaps import REACH
from flexformer.tasks.pathfinder_tables import (
    DEAD_END,
    FREE,
    FULL,
    SIZE,
    Tables,
    blocked_near,
    first_seeds,
    follow,
    tables,
)

WIDTH = SIZE + 2 * REACH  # maps have a margin, in which nothing counts, so that bitmaps may overhang
PADDLE_TRIES = 3

_PATCH = np.arange(-REACH, REACH + 1)
_CROSS = ((0, 0), (-1, 0), (1, 0), (0, -1), (0, 1))  # a disc of radius 1


@dataclass
class Contour:
    """One contour in each of A attempts.

    Args:
        directions: (A, P) numbers of the directions of its paddles, as `Tables` counts them.
        starts: (A, P, 2) where the bitmap of each paddle is centred.
        pivot: (A, 2) of the last paddle.
    """

    directions: np.ndarray
    starts: np.ndarray
    pivot: np.ndarray

    @property
    def origin(self) -> np.ndarray:
        """The tail of the first paddle (A, 2)."""
        return self.starts[:, 0]

    @property
    def end(self) -> np.ndarray:
        """The head of the last paddle (A, 2)."""
        return self.starts[:, -1]

    def keep(self, chosen: np.ndarray) -> Contour:
        return Contour(self.directions[chosen], self.starts[chosen], self.pivot[chosen])

    def extend(self, direction: np.ndarray, start: np.ndarray, pivot: np.ndarray) -> Contour:
        return Contour(
            np.concatenate([self.directions, direction[:, None]], axis=1),
            np.concatenate([self.starts, start[:, None]], axis=1),
            pivot,
        )


def empty_maps(count: int) -> np.ndarray:
    """Occupancy (count, WIDTH, WIDTH) uint8 of images with nothing but a border one pixel wide."""
    maps = np.zeros((count, WIDTH, WIDTH), np.uint8)
    inside = maps[:, REACH:-REACH, REACH:-REACH]
    inside[:] = FULL
    inside[:, 1:-1, 1:-1] = 0
    return maps


def pairs(rng: np.random.Generator, attempts: int, length: int) -> tuple[np.ndarray, Contour, Contour]:
    """Attempts at two contours of `length` paddles, growing in turns; those that succeed.

    Returns:
        Occupancy maps, the first contours and the second ones.
    """
    first, second = _seed_pair(rng, attempts)
    maps = empty_maps(attempts)
    for _ in range(length - 1):
        chosen, maps, first = _grow(rng, maps, first)
        chosen, maps, second = _grow(rng, maps, second.keep(chosen))
        first = first.keep(chosen)
    occupy(maps, second, -1)  # and not the first's: the original forgets it
    return maps, first, second


def distractor(rng: np.random.Generator, maps: np.ndarray, length: int) -> tuple[np.ndarray, np.ndarray, Contour]:
    """One try at a further contour of `length` paddles in each map; maps are left as they were.

    Returns:
        (S,) the indices of maps where it succeeded, these maps (S, WIDTH, WIDTH) with it, the contours.
    """
    where, contour = _seed_anywhere(rng, maps)
    grown = maps[where]
    for _ in range(length - 1):
        chosen, grown, contour = _grow(rng, grown, contour)
        where = where[chosen]
    occupy(grown, contour, -1)
    return where, grown, contour


def occupy(maps: np.ndarray, contour: Contour, paddle: int) -> None:
    """Add the room of one paddle of each contour to its map."""
    starts = contour.starts[:, paddle] + REACH
    paste(maps, tables().rooms[contour.directions[:, paddle]], starts)


def paste(canvas: np.ndarray, bitmaps: np.ndarray, centres: np.ndarray) -> None:
    """Pixelwise maximum of each canvas (B, H, W) and its bitmap (B, 9, 9) centred at (B, 2)."""
    index = (
        np.arange(len(canvas))[:, None, None],
        centres[:, 0, None, None] + _PATCH[:, None],
        centres[:, 1, None, None] + _PATCH[None, :],
    )
    canvas[index] = np.maximum(canvas[index], bitmaps)


def _seed_pair(rng: np.random.Generator, attempts: int) -> tuple[Contour, Contour]:
    table = tables()
    seeds = first_seeds()
    # First a degree among those that allow any tail, then a tail: rows weigh one over the tails of their degree.
    shares = np.cumsum(1 / seeds[:, 3])
    rows = seeds[np.searchsorted(shares, rng.random(attempts) * shares[-1], side="right").clip(max=len(seeds) - 1)]
    first = _first_paddle(rows[:, 0], rows[:, 1:3])
    directions, around = _integers(rng, 360, attempts), _integers(rng, 360, attempts)
    tails = np.rint(rows[:, 1:3] + table.partners[around]).astype(np.int64)
    return first, _first_paddle(directions, tails)  # 7 pixels from the middle nothing is out of bounds


def _seed_anywhere(rng: np.random.Generator, maps: np.ndarray) -> tuple[np.ndarray, Contour]:
    """A first paddle somewhere free: the indices of maps that have room for it, and the paddles."""
    table = tables()
    blocked = maps[:, REACH:-REACH, REACH:-REACH] > FREE
    roomy = (~blocked).sum(axis=(1, 2)) >= 0.01 * SIZE * SIZE
    waiting = np.flatnonzero(roomy)
    found, directions, tails = [], [], []
    for _ in range(PADDLE_TRIES):
        direction = _integers(rng, 360, len(waiting))
        free = ~blocked_near(blocked[waiting], table.structs[direction])
        count = np.where(table.usable[direction], free.sum(axis=(1, 2)), 0)
        chosen = np.floor(rng.random(len(waiting)) * count)
        order = np.cumsum(free.reshape(len(waiting), SIZE * SIZE), axis=1)
        flat = np.argmax(order > chosen[:, None], axis=1)
        tail = np.stack(np.divmod(flat, SIZE), axis=1)
        head = follow(table.heads, direction, tail)
        ends = np.stack([head, follow(table.pivots, direction, head)], axis=1)
        inside = ((ends >= 0) & (ends < SIZE)).all(axis=(1, 2))
        good = (count > 0) & inside
        found.append(waiting[good])
        directions.append(direction[good])
        tails.append(tail[good])
        waiting = waiting[(count > 0) & ~inside]  # with no room at all there is no second try
    contour = _first_paddle(np.concatenate(directions), np.concatenate(tails))
    return np.concatenate(found), contour


def _first_paddle(directions: np.ndarray, tails: np.ndarray) -> Contour:
    table = tables()
    pivots = follow(table.pivots, directions, follow(table.heads, directions, tails))
    return Contour(directions[:, None], tails[:, None], pivots)


def _grow(rng: np.random.Generator, maps: np.ndarray, contour: Contour) -> tuple[np.ndarray, np.ndarray, Contour]:
    """One more paddle: (indices of the attempts that go on, their maps, their contours)."""
    chosen, direction, head, pivot = _next_paddle(rng, maps, contour)
    maps, contour = maps[chosen], contour.keep(chosen)
    occupy(maps, contour, -1)  # only now: a paddle may touch the one before it
    return chosen, maps, contour.extend(direction, head, pivot)


def _next_paddle(
    rng: np.random.Generator, maps: np.ndarray, contour: Contour
) -> tuple[np.ndarray, np.ndarray, np.ndarray, np.ndarray]:
    """Where the contours can go on: (indices, direction, head, pivot) of those that can."""
    table = tables()
    last = contour.directions[:, -1]
    pivot = follow(table.steps, last, contour.pivot)
    # Outside the image means on its border, which is occupied.
    pixels = (pivot[:, None] + table.candidates).clip(0, SIZE - 1)
    weights = table.weights[last] * (FULL - _occupancy_around(maps, pixels))
    sums = np.cumsum(weights, axis=1)
    waiting = np.flatnonzero(sums[:, -1] >= DEAD_END)
    choice = np.full(len(maps), -1)
    for _ in range(PADDLE_TRIES):
        drawn = np.floor(rng.random(len(waiting)) * sums[waiting, -1])
        candidate = np.argmax(sums[waiting] > drawn[:, None], axis=1)
        fits = ~_collides(maps, waiting, pixels[waiting, candidate], candidate + 360, table)
        choice[waiting[fits]] = candidate[fits]
        waiting = waiting[~fits]
    chosen = np.flatnonzero(choice >= 0)
    candidate = choice[chosen]
    return chosen, candidate + 360, pixels[chosen, candidate], pivot[chosen]


def _occupancy_around(maps: np.ndarray, pixels: np.ndarray) -> np.ndarray:
    """The largest occupancy within one pixel of each pixel: (A, C, 2) -> (A, C) int64."""
    flat = maps.reshape(-1)
    index = (np.arange(len(maps)) * WIDTH * WIDTH)[:, None] + (pixels[..., 0] + REACH) * WIDTH + pixels[..., 1] + REACH
    around = flat[index]
    for dy, dx in _CROSS[1:]:
        np.maximum(around, flat[index + (dy * WIDTH + dx)], out=around)
    return around.astype(np.int64)


def _collides(
    maps: np.ndarray, rows: np.ndarray, heads: np.ndarray, directions: np.ndarray, table: Tables
) -> np.ndarray:
    places = heads[:, None] + table.solid[directions] + REACH
    occupancy = maps[rows[:, None], places[..., 0], places[..., 1]]
    collides: np.ndarray = (occupancy >= table.limits[directions]).any(axis=1)
    return collides


def _integers(rng: np.random.Generator, below: int, count: int) -> np.ndarray:
    # Only `random` is used: how numpy makes integers may change from version to version.
    return (rng.random(count) * below).astype(np.int64)
