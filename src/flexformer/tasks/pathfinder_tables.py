"""Everything about paddles that depends on their direction alone, computed once.

A paddle of a contour points either in one of 360 whole degrees (the first one) or from a pivot to one of the
pixels around it (all others). `Tables` numbers these directions: first the degrees, then the pixels, the
"candidates". All tables are integer, so that nothing depends on the order of floating-point sums.
"""

from __future__ import annotations

import functools
import math
from dataclasses import dataclass

import numpy as np

from flexformer.tasks.pathfinder_bitmaps import LENGTH, MARGIN, REACH, move, paddle

SIZE = 32
FULL = 255  # occupancy, and the strength of a bitmap, in units of 1/255
TOO_CLOSE = 459  # two occupancies add up to at least 1.8
FREE = 76  # at most 0.3
UNIT = 1 << 18  # of the weights of candidates
DEAD_END = int(1e-4 * FULL * UNIT)

_SEED_DISTANCE = 7
_RADIUS = LENGTH + MARGIN
_OFFSET = 16  # pivots may lie outside the image


@dataclass(frozen=True)
class Tables:
    """Per direction d of D = 360 + C, or per candidate c of C.

    Args:
        steps: (D, 2, 64) from a pivot to the next: coordinate p of axis a leads to steps[d, a, p + 16].
        candidates: (C, 2) pixels around a pivot, a circle of radius 3, in the order of reading.
        weights: (D, C) preference for candidate c after direction d, in units of 2^-18: cos^2 of the turn.
        lines: (D, 9, 9) the paddle's pixels, uint8. A degree's paddle points forward from its tail; a
            candidate's points back from its head.
        rooms: (D, 9, 9) the room the paddle needs, uint8.
        solid: (D, S, 2) offsets of the pixels of `rooms` strong enough to collide; repeated to equal number.
        limits: (D, S) occupancy at these offsets from which on they collide.
        structs: (360, Q, 2) offsets that must be free around a first paddle's tail; repeated to equal number.
        usable: (360,) bool, whether a contour may begin in this direction, see `_usable`.
        heads: (360, 2, 64) from a first paddle's tail to its head, likewise.
        pivots: (360, 2, 64) from that head back to the first pivot, likewise.
        partners: (360, 2) from the first contour's tail to the second's, not yet rounded.
    """

    steps: np.ndarray
    candidates: np.ndarray
    weights: np.ndarray
    lines: np.ndarray
    rooms: np.ndarray
    solid: np.ndarray
    limits: np.ndarray
    structs: np.ndarray
    usable: np.ndarray
    heads: np.ndarray
    pivots: np.ndarray
    partners: np.ndarray


@functools.cache
def tables() -> Tables:
    """The tables; about 0.1 s the first time."""
    degrees = [math.radians(degree) for degree in range(-180, 180)]
    candidates = _circle()
    towards = [math.atan2(dy, dx) for dy, dx in candidates]
    angles = degrees + towards
    drawn = [paddle(angle) for angle in degrees] + [paddle(_opposite(angle)) for angle in towards]
    lines, rooms = (np.stack(bitmaps) for bitmaps in zip(*drawn, strict=True))
    # A pixel of strength r collides where the occupancy is at least 459 - r; below 204 it never does.
    solid = _equalise([np.argwhere(room >= TOO_CLOSE - FULL) - REACH for room in rooms])
    structs = _equalise([_struct(room) for room in rooms[: len(degrees)]])
    each = np.arange(len(rooms))[:, None]
    return Tables(
        steps=_moves(angles, LENGTH + 2 * MARGIN),
        candidates=candidates,
        weights=np.array([[_preference(last, new) for new in towards] for last in angles], dtype=np.int64),
        lines=lines,
        rooms=rooms,
        solid=solid,
        limits=TOO_CLOSE - rooms[each, solid[..., 0] + REACH, solid[..., 1] + REACH].astype(np.int64),
        structs=structs,
        usable=np.array([_usable(offsets) for offsets in structs]),
        heads=_moves(degrees, LENGTH),
        pivots=_moves([_opposite(angle) for angle in degrees], _RADIUS),
        partners=np.round(
            [[_SEED_DISTANCE * math.sin(angle), _SEED_DISTANCE * math.cos(angle)] for angle in degrees], 9
        ),
    )


