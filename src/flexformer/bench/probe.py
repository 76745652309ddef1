"""The process that measures memory: `python -m flexformer.bench.probe`.

It reads jobs, one JSON object to a line, and answers each with one. Every job runs in a child of its own, forked after
the imports and before any computation, so that no job finds memory that an earlier one left behind. The peak is the
process's high-water mark above what it held just before the call. Where the mark cannot be set back (macOS), it is what
the call adds to the mark; where there is none (Windows), nothing.
"""

from __future__ import annotations

import contextlib
import ctypes
import gc
import importlib
import json
import os
import signal
import sys
import time
from collections.abc import Callable
from typing import Any

import torch

from .status import OF_THE_MACHINE, read_status
from .timing import failure_of

SHARE_OF_AVAILABLE = 0.7  # of the machine's free memory that a job may take before it fails

FORKS = sys.platform.startswith("linux")  # elsewhere every job gets a new process from whoever asks
Job = dict[str, Any]


def serve() -> None:
    """Answer jobs until there are no more."""
    importlib.import_module("sympy")  # torch would import it at every child's first backward
    for line in sys.stdin:
        job = json.loads(line)
        for module in (*job["preload"], job["target"].partition(":")[0]):
            importlib.import_module(module)  # here, so that children need not
        if FORKS:
            _in_child(job)
        else:
            answer(job)


def _in_child(job: Job) -> None:
    child = os.fork()
    if child == 0:
        answer(job)
        sys.stdout.flush()
        os._exit(0)
    _, status = os.waitpid(child, 0)
    if os.WIFSIGNALED(status):
        number = os.WTERMSIG(status)
        timed_out = number == signal.SIGALRM
        reason = "took too long" if timed_out else f"ended by signal {number}"
        _say({"failed": f"failed: {reason}"})
    elif os.WEXITSTATUS(status):
        _say({"failed": f"failed: exit status {os.WEXITSTATUS(status)}"})


def answer(job: Job) -> None:
    """Run a job and print what was found."""
    try:
        with contextlib.redirect_stdout(sys.stderr):  # ours is for answers; what is measured may print too
            found = measure(job)
        _say(found)
    except Exception as error:  # whatever it was, it is the answer
        _say({"failed": failure_of(error).reason})


def measure(job: Job) -> dict[str, Any]:
    """Memory and time of one call.

    Args:
        job: `target`, "module:function"; `arguments` for it; `threads`; `timeout` in seconds. The function returns a
            small call to warm up with, the call to measure, and the tensors that are its inputs.
    """
    torch.set_num_threads(job["threads"])
    if hasattr(signal, "alarm"):
        signal.alarm(max(1, int(job["timeout"])))
    module, _, name = job["target"].partition(":")
    prepare: Callable[..., Any] = getattr(importlib.import_module(module), name)
    warm_up, call, inputs = prepare(**job["arguments"])
    _limit_memory()
    warm_up()
    gc.collect()
    _give_back()
    before = _begin_peak()
    started = time.perf_counter()
    out = call()
    seconds = time.perf_counter() - started
    peak = _peak()
    found: dict[str, Any] = {
        "seconds": seconds,
        "finite": all(bool(tensor.isfinite().all()) for tensor in _tensors(out)),
        "input_bytes": sum(tensor.nbytes for tensor in inputs),
        "output_bytes": sum(tensor.nbytes for tensor in _tensors(out)),
    }
    if before is not None and peak is not None:
        found["peak_bytes"] = max(0, peak - before)
    return found


def _tensors(out: Any) -> list[torch.Tensor]:
    parts = out if isinstance(out, tuple | list) else (out,)
    return [part for part in parts if isinstance(part, torch.Tensor)]


def _give_back() -> None:
    """Return freed memory to the system: what the call could take from there would not be counted."""
    with contextlib.suppress(OSError, AttributeError, TypeError):
        ctypes.CDLL(None).malloc_trim(0)  # of glibc; elsewhere there is none


def _begin_peak() -> int | None:
    """Bytes held now, and from now on the high-water mark counts anew; None where it cannot be measured."""
    held = read_status("VmRSS")
    if held is None:
        return _largest_ever()
    try:
        with open("/proc/self/clear_refs", "w") as file:
            file.write("5")
    except OSError:
        # The mark stays where the warm-up or the inputs left it: what is measured above that is still right.
        return read_status("VmHWM")
    return held


def _peak() -> int | None:
    mark = read_status("VmHWM")
    return _largest_ever() if mark is None else mark


def _largest_ever() -> int | None:
    """The process's high-water mark since it began, where there is no /proc."""
    try:
        import resource
    except ModuleNotFoundError:  # Windows
        return None
    largest = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    return largest if sys.platform == "darwin" else largest * 1024


def _limit_memory() -> None:
    """Fail with an error rather than take the machine down."""
    available, held = read_status("MemAvailable", OF_THE_MACHINE), read_status("VmSize")
    if available is not None and held is not None:
        import resource

        most = held + int(SHARE_OF_AVAILABLE * available)
        _, hard = resource.getrlimit(resource.RLIMIT_AS)
        resource.setrlimit(resource.RLIMIT_AS, (most if hard < 0 else min(most, hard), hard))


def _say(found: dict[str, Any]) -> None:
    print(json.dumps(found), flush=True)


if __name__ == "__main__":
    serve()
