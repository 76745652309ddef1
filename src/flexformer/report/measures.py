"""Which number says how good a run is, and how it is written."""

from __future__ import annotations

from statistics import mean, stdev
from typing import NamedTuple

from flexformer.tasks import paper, paper_language

from .sources import Run


class Measure(NamedTuple):
    """A metric of a record."""

    key: str
    title: str
    factor: float = 1.0
    digits: int = 3
    greater: bool = False
    """is better"""

    def write(self, values: list[float]) -> str:
        """A mean, with the standard deviation where there are several."""
        scaled = [self.factor * value for value in values]
        spread = f" ± {stdev(scaled):.{self.digits}f}" if len(scaled) > 1 else ""
        return f"{mean(scaled):.{self.digits}f}{spread}"


# The first that a record has is its measure.
MEASURES = (
    Measure("test_score", "test score", 100.0, 2, True),  # of GLUE's tasks, some of which have an accuracy beside it
    Measure("test_accuracy", "test accuracy, %", 100.0, 2, True),
    Measure("test_bits_per_byte", "test bits per byte"),
    Measure("test_perplexity", "test perplexity", digits=2),
    Measure("validation_score", "validation score", 100.0, 2, True),
    Measure("validation_accuracy", "validation accuracy, %", 100.0, 2, True),
    Measure("validation_perplexity", "validation perplexity", digits=2),
    Measure("after_kl", "divergence from softmax, nats"),
    Measure("test_loss", "test loss"),
    Measure("validation_loss", "validation loss"),
)

# What is drawn against steps, by the names in a log.
CURVES = (
    Measure("eval_score", "validation score", 100.0, 2, True),
    Measure("eval_accuracy", "validation accuracy, %", 100.0, 2, True),
    Measure("eval_bits_per_byte", "validation bits per byte"),
    Measure("eval_perplexity", "validation perplexity", digits=2),
    Measure("eval_kl", "divergence from softmax, nats"),
    Measure("eval_loss", "validation loss"),
)

PAPER_CORPUS = "wikitext103"


def measure_of(runs: list[Run]) -> Measure | None:
    """The first measure that one of the runs has; any number of theirs if none is known."""
    known = {key for run in runs for key in run.metrics}
    for measure in MEASURES:
        if measure.key in known:
            return measure
    key = next(iter(sorted(known)), None)
    return None if key is None else Measure(key, key.replace("_", " "))


def paper_figures(run: Run, measure: Measure) -> dict[str, tuple[float, float]]:
    """The paper's mean and standard deviation by attention for what this run did; empty where it has none."""
    if measure.key == "test_accuracy":
        return paper.accuracy(str(run.record["task"]))
    source = (run.record["options"].get("data") or {}).get("source")
    if measure.key == "test_perplexity" and source == PAPER_CORPUS:
        size: paper_language.Size = "big" if str(run.record["scale"]).endswith("big") else "small"
        return {name: sizes[size][1] for name, sizes in paper_language.PERPLEXITY.items()}
    return {}
