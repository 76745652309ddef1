"""Results as data: what was run, where, and what came out."""

from __future__ import annotations

import dataclasses
import datetime
import json
import os
import platform
from pathlib import Path
from typing import Any, TypeAlias

import torch

from ..provenance import commit, cpu_model, versions
from .attention import AttentionOptions
from .decode import DecodeOptions
from .model import ModelOptions
from .ranks import RanksOptions
from .scaling import ScalingOptions
from .status import OF_THE_MACHINE, read_status
from .vocabulary import VocabularyOptions

Record: TypeAlias = dict[str, Any]

OPTIONS: dict[str, Any] = {
    "attention": AttentionOptions,
    "scaling": ScalingOptions,
    "decode": DecodeOptions,
    "model": ModelOptions,
    "vocabulary": VocabularyOptions,
    "ranks": RanksOptions,
}
PACKAGES = (
    "torch",
    "numpy",
    "transformers",
    "performer-pytorch",
    "linear-attention-transformer",
    "pytorch-fast-transformers",
    "flash-linear-attention",
)


def new_record(
    bench: str, options: dict[str, Any], found: dict[str, Any], seconds: float, load_before: float | None = None
) -> Record:
    """A run as JSON.

    Args:
        bench: "attention", "scaling", "decode", "model", "vocabulary" or "ranks".
        options: all options of the run.
        found: what was measured.
        seconds: the whole run took.
        load_before: the machine's load before it began, see `load`.
    """
    return {
        "bench": bench,
        "command": command_of(bench, options),
        "options": options,
        **found,
        "machine": describe_machine(),
        "threads": options["threads"],
        "load_before": load_before,
        "versions": versions(*PACKAGES),
        "commit": commit(),
        "date": datetime.datetime.now(datetime.timezone.utc).isoformat(timespec="seconds"),
        "seconds": round(seconds, 1),
    }


def command_of(bench: str, options: dict[str, Any]) -> str:
    """The command line that gives these options: those that are not the defaults."""
    words = ["flexformer", "bench", bench]
    defaults = dataclasses.asdict(OPTIONS[bench]())
    for option, value in options.items():
        default = defaults.get(option)
        if _as_json(value) == _as_json(default):
            continue
        if option == "passes":
            option, value = "direction", value[0]
        option = f"--{option.replace('_', '-')}"
        if isinstance(value, list | tuple):
            value = f"[{','.join(map(str, value))}]"
        words.append(option if value is True else f"{option}={str(value).lower()}")
    return " ".join(words)


def load() -> float | None:
    """Processes that want to run, on average over the last minute: what else the machine was busy with."""
    try:
        return round(os.getloadavg()[0], 2)
    except (AttributeError, OSError):  # Windows
        return None


def name_of(bench: str, options: dict[str, Any]) -> str:
    """The name of a run's files: what distinguishes it from the other runs of the same bench."""
    threads = options["threads"]
    parts = [bench]
    if options.get("is_causal"):
        parts.append("causal")
    if options.get("dtype", "float32") != "float32":
        parts.append(options["dtype"])
    parts.append("1-thread" if threads == 1 else f"{threads}-threads")
    if options.get("smoke"):
        parts.append("smoke")
    return "-".join(parts)


def read_records(folder: Path) -> dict[str, Record]:
    """All runs in a folder and those below it by the names of their files, smoke runs left out."""
    paths = sorted(folder.rglob("*.json"))
    names = (path.relative_to(folder).with_suffix("").as_posix() for path in paths)
    found = {name: json.loads(path.read_text(encoding="utf-8")) for name, path in zip(names, paths, strict=True)}
    return {name: record for name, record in found.items() if not record["options"].get("smoke")}


def to_json(record: Record) -> str:
    return json.dumps(record, indent=1) + "\n"


def describe_machine() -> dict[str, Any]:
    return {
        "cpu": cpu_model(),
        "instructions": torch.backends.cpu.get_cpu_capability(),
        "cores": os.cpu_count(),
        "memory_bytes": read_status("MemTotal", OF_THE_MACHINE),
        "system": f"{platform.system()} {platform.machine()}",
    }


def _as_json(value: Any) -> Any:
    return list(value) if isinstance(value, tuple) else value
