"""Files and folders that are there whole or not at all."""

from __future__ import annotations

import contextlib
import json
import os
import shutil
import tempfile
from collections.abc import Callable
from pathlib import Path
from typing import Any


def write_bytes(path: Path, content: bytes) -> None:
    """Write a file, and folders to it, by way of a temporary one beside it."""
    path.parent.mkdir(parents=True, exist_ok=True)
    descriptor, temporary = tempfile.mkstemp(dir=path.parent, prefix=f".{path.name}-")
    try:
        with os.fdopen(descriptor, "wb") as file:
            file.write(content)
            file.flush()
            os.fsync(file.fileno())
        os.chmod(temporary, 0o666 & ~_umask())  # mkstemp lets nobody else read
        os.replace(temporary, path)
    except BaseException:
        with contextlib.suppress(OSError):
            os.unlink(temporary)
        raise


def write_text(path: Path, text: str) -> None:
    """Write text as UTF-8."""
    write_bytes(path, text.encode())


def write_json(path: Path, value: Any) -> None:
    """Write JSON for people to read too."""
    write_text(path, json.dumps(value, indent=2) + "\n")


def write_folder(path: Path, fill: Callable[[Path], None]) -> None:
    """Let `fill` write into a folder beside `path`, which then takes its place."""
    room = Path(tempfile.mkdtemp(dir=path.parent, prefix=f".{path.name}-"))
    new, old = room / "new", room / "old"
    try:
        new.mkdir()
        fill(new)
        for made in (new, *new.rglob("*")):  # some writers let nobody else read
            made.chmod((0o777 if made.is_dir() else 0o666) & ~_umask())
        try:
            if path.exists():
                os.replace(path, old)
            os.replace(new, path)
        except BaseException:
            if old.exists() and not path.exists():
                os.replace(old, path)
            raise
    finally:
        shutil.rmtree(room, ignore_errors=True)


def _umask() -> int:
    mask = os.umask(0)
    os.umask(mask)
    return mask