@functools.cache
def first_seeds() -> np.ndarray:
    """All (degree, y, x, number of tails with this degree) at which the first contour may begin.

    A tail must lie so that its paddle's room stays within the middle of the image, 14 pixels from every edge. For
    many degrees there is no such pixel, and then the original begins again with another degree.
    """
    edge = 2 * _SEED_DISTANCE
    blocked = np.ones((SIZE, SIZE), bool)
    blocked[edge : SIZE - edge, edge : SIZE - edge] = False
    rows = []
    for degree in np.flatnonzero(tables().usable).tolist():
        offsets = tables().structs[degree]
        free = ~blocked_near(blocked[None], offsets[None])[0]
        rows += [(degree, y, x, int(free.sum())) for y, x in np.argwhere(free).tolist()]
    return np.array(rows)


def follow(moves: np.ndarray, directions: np.ndarray, places: np.ndarray) -> np.ndarray:
    """Where each place (A, 2) leads to by a table of moves, (A, 2)."""
    y, x = (places + _OFFSET).T
    return np.stack([moves[directions, 0, y], moves[directions, 1, x]], axis=1)


def blocked_near(blocked: np.ndarray, offsets: np.ndarray) -> np.ndarray:
    """Where any pixel at the offsets is blocked: (B, SIZE, SIZE) bool and (B, Q, 2) -> (B, SIZE, SIZE) bool.

    What lies outside the image blocks nothing.
    """
    reach = _RADIUS
    padded = np.zeros((len(blocked), SIZE + 2 * reach, SIZE + 2 * reach), bool)
    padded[:, reach : reach + SIZE, reach : reach + SIZE] = blocked
    windows = np.lib.stride_tricks.sliding_window_view(padded, (SIZE, SIZE), axis=(1, 2))
    each = np.arange(len(blocked))
    result = np.zeros_like(blocked)
    for offset in np.moveaxis(offsets, 1, 0):
        result |= windows[each, offset[:, 0] + reach, offset[:, 1] + reach]
    return result


def _moves(angles: list[float], distance: float) -> np.ndarray:
    places = range(-_OFFSET, 64 - _OFFSET)
    return np.array([np.transpose([move((p, p), angle, distance) for p in places]) for angle in angles])


def _circle() -> np.ndarray:
    """Pixels (C, 2) under points one pixel apart on a circle, each once, in the order of reading."""
    points = np.arange(0, 2 * math.pi, 1 / _RADIUS)
    pixels = {(math.floor(_RADIUS * math.sin(p)), math.floor(_RADIUS * math.cos(p))) for p in points}
    return np.array(sorted(pixels))


def _struct(room: np.ndarray) -> np.ndarray:
    # The original anchors this 9 x 9 room, cut to 7 x 7, at (3, 3) although its middle is at (4, 4).
    return np.argwhere(room[: 2 * _RADIUS + 1, : 2 * _RADIUS + 1] == FULL) - _RADIUS


def _usable(offsets: np.ndarray) -> bool:
    """Whether the struct has a pixel within the image wherever it is put.

    The original looks for free pixels with a dilation that returns minus infinity where the struct lies outside
    altogether, takes that for a fault and gives up. So first paddles point up and to the left, more or less.
    """
    nowhere = ~blocked_near(np.ones((1, SIZE, SIZE), bool), offsets[None])
    return not nowhere.any()


def _preference(last: float, new: float) -> int:
    turn = abs(new - last)
    turn = min(turn, 2 * math.pi - turn)
    return round(UNIT * math.cos(turn) ** 2) if turn < math.pi / 2 else 0


def _opposite(angle: float) -> float:
    return angle + math.pi if angle < 0 else angle - math.pi


def _equalise(offsets: list[np.ndarray]) -> np.ndarray:
    """Lists of offsets as one array: shorter ones repeat their first."""
    longest = max(map(len, offsets))
    return np.stack([np.concatenate([rows, np.repeat(rows[:1], longest - len(rows), axis=0)]) for rows in offsets])
