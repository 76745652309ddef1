"""What a training step costs: time and memory."""

from __future__ import annotations

import statistics
import time
from typing import Any

import torch
from transformers import TrainerCallback, TrainerControl, TrainerState, TrainingArguments

SAMPLED_STEPS = 20
LARGEST_SAMPLE = 10_000


class Meter(TrainerCallback):
    """Measures steps, not what happens between them: the median time, and the peak memory of the first twenty.

    Memory is counted from what the process, or the GPU, held before training began, the model included; it is None
    where the system does not tell.
    """

    def __init__(self) -> None:
        self._seconds: list[float] = []
        self._began = 0.0
        self._memory_before: int | None = None
        self._peak: int | None = None

    @property
    def step_seconds(self) -> float | None:
        """Median time of a step; None before the second one, as the first is always slow."""
        return statistics.median(self._seconds[1:]) if len(self._seconds) > 1 else None

    @property
    def peak_memory(self) -> int | None:
        """Bytes at the worst moment of a step."""
        if self._peak is None or self._memory_before is None:
            return None
        return max(0, self._peak - self._memory_before)

    def on_train_begin(
        self, args: TrainingArguments, state: TrainerState, control: TrainerControl, **kwargs: Any
    ) -> None:
        on_gpu = args.device.type == "cuda"
        self._memory_before = torch.cuda.memory_allocated() if on_gpu else _status("VmRSS")

    def on_step_begin(
        self, args: TrainingArguments, state: TrainerState, control: TrainerControl, **kwargs: Any
    ) -> None:
        if len(self._seconds) < SAMPLED_STEPS:
            _forget_peak(args.device)
        self._began = time.perf_counter()

    def on_step_end(self, args: TrainingArguments, state: TrainerState, control: TrainerControl, **kwargs: Any) -> None:
        if args.device.type == "cuda":
            torch.cuda.synchronize()
        if len(self._seconds) < LARGEST_SAMPLE:
            self._seconds.append(time.perf_counter() - self._began)
        if len(self._seconds) <= SAMPLED_STEPS:
            peak = torch.cuda.max_memory_allocated() if args.device.type == "cuda" else _status("VmHWM")
            if peak is not None:
                self._peak = max(peak, self._peak or 0)


def _forget_peak(device: torch.device) -> None:
    if device.type == "cuda":
        torch.cuda.reset_peak_memory_stats()
        return
    try:
        with open("/proc/self/clear_refs", "w") as file:
            file.write("5")
    except OSError:
        pass  # without it the peak is that of the process's whole life


def _status(field: str) -> int | None:
    """A field of this process's status in bytes, None where there is none."""
    try:
        with open("/proc/self/status") as file:
            for line in file:
                if line.startswith(f"{field}:"):
                    return int(line.split()[1]) * 1024
    except OSError:
        pass
    return None
