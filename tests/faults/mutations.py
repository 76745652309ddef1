"""Files as they should be, changed in every way that disks, networks and ill will can think of."""

from __future__ import annotations

import time
from collections.abc import Callable
from pathlib import Path

from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

SOME, MANY = 100, 5000
LONGEST = 10.0  # seconds for one file: far more than any needs

PAYLOADS = (
    b"",
    b"\x00",
    b"\xff\xfe",
    b"\n",
    b"\t",
    b",",
    b'"',
    b"-1",
    b"1e999",
    b"NaN",
    b"null",
    b"true",
    b"[]",
    b"{}",
    b"../../../outside",
    b"/outside",
    b"99999999999999999999999999",
    b"[" * 5_000,
    b'{"a":' * 5_000,
    b"\xf0\x9f\xa6\x9c",
    b"!!python/object/apply:os.system ['touch outside']",
    b"&a [*a, *a]",
    b"x" * 70_000,
)
EDIT = st.tuples(
    st.sampled_from(("flip", "cut", "insert", "overwrite", "repeat", "drop")),
    st.floats(0.0, 1.0, exclude_max=True),
    st.floats(0.0, 1.0),
    st.one_of(st.sampled_from(PAYLOADS), st.binary(max_size=12)),
    st.integers(0, 7),
)


def mutate(good: bytes, edits: list[tuple[str, float, float, bytes, int]]) -> bytes:
    content = good
    for kind, where, extent, payload, bit in edits:
        place = int(where * len(content))
        end = place + int(extent**4 * (len(content) - place))  # mostly short
        if kind == "flip" and content:
            content = content[:place] + bytes([content[place] ^ 1 << bit]) + content[place + 1 :]
        elif kind == "cut":
            content = content[:place]
        elif kind == "insert":
            content = content[:place] + payload + content[place:]
        elif kind == "overwrite":
            content = content[:place] + payload + content[place + len(payload) :]
        elif kind == "repeat":
            content = content[:end] + content[place:end] + content[end:]
        elif kind == "drop":
            content = content[:place] + content[end:]
    return content


def fuzz(good: bytes, load: Callable[[bytes], object], allowed: tuple[type[Exception], ...], count: int) -> int:
    """Let `load` read `count` mutated files; return how many it refused.

    Errors must be of exactly the allowed types: a subclass would be somebody else's error that happens to fit.
    """
    refused = 0

    @settings(
        max_examples=count, deadline=None, database=None, derandomize=True, suppress_health_check=list(HealthCheck)
    )
    @given(st.lists(EDIT, min_size=1, max_size=4))
    def check(edits: list[tuple[str, float, float, bytes, int]]) -> None:
        nonlocal refused
        content = mutate(good, edits)
        began = time.process_time()  # a busy machine takes longer, which is not the file's fault
        try:
            load(content)
        except Exception as error:
            assert type(error) in allowed, f"{type(error).__name__}: {error}"  # noqa: PT017
            assert str(error), "an error without a word"  # noqa: PT017  (both outcomes are right)
            refused += 1
        assert time.process_time() - began < LONGEST

    check()
    return refused


def everything_outside(root: Path, target: Path) -> set[str]:
    """What lies in `root` but not in `target`, with its content."""
    return {
        f"{path.relative_to(root)} {path.read_bytes() if path.is_file() else ''}"
        for path in root.rglob("*")
        if target not in (path, *path.parents)
    }
