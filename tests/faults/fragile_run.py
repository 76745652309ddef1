"""A language model trained in a process of its own, with a disk that may be full.

python fragile_run.py OUTPUT ROOT STEPS SAVE_EVERY [full STEP | at STEP]
"""

from __future__ import annotations

import resource
import signal
import sys
from pathlib import Path

import torch
from rich.console import Console

sys.path.insert(0, str(Path(__file__).parents[1] / "training"))

import toy_language_run
import toy_run

from flexformer.training import LanguageJob, LanguageOptions, run_job
from flexformer.training.trainer import TaskTrainer

LIMIT = 6000  # bytes of a file: enough for the log and records, not for weights


def options(root: Path, steps: int = 18, save_every: int = 5) -> LanguageOptions:
    return toy_language_run.options("flexformer-n", root, "byte", steps=steps, save_every=save_every)


def fill_disk_at(step: int) -> None:
    """From a step on no file can grow beyond `LIMIT`; writing more fails as on a full disk."""
    original = TaskTrainer._save_checkpoint

    def save(self, *arguments):
        if self.state.global_step >= step:
            resource.setrlimit(resource.RLIMIT_FSIZE, (LIMIT, resource.RLIM_INFINITY))
        return original(self, *arguments)

    TaskTrainer._save_checkpoint = save


def main() -> int:
    output, root, steps, save_every, *fault = sys.argv[1:]
    torch.set_num_threads(1)
    if fault[:1] == ["full"]:
        fill_disk_at(int(fault[1]))
    elif fault[:1] == ["at"]:
        toy_run.die_at(int(fault[1]), signal.SIGKILL)
    chosen = options(Path(root), int(steps), int(save_every))
    try:
        run_job(LanguageJob(chosen), Path(output), Console())
    except ValueError as error:
        print(error)
        return 1
    return 0


if __name__ == "__main__":
    sys.exit(main())
