"""What Linux tells about memory."""

from __future__ import annotations

import contextlib

OF_THIS_PROCESS = "/proc/self/status"
OF_THE_MACHINE = "/proc/meminfo"


def read_status(field: str, path: str = OF_THIS_PROCESS) -> int | None:
    """Bytes that a line of a status file tells; None where there is no such file or line."""
    with contextlib.suppress(OSError), open(path) as file:
        for line in file:
            if line.startswith(f"{field}:"):
                return int(line.split()[1]) * 1024
    return None
