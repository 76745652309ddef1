"""The same work in several processes, results in order."""

from __future__ import annotations

import multiprocessing
import os
import signal
from collections import deque
from collections.abc import Callable, Generator, Iterable
from concurrent.futures import Future, ProcessPoolExecutor
from concurrent.futures.process import BrokenProcessPool
from typing import TypeVar

Argument = TypeVar("Argument")
Result = TypeVar("Result")


def default_workers() -> int:
    """One process for each core this process may use."""
    try:
        return len(os.sched_getaffinity(0))
    except AttributeError:  # not on macOS and Windows
        return os.cpu_count() or 1


def ordered_map(
    function: Callable[[Argument], Result], arguments: Iterable[Argument], workers: int | None = None
) -> Generator[Result, None, None]:
    """function(argument) for each argument, in order, computed by `workers` processes (1: by this one).

    Arguments are taken as they are needed, so the iterable may be endless: close the generator to stop. Processes
    are started afresh rather than forked, because this one may hold threads and locks.
    """
    workers = default_workers() if workers is None else workers
    if workers < 1:
        raise ValueError(f"workers {workers} do nothing; use 1 or more")
    if workers == 1:
        yield from map(function, arguments)
        return
    context = multiprocessing.get_context("spawn")
    pool = ProcessPoolExecutor(workers, mp_context=context, initializer=_leave_interrupts_to_the_parent)
    pending: deque[Future[Result]] = deque()
    try:
        for argument in arguments:
            pending.append(pool.submit(function, argument))
            if len(pending) >= 2 * workers:
                yield pending.popleft().result()
        while pending:
            yield pending.popleft().result()
    except BrokenProcessPool as error:
        raise RuntimeError(
            "a worker process ended before its work was done; if this is a script, put its code under "
            "`if __name__ == '__main__':`, or use workers=1"
        ) from error
    finally:
        pool.shutdown(wait=False, cancel_futures=True)


def _leave_interrupts_to_the_parent() -> None:
    # Ctrl-C reaches every process of the terminal; the workers' tracebacks would bury the parent's one line.
    signal.signal(signal.SIGINT, signal.SIG_IGN)
