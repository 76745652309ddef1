"""Peak memory of a call, measured in a process of its own."""

from __future__ import annotations

import contextlib
import json
import os
import signal
import subprocess
import sys
from collections.abc import Sequence
from types import TracebackType
from typing import Any, NamedTuple

from .timing import Failure


class Memory(NamedTuple):
    """What one call in a new process showed."""

    peak_bytes: int | None
    """high-water mark above what the process held before the call; None where the system does not tell"""
    input_bytes: int
    output_bytes: int
    seconds: float
    """of this first call, page faults and all: good enough to foretell how long others will take"""


class Probe:
    """A process that measures memory, job by job; see `flexformer.bench.probe`.

    Args:
        threads: of torch.
        timeout: seconds a job may take.
        preload: modules that jobs import late, to be imported once for all of them.
    """

    def __init__(self, threads: int, timeout: float, preload: Sequence[str] = ()) -> None:
        self.threads, self.timeout, self.preload = threads, timeout, list(preload)
        self._process: subprocess.Popen[str] | None = None

    def __enter__(self) -> Probe:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, value: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._end()

    def measure(self, target: str, **arguments: Any) -> Memory | Failure:
        """Memory of the call that `target`, "module:function", prepares from JSON-able `arguments`."""
        process = self._running()
        job = {"target": target, "arguments": arguments, "threads": self.threads}
        job |= {"timeout": self.timeout, "preload": self.preload}
        assert process.stdin is not None
        assert process.stdout is not None
        try:
            process.stdin.write(json.dumps(job) + "\n")
            process.stdin.flush()
            line = process.stdout.readline()
        except BrokenPipeError:
            line = ""
        if not line or not sys.platform.startswith("linux"):
            self._end()  # it is gone, or cannot fork and would keep what this job left behind
        if not line:
            return Failure("failed: the measuring process ended")
        found = json.loads(line)
        if "failed" in found:
            return Failure(found["failed"])
        if not found["finite"]:
            return Failure("failed: outputs or gradients are not finite")
        return Memory(found.get("peak_bytes"), found["input_bytes"], found["output_bytes"], found["seconds"])

    def _running(self) -> subprocess.Popen[str]:
        if self._process is None:
            command = [sys.executable, "-m", "flexformer.bench.probe"]
            # What can be imported here can be imported there, and from the same files.
            environment = os.environ | {"PYTHONPATH": os.pathsep.join(path for path in sys.path if path)}
            self._process = subprocess.Popen(
                command,
                stdin=subprocess.PIPE,
                stdout=subprocess.PIPE,
                stderr=subprocess.DEVNULL,
                text=True,
                start_new_session=True,
                env=environment,
            )
        return self._process

    def _end(self) -> None:
        if self._process is not None:
            if hasattr(os, "killpg"):
                # The job that is running is a child of that process: it must not outlive it.
                with contextlib.suppress(ProcessLookupError):
                    os.killpg(self._process.pid, signal.SIGKILL)
            else:
                self._process.kill()
            self._process.communicate()
            self._process = None
