"""A language model trained in a process of its own, which may be told to die.

python toy_language_run.py OUTPUT ROOT ATTENTION UNIT [at STEP | saving STEP | testing]
"""

from __future__ import annotations

import signal
import sys
from pathlib import Path

import torch
from rich.console import Console

sys.path.insert(0, str(Path(__file__).parent))

import toy_run

from flexformer.training import (
    LanguageDataOptions,
    LanguageJob,
    LanguageModelOptions,
    LanguageOptions,
    OptimizerOptions,
    ScheduleOptions,
    TrainingOptions,
    run_job,
)

STEPS = 18
OPTIONS = {"performer": {"redraw_interval": 7}}
TEXT = "".join(
    f"{number} times {number} is {number * number} , said the {number % 7} th cat .\n" for number in range(400)
)


def options(attention: str, root: Path, unit: str = "word", **training) -> LanguageOptions:
    """Few words and rare numbers: three bands of vocabulary, the last one not in every batch."""
    text = root / "numbers.txt"
    if not text.exists():
        root.mkdir(parents=True, exist_ok=True)
        text.write_text(TEXT)
    settings = {"steps": STEPS, "batch_size": 6, "evaluate_every": 5, "log_every": 2, "tensorboard": False} | training
    return LanguageOptions(
        attention,
        data=LanguageDataOptions(source=str(text), unit=unit, length=32, root=str(root), train_limit=40),
        model=LanguageModelOptions(
            layers=1, width=32, feed_forward=32, cutoffs=[24, 200], attention_options=OPTIONS.get(attention, {})
        ),
        optimizer=OptimizerOptions(lr=3e-3, clip=0.1, eps=1e-8),
        schedule=ScheduleOptions("inverse-sqrt", warmup=4),
        training=TrainingOptions(select="best", **settings),
    )


def main() -> int:
    output, root, attention, unit, *death = sys.argv[1:]
    torch.set_num_threads(1)
    if death[:1] == ["at"]:
        toy_run.die_at(int(death[1]), signal.SIGKILL)
    elif death[:1] == ["saving"]:
        toy_run.die_while_saving(int(death[1]))
    elif death[:1] == ["testing"]:
        toy_run.die_while_testing()
    run_job(LanguageJob(options(attention, Path(root), unit)), Path(output), Console())
    return 0


if __name__ == "__main__":
    sys.exit(main())
