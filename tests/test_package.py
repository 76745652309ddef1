"""The package as a whole: what importing it costs, who imports whom, and that its documents are true."""

from __future__ import annotations

import ast
import importlib.metadata
import re
import subprocess
import sys
import textwrap
from collections.abc import Iterator
from pathlib import Path

import pytest
import torch

import flexformer

ROOT = Path(__file__).resolve().parents[1]
PACKAGE = ROOT / "src" / "flexformer"
MODULES = sorted(PACKAGE.rglob("*.py"))
PAGES = [ROOT / "README.md", *sorted((ROOT / "docs").glob("**/*.md"))]
LONGEST_FILE = 350

# Room: the rooms it builds on. What those build on comes with them, so imports point upwards in this table.
BUILDS_ON: dict[str, set[str]] = {
    "kernels": set(),
    "ops": {"kernels"},
    "attention": {"kernels", "ops"},
    "parallel": {"kernels", "ops"},
    "models": {"attention"},
    "convert": {"attention", "models"},
    "tasks": {"models"},
    "training": {"models", "parallel", "tasks"},
    "distill": {"convert", "training", "tasks"},
    "bench": {"attention", "models", "parallel", "tasks"},
    "viz": set(),
    "inspection": {"convert", "distill", "training"},
    "report": {"inspection", "bench", "tasks"},
    "demo": {"report", "training", "bench"},
}
COMMON = {"__version__", "extras", "files", "provenance"}  # every room may use them
BUILDS_ON |= {"extras": set(), "files": set(), "provenance": set()}
BUILDS_ON["experiments"] = set(BUILDS_ON)
BUILDS_ON["cli"] = set(BUILDS_ON)
BUILDS_ON["__main__"] = {"cli"}
CORE = ("kernels", "ops", "attention")


def in_new_interpreter(code: str) -> str:
    result = subprocess.run([sys.executable, "-c", textwrap.dedent(code)], capture_output=True, text=True, timeout=120)
    assert result.returncode == 0, result.stderr
    return result.stdout.strip()


def relative(path: Path) -> str:
    return path.relative_to(ROOT).as_posix()


def test_importing_the_core_loads_nothing_optional():
    loaded = in_new_interpreter(
        """
        import sys, torch
        before = set(sys.modules)
        import flexformer
        for name in flexformer.__all__:
            getattr(flexformer, name)
        optional = {"transformers", "datasets", "safetensors", "matplotlib", "jsonargparse", "rich"}
        print(*sorted(optional & (set(sys.modules) - before)))
        """
    )
    assert loaded == ""


def test_importing_the_package_alone_does_not_even_load_torch():
    assert in_new_interpreter("import sys, flexformer; print('torch' in sys.modules)") == "False"


def test_import_takes_less_than_a_third_of_a_second_beyond_torch():
    code = """
        import time, torch
        start = time.perf_counter()
        import flexformer
        flexformer.MultiheadAttention
        print(time.perf_counter() - start)
        """
    assert min(float(in_new_interpreter(code)) for _ in range(3)) < 0.3


@pytest.mark.parametrize("name", flexformer.__all__)
def test_public_name_resolves_and_is_listed(name):
    assert getattr(flexformer, name) is not None
    assert name in dir(flexformer)


def test_rooms_are_listed_before_they_are_imported():
    listed = in_new_interpreter("import flexformer; print(*dir(flexformer))").split()
    assert {"models", "distill", "training", "parallel", "tasks"} <= set(listed)


def test_unknown_name_says_where_to_look():
    with pytest.raises(AttributeError, match=r"no attribute 'MultiHeadAttention'; dir\(flexformer\)"):
        flexformer.MultiHeadAttention  # noqa: B018  (the access is the test)


def test_version_of_the_installed_distribution_is_that_of_the_source():
    assert importlib.metadata.version("flexformer-pytorch") == flexformer.__version__


@pytest.mark.parametrize("path", MODULES, ids=relative)
def test_file_is_short_enough_to_read_at_once(path):
    lines = len(path.read_text(encoding="utf-8").splitlines())
    assert lines <= LONGEST_FILE, f"{relative(path)} has {lines} lines; divide it by ideas"


def imports(path: Path) -> Iterator[tuple[int, str]]:
    """(line, dotted name) of every import in a file, in functions too; relative ones made absolute.

    `from a import b` counts as a.b: b may be a module.
    """
    package = ["flexformer", *path.relative_to(PACKAGE).parent.parts]
    for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
        if isinstance(node, ast.Import):
            yield from ((node.lineno, alias.name) for alias in node.names)
        elif isinstance(node, ast.ImportFrom):
            origin = package[: len(package) - node.level + 1] if node.level else []
            base = ".".join([*origin, *([node.module] if node.module else [])])
            yield from ((node.lineno, f"{base}.{alias.name}") for alias in node.names)


def room_of(path: Path) -> str:
    return path.relative_to(PACKAGE).with_suffix("").parts[0]


