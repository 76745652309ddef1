"""What happens beside training: progress, the log, stopping early."""

from __future__ import annotations

import json
import math
import signal
import threading
import time
from pathlib import Path
from types import FrameType
from typing import Any

from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TaskID, TextColumn, TimeRemainingColumn
from transformers import TrainerCallback, TrainerControl, TrainerState, TrainingArguments

from ..files import write_text
from .job import TIMES

SECONDS_BETWEEN_LINES = 10.0


class DivergedError(ValueError):
    """The loss is no longer a number."""


class LogFile(TrainerCallback):
    """Every entry of the log as one line of JSON, and a stop where the loss is no longer a number.

    Args:
        path: The file; entries of steps that a resumed run will take again are dropped.
    """

    def __init__(self, path: Path) -> None:
        self.path = path

    def on_train_begin(
        self, args: TrainingArguments, state: TrainerState, control: TrainerControl, **kwargs: Any
    ) -> None:
        if not state.is_world_process_zero:
            return
        kept = [line for line in read_log(self.path) if line["step"] <= state.global_step]
        write_text(self.path, "".join(json.dumps(line) + "\n" for line in kept))

    def on_step_end(self, args: TrainingArguments, state: TrainerState, control: TrainerControl, **kwargs: Any) -> None:
        # Logged losses are means since the last entry. A run that resumes here starts a new mean, so this one does too;
        # an evaluation may yet find that these weights are the best and worth a checkpoint.
        if control.should_save or control.should_evaluate:
            control.should_log = True

    def on_log(
        self,
        args: TrainingArguments,
        state: TrainerState,
        control: TrainerControl,
        logs: dict[str, float] | None = None,
        **kwargs: Any,
    ) -> None:
        if not logs or "train_runtime" in logs:
            return
        if state.is_world_process_zero:
            entry = {"step": state.global_step} | {k: v for k, v in logs.items() if not k.endswith(TIMES)}
            with self.path.open("a", encoding="utf-8") as file:
                file.write(json.dumps(entry) + "\n")
        for name, shown in (("loss", "loss"), ("eval_loss", "validation loss")):
            loss = logs.get(name, 0.0)
            if not math.isfinite(loss):
                raise DivergedError(
                    f"the {shown} is {loss} at step {state.global_step}; lower optimizer.lr {args.learning_rate:g} or "
                    "set optimizer.clip to 1"
                )


def read_log(path: Path) -> list[dict[str, Any]]:
    """The entries of a log; a line cut off by a kill is left out."""
    entries = []
    text = path.read_text(encoding="utf-8") if path.exists() else ""
    for line in text.splitlines():
        try:
            entries.append(json.loads(line))
        except json.JSONDecodeError:
            continue
    return entries


class StopOnSignal(TrainerCallback):
    """Ctrl-C or a polite kill ends training after the current step, with a checkpoint; a second Ctrl-C at once."""

    def __init__(self, console: Console) -> None:
        self.console = console
        self.received: int | None = None
        self._before: dict[int, Any] = {}

    def on_train_begin(
        self, args: TrainingArguments, state: TrainerState, control: TrainerControl, **kwargs: Any
    ) -> None:
        # With several processes each would stop at a step of its own and wait for the others for ever.
        if args.world_size > 1 or threading.current_thread() is not threading.main_thread():
            return
        for number in (signal.SIGINT, signal.SIGTERM):
            if signal.getsignal(number) is not signal.SIG_IGN:
                self._before[number] = signal.signal(number, self._receive)

    def _receive(self, number: int, frame: FrameType | None) -> None:
        if self.received is not None:
            raise KeyboardInterrupt
        self.received = number
        self.console.print("stopping after this step, with a checkpoint; Ctrl-C once more stops at once")

    def on_step_end(self, args: TrainingArguments, state: TrainerState, control: TrainerControl, **kwargs: Any) -> None:
        if self.received is not None:
            control.should_save = control.should_log = control.should_training_stop = True

    def release(self) -> None:
        """Give signals back to whom they belonged."""
        for number, handler in self._before.items():
            signal.signal(number, handler)
        self._before.clear()


class ShowProgress(TrainerCallback):
    """A bar on a terminal; elsewhere a line now and then.

    Args:
        console: Where to.
        metric: Shown with the loss after each evaluation.
    """

    def __init__(self, console: Console, metric: str = "accuracy") -> None:
        self.console = console
        self.shown = (f"_{metric}", "_loss")
        self.progress = Progress(
            TextColumn("{task.description}"),
            BarColumn(),
            MofNCompleteColumn(),
            TimeRemainingColumn(),
            TextColumn("{task.fields[note]}"),
            console=console,
            transient=True,
            disable=not console.is_terminal,
        )
        self._training: TaskID | None = None
        self._evaluating: TaskID | None = None
        self._last_line = 0.0

    def on_train_begin(
        self, args: TrainingArguments, state: TrainerState, control: TrainerControl, **kwargs: Any
    ) -> None:
        self.progress.start()
        self._training = self.progress.add_task("training", total=state.max_steps, completed=state.global_step, note="")

    def on_step_end(self, args: TrainingArguments, state: TrainerState, control: TrainerControl, **kwargs: Any) -> None:
        if self._training is not None:
            self.progress.update(self._training, completed=state.global_step)

    def on_prediction_step(
        self, args: TrainingArguments, state: TrainerState, control: TrainerControl, **kwargs: Any
    ) -> None:
        if self._evaluating is None:
            self.progress.start()
            total = len(kwargs["eval_dataloader"])
            self._evaluating = self.progress.add_task("evaluating", total=total, note="")
        self.progress.advance(self._evaluating)

    def on_evaluate(self, args: TrainingArguments, state: TrainerState, control: TrainerControl, **kwargs: Any) -> None:
        if self._evaluating is not None:
            self.progress.remove_task(self._evaluating)
            self._evaluating = None

    def on_log(
        self,
        args: TrainingArguments,
        state: TrainerState,
        control: TrainerControl,
        logs: dict[str, float] | None = None,
        **kwargs: Any,
    ) -> None:
        if not logs or not state.is_world_process_zero or "train_runtime" in logs:
            return
        evaluated = {key: value for key, value in logs.items() if key.endswith(self.shown)}
        if evaluated and state.global_step:  # an evaluation without training shows its own result
            named = {key.replace("eval_", "validation_").replace("_", " "): evaluated[key] for key in sorted(evaluated)}
            shown = "  ".join(f"{name} {value:.4f}" for name, value in named.items())
            self.console.print(f"step {state.global_step}  {shown}", highlight=False)
        elif "loss" in logs:
            note = f"loss {logs['loss']:.4f}"
            if self._training is not None:
                self.progress.update(self._training, note=note)
            now = time.perf_counter()
            if not self.console.is_terminal and now - self._last_line > SECONDS_BETWEEN_LINES:
                self._last_line = now
                self.console.print(f"step {state.global_step} of {state.max_steps}  {note}", highlight=False)

    def stop(self) -> None:
        """Take the bars away."""
        self.progress.stop()
