"""What a result came from: versions of packages, the commit and the processor."""

from __future__ import annotations

import contextlib
import functools
import platform
import subprocess
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path

from . import __version__


def versions(*packages: str) -> dict[str, str]:
    """Of this package, of Python and of those packages that are installed."""
    found = {"flexformer": __version__, "python": platform.python_version()}
    for package in packages:
        with contextlib.suppress(PackageNotFoundError):
            found[package] = version(package)
    return found


def cpu_model() -> str:
    """What the processor calls itself."""
    try:
        with open("/proc/cpuinfo") as file:
            for line in file:
                if line.startswith("model name"):
                    return line.partition(":")[2].strip()
    except OSError:
        pass
    return platform.processor() or platform.machine()


@functools.cache  # a checkout may change under a process, its code does not
def commit() -> str | None:
    """The commit of the checkout this package runs from, "-dirty" if it was changed since; None outside of one."""
    package = Path(__file__).resolve().parent

    def git(*arguments: str) -> subprocess.CompletedProcess[str]:
        return subprocess.run(["git", "-C", str(package), *arguments], capture_output=True, text=True, timeout=30)

    try:
        # An installed package may lie inside somebody else's repository.
        if git("ls-files", "--error-unmatch", "__init__.py").returncode:
            return None
        head = git("rev-parse", "HEAD")
        changed = git("status", "--porcelain", "--", ".")
    except (OSError, subprocess.TimeoutExpired):
        return None
    if head.returncode:
        return None
    return head.stdout.strip() + ("-dirty" if changed.stdout.strip() else "")
