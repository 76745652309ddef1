"""Run a function on several processes of this machine."""

from __future__ import annotations

import os
import sys
import traceback
from collections.abc import Callable
from datetime import timedelta
from pathlib import Path
from typing import Any

import torch
import torch.distributed as dist
import torch.multiprocessing as mp

PATIENCE = 300  # seconds; a loaded machine may hold processes up


def on_ranks(size: int, folder: Path, function: Callable[..., Any], *arguments: Any) -> list[Any]:
    """What `function(*arguments)` returns on each of `size` ranks of a gloo group: tensors, numbers, lists, dicts."""
    folder.mkdir(parents=True, exist_ok=True)
    context = mp.get_context("spawn")
    started = [context.Process(target=_rank, args=(r, size, folder, function, arguments)) for r in range(size)]
    for process in started:
        process.start()
    for process in started:
        process.join(PATIENCE)
    for process in started:
        if process.is_alive():
            process.kill()
    faults = [path.read_text() for path in sorted(folder.glob("fault-*"))]
    assert not faults, faults[0]
    assert [process.exitcode for process in started] == [0] * size
    return [torch.load(folder / f"result-{r}.pt", weights_only=True) for r in range(size)]


def _rank(rank: int, size: int, folder: Path, function: Callable[..., Any], arguments: tuple[Any, ...]) -> None:
    os.environ["OMP_NUM_THREADS"] = "1"
    torch.set_num_threads(1)
    start = f"file://{folder / 'meeting'}"
    dist.init_process_group("gloo", init_method=start, rank=rank, world_size=size, timeout=timedelta(seconds=PATIENCE))
    try:
        torch.save(function(*arguments), folder / f"result-{rank}.pt")
    except BaseException:
        (folder / f"fault-{rank}").write_text(traceback.format_exc())
        raise
    dist.destroy_process_group()
    # A thread of gloo may still hold a tensor. Torch aborts when that is freed while the interpreter shuts down
    # (pytorch issue 190489), so it does not: everything asked for is written.
    sys.stderr.flush()
    os._exit(0)
