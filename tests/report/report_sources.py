"""Small sources of reports: a run's folder, a benchmark record, a folder of results."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any


def write_run(folder: Path, attention: str = "softmax", seed: int = 0, **changes: Any) -> Path:
    """A finished run of a task with a log, without weights."""
    folder.mkdir(parents=True)
    record = {
        "command": ["flexformer", "train", "text", "--attention", attention],
        "task": "text",
        "attention": attention,
        "scale": "cpu",
        "seed": seed,
        "options": {"attention": attention, "seed": seed, "data": {"source": None}},
        "status": "finished",
        "parameters": 12345,
        "steps": 40,
        "seconds": 75.0,
        "step_seconds": 0.02,
        "peak_memory": 2**24,
        "metrics": {"test_accuracy": 0.6 + 0.01 * seed},
        "commit": "abc123",
        "versions": {"flexformer": "0.1.0", "torch": "2.13.0"},
        "machine": {"system": "Linux x86_64", "cores": 2, "threads": 1, "device": "cpu"},
    }
    (folder / "run.json").write_text(json.dumps(record | changes))
    entries = [{"step": step, "loss": 3.0 / step, "learning_rate": 0.1} for step in range(1, 41)]
    entries += [{"step": step, "eval_accuracy": 0.5 + step / 400} for step in (20, 40)]
    lines = "".join(json.dumps(entry) + "\n" for entry in entries)
    (folder / "log.jsonl").write_text(lines + '{"step": 41, "lo')  # as a kill leaves it
    return folder


def bench_record(kind: str = "scaling") -> dict[str, Any]:
    """A record of `flexformer bench`."""
    measurements = [
        {
            "row": row,
            "family": "ours",
            "length": length,
            "pass": "forward",
            "seconds": None if row == "softmax" and length > 4096 else {"median": 1e-6 * length * slow},
            "memory": {"peak_bytes": 100 * length},
            "note": "skipped: too slow" if row == "softmax" and length > 4096 else None,
        }
        for row, slow in (("softmax", 7), ("flexformer-n", 2))
        for length in (1024, 4096, 16384)
    ]
    return {
        "bench": kind,
        "command": f"flexformer bench {kind}",
        "options": {"is_causal": True, "head_dim": 32, "heads": 4, "batch": 1, "dtype": "float32"},
        "measurements": measurements,
        "machine": {"cpu": "A CPU", "cores": 2, "memory_bytes": 2**33},
        "threads": 1,
        "versions": {"flexformer": "0.1.0"},
        "commit": "abc123",
    }


def write_results(folder: Path) -> Path:
    """Cells with the table that was made from them."""
    folder.mkdir(parents=True)
    (folder / "softmax-0.json").write_text(json.dumps({"command": "flexformer x", "metrics": {"accuracy": 0.5}}))
    (folder / "table1-cpu.md").write_text(
        "# Table 1\n\nAccuracy, **ours** and `theirs`.\n\n"
        "| attention | text |\n|---|---:|\n| softmax | **65.1** ± 0.2 |\n"
    )
    return folder
