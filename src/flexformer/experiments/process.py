"""The grid's end of its worker: jobs go there, answers come back."""

from __future__ import annotations

import contextlib
import json
import os
import queue
import subprocess
import sys
import threading
import time
from types import TracebackType
from typing import Any, TextIO


class JobError(Exception):
    """A job did not finish.

    Args:
        message: Why, in one line.
        status: The exit status it would have had.
    """

    def __init__(self, message: str, status: int) -> None:
        super().__init__(message)
        self.status = status


class Worker:
    """Runs jobs one after the other in processes of their own; see `flexformer.experiments.worker`.

    Args:
        shown: An open file, not only a stream, that takes what jobs print.
    """

    def __init__(self, shown: TextIO) -> None:
        self.shown = shown
        self._process: subprocess.Popen[str] | None = None
        self._answers: queue.Queue[str] = queue.Queue()

    def __enter__(self) -> Worker:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, value: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._end()

    def run(self, target: str, arguments: dict[str, Any], deadline: float | None = None) -> Any:
        """What the function "module:function" returns for JSON-able arguments.

        Args:
            target: The function.
            arguments: For it.
            deadline: By `time.monotonic`, when the job is asked to stop, which a training run does with a checkpoint.

        Raises:
            JobError: It failed, or was stopped.
        """
        process = self._running()
        assert process.stdin is not None
        with contextlib.suppress(BrokenPipeError):
            process.stdin.write(json.dumps({"target": target, "arguments": arguments}) + "\n")
            process.stdin.flush()
        try:
            line = self._answer(process, deadline)
        except KeyboardInterrupt:
            # The job was told by the same Ctrl-C and saves what it has; a second one ends it at once.
            self._answer(process, None)
            raise
        if not line:
            self._end()
            raise JobError("the process that runs the grid's jobs ended; its message is above", 1)
        found = json.loads(line)
        if found.get("last"):
            self._end()
        if "failed" in found:
            raise JobError(found["failed"], found["status"])
        return found["found"]

    def _answer(self, process: subprocess.Popen[str], deadline: float | None) -> str:
        if deadline is not None:
            try:
                return self._answers.get(timeout=max(0.0, deadline - time.monotonic()))
            except queue.Empty:
                process.terminate()  # passed on to the job
        return self._answers.get()

    def _running(self) -> subprocess.Popen[str]:
        if self._process is None:
            # What can be imported here can be imported there, and from the same files.
            environment = os.environ | {"PYTHONPATH": os.pathsep.join(path for path in sys.path if path)}
            self._process = subprocess.Popen(
                [sys.executable, "-m", "flexformer.experiments.worker"],
                stdin=subprocess.PIPE,
                stdout=subprocess.PIPE,
                stderr=self.shown,
                text=True,
                env=environment,
            )
            self._answers = queue.Queue()
            threading.Thread(target=_listen, args=(self._process, self._answers), daemon=True).start()
        return self._process

    def _end(self) -> None:
        if self._process is None:
            return
        process, self._process = self._process, None
        assert process.stdin is not None
        with contextlib.suppress(BrokenPipeError):
            process.stdin.close()  # it ends when there are no more jobs
        process.wait()


def _listen(process: subprocess.Popen[str], answers: queue.Queue[str]) -> None:
    assert process.stdout is not None
    for line in process.stdout:
        answers.put(line)
    answers.put("")
