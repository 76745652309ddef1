"""How good a trained model is, on any split."""

from __future__ import annotations

import tempfile
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from rich.console import Console
from transformers import AutoModelForCausalLM, AutoModelForSequenceClassification

from ..tasks.base import Split
from .callbacks import ShowProgress
from .job import TIMES
from .language import LanguageJob
from .language_options import TASK as LANGUAGE
from .language_options import LanguageOptions
from .options import RunOptions
from .record import Record, RunFolder, RunFolderError
from .run import TaskJob, quiet_libraries


@dataclass(frozen=True)
class Evaluation:
    """What one split says about a run's weights."""

    split: str
    examples: int
    metrics: dict[str, float]
    """by name: accuracy and loss, or for language models loss, perplexity and for bytes bits_per_byte"""
    weights: str
    """the folder they came from"""

    @property
    def accuracy(self) -> float:
        """The share of examples that were classified rightly."""
        return self.metrics["accuracy"]

    @property
    def loss(self) -> float:
        """The mean loss."""
        return self.metrics["loss"]


def evaluate(
    run: Path,
    console: Console,
    split: Split = "test",
    limit: int | None = None,
    batch_size: int | None = None,
    root: str | None = None,
) -> tuple[Record, Evaluation]:
    """Evaluate the weights of a run.

    Args:
        run: The run's folder. Of an unfinished run the latest checkpoint is evaluated.
        console: Where progress is shown.
        split: "train", "validation" or "test".
        limit: Evaluate this many examples only; by default as many as the run itself.
        batch_size: Examples at once; by default as the run did.
        root: The folder the data lives in; by default where the run found it.
    """
    folder = RunFolder(run)
    record = folder.read()
    if record is None:
        raise RunFolderError(f"{run} holds no run: there is no {folder.record_file.name}")
    if "base" in record.options:  # of a pretrained model, by flexformer distill or finetune
        raise RunFolderError(f"{run} is a run of {record.task} that was tested when it ended; see its run.json")
    weights = folder.weights()
    if weights is None:
        raise RunFolderError(f"{run} holds no weights yet: no model and no checkpoint")
    changes = {name: value for name, value in ((f"{split}_limit", limit), ("root", root)) if value is not None}
    job = _job(record, changes, batch_size)
    loader = AutoModelForCausalLM if isinstance(job, LanguageJob) else AutoModelForSequenceClassification
    with quiet_libraries(), tempfile.TemporaryDirectory() as unused:
        job.prepare(console)
        dataset = job.dataset(split)
        show = ShowProgress(console, job.best.metric)
        model = loader.from_pretrained(weights, use_safetensors=True, trust_remote_code=False)
        trainer = job.trainer_class()(model, job, job.options, Path(unused), None, dataset, [show], job.best)
        try:
            found = trainer.evaluate(dataset, metric_key_prefix=split)
        finally:
            show.stop()
    metrics = {
        name.removeprefix(f"{split}_"): value
        for name, value in found.items()
        if name.startswith(f"{split}_") and not name.endswith(TIMES)
    }
    return record, Evaluation(split, len(dataset), metrics, weights.relative_to(run).as_posix())


def _job(record: Record, changes: dict[str, Any], batch_size: int | None) -> TaskJob | LanguageJob:
    """What a record describes, with other data options and portions."""
    if record.task == LANGUAGE:
        language = LanguageOptions.from_dict(record.options)
        training = replace(language.training, eval_batch_size=batch_size or language.training.eval_batch_size)
        return LanguageJob(replace(language, data=replace(language.data, **changes), training=training))
    options = RunOptions.from_dict(record.options)
    training = replace(options.training, eval_batch_size=batch_size or options.training.eval_batch_size)
    return TaskJob(replace(options, data=replace(options.data, **changes), training=training))
