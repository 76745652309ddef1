"""The process that a grid's runs happen in: `python -m flexformer.experiments.worker`.

It reads jobs, one JSON object to a line, and answers each with one. Where that is possible every job runs in a child of
its own, forked after the imports and before any computation: each starts at once, and finds nothing that an earlier one
left behind. Elsewhere, and where there is a GPU, whose state cannot be forked, the process ends after one job. What
jobs print goes to the error stream. A polite kill is passed on to the job; so is the death of whoever asked.
"""

from __future__ import annotations

import contextlib
import importlib
import json
import os
import select
import signal
import sys
import threading
import traceback
from types import FrameType
from typing import Any

import torch

from flexformer.provenance import commit

POLL_SECONDS = 0.2
FAILED, SIGNAL_STATUS = 1, 128
JOBS_INPUT = 0


def can_fork() -> bool:
    """Whether children may be forked once torch is imported."""
    return sys.platform.startswith("linux") and not torch.cuda.is_available()


def serve() -> None:
    """Answer jobs until there are no more."""
    importlib.import_module("sympy")  # torch would import it at every child's first backward
    commit()  # that of the code which is imported here, whatever happens to the checkout before the last job
    if can_fork():
        for module in ("flexformer.training", "flexformer.distill.procedures"):
            importlib.import_module(module)
        _serve_children()
    else:
        line = sys.stdin.readline()
        threading.Thread(target=_stop_with_asker, daemon=True).start()
        answer(json.loads(line), last=True)


def _stop_with_asker() -> None:
    sys.stdin.read()  # ends when whoever holds the other end does
    os.kill(os.getpid(), signal.SIGTERM)


def _serve_children() -> None:
    child: int | None = None

    def pass_on(number: int, frame: FrameType | None) -> None:
        if child is not None:
            with contextlib.suppress(ProcessLookupError):
                os.kill(child, number)

    signal.signal(signal.SIGTERM, pass_on)
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # a Ctrl-C reaches the job by itself
    jobs = _Jobs()
    while (line := jobs.next()) is not None:
        child = os.fork()
        if child == 0:
            signal.signal(signal.SIGTERM, signal.SIG_DFL)
            signal.signal(signal.SIGINT, signal.default_int_handler)
            answer(json.loads(line))
            os._exit(0)
        _say_how_it_died(jobs.wait(child))
        child = None


class _Jobs:
    """Lines from whoever asks; the next one may come before the process of the last one is gone."""

    def __init__(self) -> None:
        self.received = b""
        self.more = True

    def next(self) -> bytes | None:
        """A job; None when there will be no more."""
        while self.more and b"\n" not in self.received:
            self._receive()
        line, end, self.received = self.received.partition(b"\n")
        return line if end else None

    def wait(self, child: int) -> int:
        """The child's status; it is asked to stop when nobody waits for it any more."""
        while True:
            ended, status = os.waitpid(child, os.WNOHANG)
            if ended:
                return status
            if select.select([JOBS_INPUT] if self.more else [], [], [], POLL_SECONDS)[0]:
                self._receive()
                if not self.more:
                    os.kill(child, signal.SIGTERM)

    def _receive(self) -> None:
        received = os.read(JOBS_INPUT, 1 << 16)
        self.more = bool(received)
        self.received += received


def _say_how_it_died(status: int) -> None:
    if os.WIFSIGNALED(status):
        number = os.WTERMSIG(status)
        _say({"failed": f"ended by signal {number}", "status": SIGNAL_STATUS + number})
    elif os.WEXITSTATUS(status):
        _say({"failed": f"ended with status {os.WEXITSTATUS(status)}", "status": os.WEXITSTATUS(status)})


def answer(job: dict[str, Any], last: bool = False) -> None:
    """Call what a job names, "module:function", with its arguments, and print what it returns.

    Args:
        job: `target` and `arguments`.
        last: Say that this process takes no more jobs.
    """
    module, _, name = job["target"].partition(":")
    try:
        with contextlib.redirect_stdout(sys.stderr):  # ours is for answers
            found = {"found": getattr(importlib.import_module(module), name)(**job["arguments"])}
    except KeyboardInterrupt:
        found = {"failed": "interrupted", "status": SIGNAL_STATUS + signal.SIGINT}
    except Exception as error:
        status = getattr(error, "status", None)  # of a run that was stopped
        by_user = status is not None or isinstance(error, ValueError | TypeError | OSError | ModuleNotFoundError)
        if not by_user or os.environ.get("FLEXFORMER_DEBUG", "0") not in ("", "0"):
            traceback.print_exc()
        found = {"failed": " ".join(str(error).split()) or type(error).__name__, "status": status or FAILED}
    sys.stderr.flush()
    _say(found | {"last": last})


def _say(found: dict[str, Any]) -> None:
    with contextlib.suppress(BrokenPipeError):  # whoever asked is gone
        print(json.dumps(found), flush=True)


if __name__ == "__main__":
    serve()
