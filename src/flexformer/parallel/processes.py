"""The processes of a run: how many there are, what they agree on, and how it shows that one is gone."""

from __future__ import annotations

import os
from datetime import timedelta

import torch
import torch.distributed as dist

# What gloo and the store say; torch raises plain RuntimeErrors for most of it.
SIGNS = (
    "Connection closed by peer",
    "Connection reset by peer",
    "Connection refused",
    "Broken pipe",
    "timeout caused pair closure",
    "Timed out waiting",
    "Socket Timeout",
    "wait timeout",
    "failed to recv",
    "Watchdog caught collective operation timeout",
    "remote process exited",
)


class ProcessesGoneError(ValueError):
    """Another process of the run has died or does not answer."""

    leave_at_once = True
    """torch's threads still wait for the lost process, and can abort an interpreter that shuts down in good order"""


def process_count() -> int:
    """How many processes `torchrun` or `accelerate launch` has started."""
    return int(os.environ.get("WORLD_SIZE", "1"))


def is_first_process() -> bool:
    """Whether this process is the one that writes and prints."""
    return os.environ.get("RANK", "0") == "0"


def processes_are_gone(error: BaseException) -> bool:
    """Whether an error says that another process does not answer."""
    if not (dist.is_available() and dist.is_initialized()):
        return False
    return isinstance(error, dist.DistError) or any(sign in str(error) for sign in SIGNS)


def meet_others(timeout: float) -> None:
    """Join the others through gloo, as accelerate does on CPUs, but with a timeout in seconds, which it leaves out."""
    if process_count() > 1 and dist.is_available() and not dist.is_initialized():
        dist.init_process_group("gloo", timeout=timedelta(seconds=timeout))


def agreed(number: int, device: torch.device) -> int:
    """The first process's number, on all."""
    if not (dist.is_available() and dist.is_initialized()):
        return number
    shared = torch.tensor(number, device=device)
    dist.broadcast(shared, 0)
    return int(shared)


def describe_processes(kind: str) -> dict[str, int | str]:
    """For a run's record: how many processes take part and how.

    Args:
        kind: what accelerate says it does, such as "MULTI_CPU" or "FSDP".

    Raises:
        ValueError: FSDP was asked for and does not run, which accelerate keeps to itself.
    """
    count = dist.get_world_size() if dist.is_available() and dist.is_initialized() else 1
    if os.environ.get("ACCELERATE_USE_FSDP", "").lower() in ("1", "true") and kind != "FSDP":
        raise ValueError(
            f"accelerate was asked for FSDP but runs {kind} here: it shards on accelerators alone; leave --use_fsdp "
            "out, or use torch's fully_shard as in docs/scaling.md"
        )
    if count < process_count():
        raise ValueError(f"{process_count()} processes were started, but only {count} take part; start with torchrun")
    return {"processes": count, "parallel": kind}
