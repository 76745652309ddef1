"""The section about where and with what everything ran, and how to run it again."""

from __future__ import annotations

import shlex
from collections.abc import Iterable, Sequence
from typing import Any

from .html import Markup, details, join, table, tag
from .sources import Bench, Run, Sources

Record = dict[str, Any]


def section(sources: Sources) -> Markup:
    records = [run.record for run in sources.runs] + [bench.record for bench in sources.benches]
    cells = [cell for results in sources.results for cell in results.cells]
    facts = {
        "versions": _distinct(_versions(record) for record in (*records, *cells)),
        "machine": _distinct(_machine(record) for record in (*records, *cells)),
        "commit": _distinct(str(record.get("commit") or "") for record in (*records, *cells)),
    }
    listed = [tag("dt", name) + tag("dd", *_lines(values)) for name, values in facts.items() if values]
    parts = [tag("dl", *listed) if listed else None]
    if sources.runs or sources.benches:
        parts.append(details("Every run with its command", _commands(sources.runs, sources.benches)))
    return join(part for part in parts if part is not None)


def _lines(values: list[str]) -> list[Markup]:
    return [tag("div", value) for value in values]


def _commands(runs: Sequence[Run], benches: Sequence[Bench]) -> Markup:
    rows = [[run.name, tag("code", _command(run.record))] for run in runs]
    rows += [[bench.path.stem, tag("code", _command(bench.record))] for bench in benches]
    return table(["run", "command"], rows, words=2)


def _command(record: Record) -> str:
    command = record.get("command") or ""
    return command if isinstance(command, str) else shlex.join(map(str, command))


def _versions(record: Record) -> str:
    return ", ".join(f"{name} {version}" for name, version in (record.get("versions") or {}).items())


def _machine(record: Record) -> str:
    machine = dict(record.get("machine") or {})
    parts = [str(machine[key]) for key in ("cpu", "device", "instructions", "system") if machine.get(key)]
    if machine.get("cores"):
        parts.append(f"{machine['cores']} cores")
    threads = machine.get("threads") or record.get("threads")
    if threads:
        parts.append("1 thread" if threads == 1 else f"{threads} threads")
    if machine.get("memory_bytes"):
        parts.append(f"{machine['memory_bytes'] / 2**30:.0f} GiB")
    return ", ".join(parts)


def _distinct(values: Iterable[str]) -> list[str]:
    return [value for value in dict.fromkeys(values) if value]
