"""How many steps fit into the time there is, and the note of it that an interrupted demo goes on from."""

from __future__ import annotations

import json
import shutil
import statistics
import time
from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass, replace
from pathlib import Path

import torch

from ..bench.timing import fixed_threads
from ..files import write_json
from ..training import (
    LanguageDataOptions,
    LanguageModelOptions,
    LanguageOptions,
    OptimizerOptions,
    ScheduleOptions,
    TrainingOptions,
)
from ..training.language import build_language_model

ATTENTIONS = ("softmax", "flexformer-n", "linear", "flexformer-c")
"""in the order they are trained: the last are left out first where time runs short"""

LENGTH, BATCH, VOCABULARY = 256, 8, 256
VALIDATION, TEST, EVALUATIONS = 32, 64, 4
FEWEST, MOST = 10, 600

AIM = 0.8
"""of the time allowed, so that a machine that slows down does not break the promise"""
TRAINING = 0.72
"""of what is aimed at; the rest is for measuring, writing and the report"""
OVERHEAD = 1.15
"""of a trainer's step over a bare one"""
FIXED = 2.0
"""seconds of a run that do not depend on its steps"""
EVALUATED_STEPS = ((VALIDATION * EVALUATIONS + TEST) / BATCH) / 3
"""that evaluations take as long as"""

PLAN, NOTES, SCALING, REPORT, DATA = "plan.json", "demo.json", "scaling.json", "report.html", "data"


@dataclass(frozen=True)
class Plan:
    """What a demo does; `steps` is None until it is known."""

    minutes: float
    seed: int
    steps: int | None = None
    finished: bool = False

    def write(self, folder: Path) -> None:
        write_json(folder / PLAN, asdict(self))


def begin(folder: Path, minutes: float, seed: int) -> Plan:
    """The plan of an unfinished demo in the folder, or a new one in a folder that is cleared of an older demo.

    Raises:
        ValueError: An option makes no sense, or the folder holds something else.
    """
    if not 0 < minutes < 24 * 60:
        raise ValueError(f"minutes {minutes:g} is not a time for a demo; use more than 0, such as 5")
    folder.mkdir(parents=True, exist_ok=True)
    old = _read(folder)
    if old is None and any(folder.iterdir()):
        raise ValueError(f"output {folder} is not empty and holds no demo; choose another folder")
    if old is not None and not old.finished and (old.minutes, old.seed) == (minutes, seed):
        return old
    for name in (*ATTENTIONS, NOTES, SCALING, REPORT):
        path = folder / name
        shutil.rmtree(path) if path.is_dir() else path.unlink(missing_ok=True)
    plan = Plan(minutes, seed)
    plan.write(folder)
    return plan


def _read(folder: Path) -> Plan | None:
    try:
        return Plan(**json.loads((folder / PLAN).read_text(encoding="utf-8")))
    except FileNotFoundError:
        return None
    except (ValueError, TypeError) as error:
        raise ValueError(f"{folder / PLAN} is damaged ({error}); choose another folder or remove this one") from None


def options_for(attention: str, steps: int, seed: int, folder: Path) -> LanguageOptions:
    """One of the models: two layers of four heads, the same for all attentions."""
    return LanguageOptions(
        attention=attention,
        preset="demo",
        seed=seed,
        data=LanguageDataOptions(length=LENGTH, root=str(folder / DATA), validation_limit=VALIDATION, test_limit=TEST),
        model=LanguageModelOptions(
            layers=2,
            heads=4,
            width=128,
            feed_forward=512,
            activation="gelu",
            final_norm=True,
            dropout=0.0,
            attention_dropout=0.0,
            activation_dropout=0.0,
            softmax_dropout=0.0,
        ),
        optimizer=OptimizerOptions(lr=2e-3, weight_decay=0.01, clip=1.0),
        schedule=ScheduleOptions("cosine", warmup=max(1, steps // 10)),
        training=TrainingOptions(
            steps=steps,
            batch_size=BATCH,
            eval_batch_size=BATCH,
            evaluate_every=max(1, -(-steps // EVALUATIONS)),
            log_every=max(1, steps // 40),
            tensorboard=False,
        ),
    )


def step_seconds(
    attentions: Sequence[str],
    seed: int,
    folder: Path,
    rounds: int = 3,
    progress: Callable[[str], None] = lambda note: None,
) -> dict[str, float]:
    """Seconds of one bare training step with each attention: the median of a few, after one to warm up."""
    found = {}
    for attention in attentions:
        progress(attention)
        with torch.random.fork_rng(devices=[]):
            model = build_language_model(options_for(attention, FEWEST, seed, folder), VOCABULARY).train()
            tokens = torch.randint(VOCABULARY, (BATCH, LENGTH + 1))
        optimizer = torch.optim.AdamW(model.parameters(), lr=1e-3)
        times = []
        for _ in range(rounds + 1):
            started = time.perf_counter()
            model(tokens[:, :-1], shift_labels=tokens[:, 1:]).loss.backward()
            optimizer.step()
            optimizer.zero_grad()
            times.append(time.perf_counter() - started)
        found[attention] = statistics.median(times[1:])
    return found


def best_threads(seed: int, folder: Path) -> int:
    """As many threads as torch would use, or one: on a busy machine threads wait for each other, and one is faster."""
    found = {}
    for threads in {1, torch.get_num_threads()}:
        with fixed_threads(threads):
            found[threads] = step_seconds(["flexformer-n"], seed, folder, rounds=2)["flexformer-n"]
    return min(found, key=lambda threads: found[threads])


def steps_that_fit(minutes: float, elapsed: float, seconds: Sequence[float]) -> int:
    """Equal steps for all, of which one takes so many seconds with each attention."""
    available = AIM * TRAINING * 60 * minutes - elapsed - FIXED * len(seconds)
    return round(min(max(available / (OVERHEAD * sum(seconds)) - EVALUATED_STEPS, FEWEST), MOST))


def expected_seconds(steps: int, step: float) -> float:
    """Of a whole run, of which a bare step takes `step` seconds."""
    return FIXED + OVERHEAD * step * (steps + EVALUATED_STEPS)


def with_steps(plan: Plan, steps: int) -> Plan:
    return replace(plan, steps=steps)
