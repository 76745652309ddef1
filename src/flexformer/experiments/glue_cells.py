"""Runs on GLUE that start from a pretrained model; those that several cells need are one and the same."""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass, replace

from flexformer import kernels
from flexformer.distill import FinetuneOptions
from flexformer.distill.options import KernelOptions, StageOptions
from flexformer.distill.procedures import distillation
from flexformer.tasks import glue

from .digest import place
from .presets.pretrained import load_finetune
from .pretrained_models import default_base, slug
from .stages import REFERENCE, Stage

SOFTMAX = "softmax"
TWICE = "softmax-twice"  # the control for rows that are fine-tuned twice
LEARNABLE = ("hedgehog", "flexformer-s", "flexformer-n", "flexformer-c")
TASKS = {
    "paper": tuple(glue.TASKS),
    "cpu": ("cola", "sst2", "mrpc", "stsb", "rte"),
    "smoke": ("cola", "stsb"),
}


def checked(tasks: Sequence[str] | None, default: Sequence[str]) -> list[str]:
    """Names of GLUE tasks, in the order of the paper's table."""
    wanted = {glue.find(name).name for name in tasks or default}
    return [name for name in glue.TASKS if name in wanted]


@dataclass(frozen=True)
class GlueRuns:
    """Makes the runs of one scale.

    Args:
        preset: paper, cpu or smoke.
        base: The pretrained model; default RoBERTa for paper, else MiniLM.
        root: Folder GLUE lives in.
    """

    preset: str
    base: str
    root: str | None = None

    @property
    def slug(self) -> str:
        """The model, for names of files."""
        return slug(re.sub(r"/model$", "", place(self.base)).rpartition("/")[2])

    @property
    def is_default(self) -> bool:
        try:
            return self.base == default_base(self.preset)
        except ValueError:
            return False

    def finetuned(self, task: str, attention: str, seed: int) -> Stage:
        """Fine-tuning with softmax, the reference; or with another attention swapped in."""
        name = f"{self.slug}-{task}-{attention}-{self.preset}-seed{seed}"
        return Stage(name, "finetune", self._options(task, attention, seed)[0])

    def finetuned_twice(self, task: str, seed: int) -> Stage:
        """Fine-tuning with softmax, and the same once more."""
        reference = self.finetuned(task, SOFTMAX, seed)
        options, _ = self._options(task, SOFTMAX, seed)
        again = replace(options, base=f"{REFERENCE}{reference.name}/model")
        return Stage(f"{self.slug}-{task}-{TWICE}-{self.preset}-seed{seed}", "finetune", again, (reference,))

    def recovered(self, task: str, attention: str, seed: int) -> Stage:
        """Fine-tuned with softmax, distilled on the same task, fine-tuned with the kernels."""
        options, stage = self._options(task, attention, seed)
        reference = self.finetuned(task, SOFTMAX, seed)
        model = f"{REFERENCE}{reference.name}/model"
        name = f"{self.slug}-{task}-{attention}-{self.preset}-seed{seed}"
        distilled = Stage(f"{name}-distill", "distill", distillation(options, stage, model), (reference,))
        again = replace(options, base=model, adapter=f"{REFERENCE}{distilled.name}/adapter")
        return Stage(name, "finetune", again, (reference, distilled))

    def transferred(self, source: str, target: str, attention: str, seed: int) -> Stage:
        """The pretrained model distilled on one task, fine-tuned with those kernels on another."""
        learned, stage = self._options(source, attention, seed)
        between = distillation(learned, stage, self.base)
        distilled = Stage(f"{self.slug}-{source}-{attention}-{self.preset}-seed{seed}-distill", "distill", between)
        options, _ = self._options(target, attention, seed)
        name = f"{self.slug}-{source}-to-{target}-{attention}-{self.preset}-seed{seed}"
        again = replace(options, adapter=f"{REFERENCE}{distilled.name}/adapter")
        return Stage(name, "finetune", again, (distilled,))

    def _options(self, task: str, attention: str, seed: int) -> tuple[FinetuneOptions, StageOptions]:
        options, stage = load_finetune(
            self.preset, self.base, task, attention=attention, seed=seed, data={"root": self.root}
        )
        return (replace(options, kernel=KernelOptions()) if attention == SOFTMAX else options), stage


def swapped() -> tuple[str, ...]:
    """Attentions that have nothing to distil and are swapped in as they are."""
    return tuple(name for name in ("performer", "rfa") if name in kernels.names())
