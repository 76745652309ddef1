"""Build the distribution, look into it, install it into an environment of its own and use it from there.

    python scripts/check_wheel.py

Answers whether what a user gets is whole: every file of the package is inside and nothing else is, the
metadata say what `pyproject.toml` says, and the installed command and library work away from the checkout.
"""

from __future__ import annotations

import os
import re
import subprocess
import sys
import tempfile
import time
import venv
import zipfile
from collections.abc import Iterator
from contextlib import contextmanager
from email.message import Message
from email.parser import Parser
from pathlib import Path

ROOT = Path(__file__).resolve().parents[1]
PACKAGE = ROOT / "src" / "flexformer"
CONSTRAINTS = ROOT / "constraints.txt"
USE_EVERY_NAME = "import flexformer; [getattr(flexformer, name) for name in flexformer.__all__]"


class WheelError(Exception):
    """What is wrong with the wheel."""


def main() -> int:
    start = time.perf_counter()
    try:
        with tempfile.TemporaryDirectory(prefix="flexformer-wheel-") as folder:
            temporary = Path(folder)
            with step("build the sdist, and the wheel from it"):
                wheel = build(temporary / "dist")
            with step(f"look into {wheel.name}"):
                check_contents(wheel)
            with step("install it into a fresh environment"):
                binaries = install(wheel, temporary / "environment")
            with step("use it from an empty folder"):
                use(binaries, temporary / "empty")
    except WheelError as problem:
        print(f"check_wheel: FAILED: {problem}", file=sys.stderr)
        return 1
    print(f"check_wheel: ok ({time.perf_counter() - start:.0f} s)")
    return 0


@contextmanager
def step(what: str) -> Iterator[None]:
    print(f"check_wheel: {what} ... ", end="", flush=True)
    start = time.perf_counter()
    try:
        yield
    except BaseException:
        print("failed", flush=True)
        raise
    print(f"{time.perf_counter() - start:.0f} s", flush=True)


def run(command: list[str | Path], cwd: Path) -> str:
    """Run a command without what this environment would lend it; return what it printed."""
    lent = ("PYTHONPATH", "PYTHONHOME", "VIRTUAL_ENV")
    environment = {name: value for name, value in os.environ.items() if name not in lent}
    environment["PIP_CONSTRAINT"] = CONSTRAINTS.as_uri()  # as a path it would be split at spaces
    environment["PIP_DISABLE_PIP_VERSION_CHECK"] = "1"
    result = subprocess.run(
        command, cwd=cwd, env=environment, text=True, stdout=subprocess.PIPE, stderr=subprocess.STDOUT
    )
    if result.returncode:
        shown = " ".join(map(str, command))
        raise WheelError(f"`{shown}` ended with status {result.returncode}:\n{result.stdout}")
    return result.stdout


def build(folder: Path) -> Path:
    # By way of the sdist, so that one that lacks a file cannot make a whole wheel.
    run([sys.executable, "-m", "build", "--outdir", folder, ROOT], cwd=ROOT)
    wheels, sdists = list(folder.glob("*.whl")), list(folder.glob("*.tar.gz"))
    if len(wheels) != 1 or len(sdists) != 1:
        found = ", ".join(sorted(p.name for p in folder.iterdir()))
        raise WheelError(f"expected one wheel and one sdist, found {found}")
    return wheels[0]


def check_contents(wheel: Path) -> None:
    with zipfile.ZipFile(wheel) as archive:
        inside = {name: archive.read(name) for name in archive.namelist() if not name.endswith("/")}
    info = next(name for name in inside if name.endswith(".dist-info/METADATA")).partition("/")[0]
    packed = {name for name in inside if not name.startswith(f"{info}/")}
    files = {f"flexformer/{p.relative_to(PACKAGE).as_posix()}": p for p in package_files()}

    if missing := sorted(files.keys() - packed):
        raise WheelError(f"missing from the wheel: {', '.join(missing)}")
    if extra := sorted(packed - files.keys()):
        raise WheelError(f"in the wheel but not in the package: {', '.join(extra)}")
    if changed := sorted(name for name, path in files.items() if inside[name] != path.read_bytes()):
        raise WheelError(f"other in the wheel than in the package: {', '.join(changed)}")
    if "flexformer/py.typed" not in packed:
        raise WheelError("py.typed is missing: type checkers would ignore the types")
    if not any(name.startswith(f"{info}/") and name.endswith("/LICENSE") for name in inside):
        raise WheelError("LICENSE is missing from the metadata folder")
    if b"flexformer = flexformer.cli.main:main" not in inside.get(f"{info}/entry_points.txt", b""):
        raise WheelError("the console command `flexformer` is not declared")
    check_metadata(Parser().parsestr(inside[f"{info}/METADATA"].decode()))


def check_metadata(metadata: Message) -> None:
    for field, right in (
        ("Name", "flexformer-pytorch"),
        ("Version", source_version()),
        ("License-Expression", "Apache-2.0"),
        ("Requires-Python", ">=3.10"),
    ):
        if metadata[field] != right:
            raise WheelError(f"metadata say {field}: {metadata[field]}; expected {right}")
    needed = [r for r in metadata.get_all("Requires-Dist", []) if "extra ==" not in r]
    if sorted(r.partition(">")[0] for r in needed) != ["jsonargparse[signatures]", "numpy", "rich", "torch"]:
        raise WheelError(f"unexpected requirements {needed}; what is optional belongs into an extra")


def package_files() -> Iterator[Path]:
    for path in PACKAGE.rglob("*"):
        if path.is_file() and "__pycache__" not in path.parts and path.suffix not in (".pyc", ".pyo"):
            yield path


def source_version() -> str:
    text = (PACKAGE / "__init__.py").read_text(encoding="utf-8")
    if not (match := re.search(r'^__version__ = "(.+)"$', text, re.MULTILINE)):
        raise WheelError("src/flexformer/__init__.py assigns no __version__")
    return match.group(1)


def install(wheel: Path, environment: Path) -> Path:
    venv.create(environment, with_pip=True)
    binaries = environment / ("Scripts" if os.name == "nt" else "bin")
    run([binaries / "python", "-m", "pip", "install", "-c", CONSTRAINTS, wheel], cwd=environment)
    run([binaries / "python", "-m", "pip", "check"], cwd=environment)
    return binaries


def use(binaries: Path, folder: Path) -> None:
    folder.mkdir()
    found = run([binaries / "python", "-c", "import flexformer; print(flexformer.__file__)"], cwd=folder)
    if not Path(found.strip()).resolve().is_relative_to(binaries.parent.resolve()):
        raise WheelError(f"`import flexformer` found {found.strip()}, not the installed package")
    run([binaries / "python", "-c", USE_EVERY_NAME], cwd=folder)
    if "commands:" not in run([binaries / "flexformer", "--help"], cwd=folder):
        raise WheelError("`flexformer --help` lists no commands")
    if source_version() not in run([binaries / "flexformer", "--version"], cwd=folder):
        raise WheelError("`flexformer --version` shows another version")
    run([binaries / "flexformer", "doctor"], cwd=folder)
    if left := sorted(p.name for p in folder.iterdir()):
        raise WheelError(f"the command left files behind: {', '.join(left)}")


if __name__ == "__main__":
    sys.exit(main())
