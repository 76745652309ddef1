"""Generated arrays on disk: one folder of .npy files and a manifest with their checksums.

A folder appears complete or not at all. Files are memory-mapped and never unpickled.
"""

from __future__ import annotations

import contextlib
import hashlib
import json
import os
import re
import shutil
import tempfile
import time
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

import numpy as np

from flexformer.tasks.errors import CorruptDataError, MissingDataError

MANIFEST = "manifest.json"
LARGEST_MANIFEST = 2**20
FORMAT = 1
PARTIAL = ".partial-"
DAY = 86_400


def sha256(path: Path) -> str:
    """The checksum of a file, as hex digits."""
    digest = hashlib.sha256()
    with path.open("rb") as file:
        while block := file.read(1 << 20):
            digest.update(block)
    return digest.hexdigest()


@contextlib.contextmanager
def partial_folder(parent: Path) -> Iterator[Path]:
    """A folder to write in until it may take its place; removed in any case, after a kill by somebody a day later."""
    parent.mkdir(parents=True, exist_ok=True)
    for left in parent.glob(f"{PARTIAL}*"):
        with contextlib.suppress(OSError):
            if time.time() - left.stat().st_mtime > DAY:
                shutil.rmtree(left)
    partial = Path(tempfile.mkdtemp(prefix=PARTIAL, dir=parent))
    try:
        yield partial
    finally:
        shutil.rmtree(partial, ignore_errors=True)


class ArrayCache:
    """Arrays that follow from their settings, under a folder named after them.

    Args:
        parent: Where such folders stand side by side.
        label: A readable beginning of the folder's name.
        settings: Everything the arrays depend on, as JSON values; a digest of it ends the folder's name.
        remedy: What to do where the arrays are missing or damaged, such as a command.
    """

    def __init__(self, parent: Path, label: str, settings: Mapping[str, Any], remedy: str) -> None:
        self.settings = json.loads(json.dumps(settings))
        digest = hashlib.sha256(json.dumps(self.settings, sort_keys=True).encode()).hexdigest()[:8]
        self.folder = parent / f"{label}-{digest}"
        self.remedy = remedy

    def exists(self) -> bool:
        return (self.folder / MANIFEST).is_file()

    def files(self) -> tuple[Path, ...]:
        """The manifest and the arrays it lists; nothing if the folder is not there."""
        if not self.exists():
            return ()
        return (self.folder / MANIFEST, *(self.folder / name for name in self._manifest()["files"]))

    def write(self, arrays: Mapping[str, np.ndarray]) -> None:
        """Write all arrays, or none if this is interrupted."""
        with partial_folder(self.folder.parent) as partial:
            partial.chmod(0o755)  # temporary folders are private, data need not be
            files = {}
            for name, array in arrays.items():
                path = partial / f"{name}.npy"
                np.save(path, np.ascontiguousarray(array), allow_pickle=False)
                files[path.name] = {"bytes": path.stat().st_size, "sha256": sha256(path)}
            manifest = {"format": FORMAT, "settings": self.settings, "files": files}
            (partial / MANIFEST).write_text(json.dumps(manifest, indent=2) + "\n", encoding="utf-8")
            try:
                os.replace(partial, self.folder)
            except OSError:
                if self.exists():
                    self.verify()  # another process was faster, with the same bytes
                else:
                    shutil.rmtree(self.folder)  # what is left of a set that has lost its manifest
                    os.replace(partial, self.folder)

    def load(self, name: str) -> np.ndarray:
        """One array, memory-mapped, after its checksum was compared."""
        path = self.folder / f"{name}.npy"
        self._verify_file(path)
        try:
            array: np.ndarray = np.load(path, mmap_mode="r", allow_pickle=False)
        except Exception as error:  # numpy's reader of headers lets those of Python's tokenizer through, among others
            raise self._corrupt(f"{path} is not an array") from error
        return array

    def verify(self) -> None:
        """Compare all checksums."""
        for name in self._manifest()["files"]:
            self._verify_file(self.folder / name)

    def _verify_file(self, path: Path) -> None:
        recorded = self._manifest()["files"].get(path.name)
        if recorded is None or not path.is_file():
            raise self._corrupt(f"{path} is missing")
        size = path.stat().st_size
        if size != recorded["bytes"]:
            raise self._corrupt(f"{path} has {size} bytes instead of {recorded['bytes']}")
        if sha256(path) != recorded["sha256"]:
            raise self._corrupt(f"{path} does not have the checksum it was written with")

    def _manifest(self) -> dict[str, Any]:
        path = self.folder / MANIFEST
        if not path.is_file():
            raise MissingDataError(f"{self.folder} is not there; {self.remedy}")
        if path.stat().st_size > LARGEST_MANIFEST:
            raise self._corrupt(f"{path} has {path.stat().st_size} bytes, more than any manifest needs")
        try:
            manifest = json.loads(path.read_text(encoding="utf-8"))
            complete = manifest["format"] == FORMAT and manifest["settings"] == self.settings
            complete = complete and all({"bytes", "sha256"} <= set(file) for file in manifest["files"].values())
            # Names, not paths: nothing outside the folder is any business of a manifest's.
            complete = complete and all(re.fullmatch(r"[A-Za-z0-9_.-]{1,60}\.npy", name) for name in manifest["files"])
        except (ValueError, KeyError, TypeError, AttributeError, RecursionError) as error:
            raise self._corrupt(f"{path} cannot be read") from error
        if not complete:
            raise self._corrupt(f"{path} does not describe this set")
        result: dict[str, Any] = manifest
        return result

    def _corrupt(self, what: str) -> CorruptDataError:
        return CorruptDataError(f"{what}; delete {self.folder} and then {self.remedy}")
