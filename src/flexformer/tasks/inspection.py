"""What data there is under a root, and whether it is whole."""

from __future__ import annotations

import contextlib
import hashlib
import json
import os
from dataclasses import dataclass, field
from pathlib import Path
from typing import Literal

from flexformer.tasks.base import SPLITS, Split, Task
from flexformer.tasks.cache import MANIFEST, sha256
from flexformer.tasks.errors import CorruptDataError
from flexformer.tasks.generated import GeneratedTask
from flexformer.tasks.progress import Progress, silent
from flexformer.tasks.registry import build, find, names
from flexformer.tasks.retrieval import Column

State = Literal["ok", "missing", "corrupt"]


@dataclass
class Finding:
    """One task's data, gone through from beginning to end.

    Args:
        task: Its name.
        place: Where the data is, relative to the root if it is under it.
        state: "ok", "missing" or "corrupt".
        problem: What is wrong, in one sentence.
        counts: Split -> examples.
        published: Whether these are the published numbers; None where there are none to compare with.
        checksums: File or folder -> SHA-256 of its content.
    """

    task: str
    place: str
    state: State
    problem: str = ""
    counts: dict[Split, int] = field(default_factory=dict)
    published: bool | None = None
    checksums: dict[str, str] = field(default_factory=dict)


def variants(name: str, root: str | os.PathLike[str] | None = None) -> list[Task]:
    """The task as it is by default and, if it is generated, in every other form under the root."""
    default = build(name, root)
    if not isinstance(default, GeneratedTask):
        return [default]
    found: dict[Path, Task] = {default.cache.folder: default}
    for manifest in _manifests(default):
        with contextlib.suppress(CorruptDataError):  # for `strangers`
            task = _described(manifest, default)
            found[task.cache.folder] = task
    whole = [task for task in found.values() if task.files()]
    return whole or [default]


def strangers(name: str, root: str | os.PathLike[str] | None = None) -> list[Finding]:
    """Sets that lie where those of a generated task do and are none."""
    default = build(name, root)
    findings = []
    for manifest in _manifests(default):
        try:
            _described(manifest, default)
        except CorruptDataError as error:
            findings.append(Finding(name, _relative(manifest.parent, default.root), "corrupt", str(error)))
    return findings


def _manifests(task: Task) -> list[Path]:
    return sorted((task.root / task.name).glob(f"*/{MANIFEST}")) if isinstance(task, GeneratedTask) else []


def _described(manifest: Path, default: Task) -> GeneratedTask:
    """The task in the form that a manifest tells of."""
    try:
        settings = json.loads(manifest.read_text(encoding="utf-8"))["settings"]
        sizes = dict(zip(SPLITS, settings["sizes"], strict=True))
        options = {k: v for k, v in settings.items() if k not in ("generator", "version", "sizes")}
        task = build(default.name, default.root, **sizes, **options)
    except (ValueError, KeyError, TypeError) as error:
        name, folder = default.name, manifest.parent
        raise CorruptDataError(f"{manifest} does not describe a set of {name}; delete {folder}") from error
    assert isinstance(task, GeneratedTask)
    return task


def check(task: Task, progress: Progress = silent) -> Finding:
    """Read everything a task has on disk: counts, labels, checksums.

    Args:
        task: With its root.
        progress: Called as progress(done, total) with files.
    """
    finding = Finding(task.name, _place(task), "ok")
    try:
        files = task.files()
        if not files:
            finding.state, finding.problem = "missing", missing(task)
            return finding
        if isinstance(task, GeneratedTask):
            task.cache.verify()
        for split in SPLITS:
            finding.counts[split] = _read(task, split)
        if isinstance(task, GeneratedTask):
            files = files[:1]  # the manifest has the checksums of the others
        for done, path in enumerate(files, start=1):
            finding.checksums[_relative(path, task.root)] = checksum(path)
            progress(done, len(files))
    except CorruptDataError as error:
        finding.state, finding.problem = "corrupt", str(error)
        return finding
    finding.published = _as_published(task, finding.counts)
    return finding


def present(root: str | os.PathLike[str] | None = None, task: str | None = None) -> list[Task]:
    """What there is to check under a root: every task in every form, or one task."""
    if task is not None:
        find(task)  # an unknown name is the user's mistake
    return [variant for name in (names() if task is None else (task,)) for variant in variants(name, root)]


def missing(task: Task) -> str:
    """Why a task has no data: the command to run, or where to get the files."""
    if isinstance(task, GeneratedTask):
        return f"not generated yet: flexformer data prepare {task.name} --root {task.root}"
    try:
        task.prepare()
    except FileNotFoundError as error:
        return str(error)
    return ""


def checksum(path: Path) -> str:
    """SHA-256 of a file, or of the names and contents of all files in a folder, in order."""
    if path.is_file():
        return sha256(path)
    digest = hashlib.sha256()
    for file in sorted(file for file in path.rglob("*") if file.is_file()):
        digest.update(f"{file.relative_to(path).as_posix()} {sha256(file)}\n".encode())
    return digest.hexdigest()


def _read(task: Task, split: Split) -> int:
    examples = task.examples(split)
    for column in examples.inputs:
        if isinstance(column, Column):  # read only when asked for, so ask for every line
            for row in range(len(column)):
                column[row]
    return len(examples.labels)


def _as_published(task: Task, counts: dict[Split, int]) -> bool | None:
    wanted = {split: size for split, size in task.describe().true_sizes.items() if size is not None}
    if not wanted:
        return None
    if isinstance(task, GeneratedTask):
        published = build(task.name, task.root)
        assert isinstance(published, GeneratedTask)
        if {**task.settings, "seed": 0} != {**published.settings, "seed": 0}:
            return False
    return {split: counts[split] for split in SPLITS if split in wanted} == wanted


def _place(task: Task) -> str:
    files = task.files()
    if not files:
        return ""
    return _relative(files[0].parent, task.root)


def _relative(path: Path, root: Path) -> str:
    return path.relative_to(root).as_posix() if path.is_relative_to(root) else str(path)