def room_of_import(name: str) -> str | None:
    """The room an import reaches, through the package's lazy names too; None if it is not ours."""
    if name.partition(".")[0] != "flexformer":
        return None
    parts = flexformer._HOMES.get(name.removeprefix("flexformer."), name).split(".")
    return parts[1] if len(parts) > 1 else "flexformer"


def reach(room: str) -> set[str]:
    rooms = BUILDS_ON[room]
    return {room}.union(rooms, *(reach(r) for r in rooms))


def layering_faults(path: Path) -> list[str]:
    allowed = reach(room_of(path)) | COMMON
    found = ((line, name, room_of_import(name)) for line, name in imports(path))
    return [f"line {line}: {name}" for line, name, room in found if room is not None and room not in allowed]


@pytest.mark.parametrize("path", [p for p in MODULES if p != PACKAGE / "__init__.py"], ids=relative)
def test_imports_between_rooms_point_upwards(path):
    assert room_of(path) in BUILDS_ON, f"{room_of(path)} is a new room; give it a place in BUILDS_ON"
    assert not (faults := layering_faults(path)), f"{relative(path)} imports what stands below it: {faults}"


@pytest.mark.parametrize("path", [p for room in CORE for p in MODULES if room in p.parts], ids=relative)
def test_core_needs_torch_alone(path):
    outside = {name.partition(".")[0] for _, name in imports(path)} - {"flexformer", "torch"}
    assert not outside - sys.stdlib_module_names


@pytest.mark.parametrize(
    ("room", "statement", "fault"),
    [
        ("kernels", "from ..ops import State", True),
        ("kernels", "def f():\n    import flexformer.attention", True),
        ("kernels", "from .base import Kernel", False),
        ("ops", "from flexformer import MultiheadAttention", True),
        ("ops", "from flexformer import kernels", False),
        ("ops", "import flexformer", True),
        ("attention", "from ..ops.state import State", False),
        ("viz", "from .. import kernels", True),
        ("cli", "from flexformer import __version__", False),
    ],
)
def test_layering_check_sees_lazy_relative_and_public_imports(tmp_path, monkeypatch, room, statement, fault):
    monkeypatch.setattr(sys.modules[__name__], "PACKAGE", tmp_path)
    path = tmp_path / room / "module.py"
    path.parent.mkdir()
    path.write_text(statement)
    assert bool(layering_faults(path)) is fault


def fences(text: str) -> Iterator[tuple[int, str, str]]:
    """(line of the first line inside, info string, content) of every fenced block of a Markdown text."""
    lines = text.splitlines()
    opened: tuple[int, str, str] | None = None
    for number, line in enumerate(lines, start=1):
        fence = re.match(r"\s*(`{3,})\s*(.*?)\s*$", line)
        if opened is None and fence:
            opened = (number + 1, fence.group(1), fence.group(2))
        elif opened and fence and not fence.group(2) and len(fence.group(1)) >= len(opened[1]):
            start, _, info = opened
            yield start, info, textwrap.dedent("\n".join(lines[start - 1 : number - 1]))
            opened = None
    assert opened is None, f"the block that begins on line {opened and opened[0]} does not end"


@pytest.mark.parametrize("page", PAGES, ids=relative)
def test_relative_links_lead_somewhere(page):
    text = page.read_text(encoding="utf-8")
    for _, _, block in fences(text):
        text = text.replace(block, "")
    targets = re.findall(r"\]\(<?([^)\s>]+)>?(?:\s+\"[^\"]*\")?\)", text)
    local = [t.partition("#")[0] for t in targets if not re.match(r"[a-z]+:|#", t)]
    assert not [t for t in local if not (page.parent / t).exists()]


@pytest.mark.parametrize("page", PAGES, ids=relative)
def test_python_blocks_run_in_order(page, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    torch.manual_seed(0)
    namespace: dict[str, object] = {"__name__": page.stem}
    for line, info, block in fences(page.read_text(encoding="utf-8")):
        if info == "python":
            # The blank lines make a traceback name the line of the page.
            exec(compile("\n" * (line - 1) + block, str(page), "exec"), namespace)


def test_python_blocks_are_found_and_marked_ones_left_alone():
    text = "```python\na = 1\n```\n\n```python no-run\nb = 2\n```\n\n  ```sh\n  ls\n  ```\n"
    assert list(fences(text)) == [(2, "python", "a = 1"), (6, "python no-run", "b = 2"), (10, "sh", "ls")]


def test_the_page_on_attention_names_all_options():
    page = (ROOT / "docs" / "attention.md").read_text(encoding="utf-8").split("| name | options |")[1]
    rows = re.findall(r"^\| `([\w-]+)` \| (.*?) \|", page, re.MULTILINE)
    shown = {name: re.findall(r"`(\w+)`", options) for name, options in rows}
    shown["flexformer-n"] = shown["flexformer-s"]  # "the same"
    assert shown == {name: list(flexformer.attention.options(name)) for name in flexformer.ATTENTIONS}
