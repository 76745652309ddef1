"""What is left of a sentence encoder when its attention is made linear: STS-B at every step of the way."""

from __future__ import annotations

from typing import Any, ClassVar

from flexformer.distill import DistillOptions, FinetuneOptions

from .presets.pretrained import load_distill, load_finetune
from .pretrained_models import Subject
from .recovery import RecoveryStudy, scores_before
from .tables import Column

TASK = "stsb"


class SentenceStudy(RecoveryStudy):
    """Maps by how much of a sentence encoder they keep.

    Args:
        preset: cpu or smoke.
        root: Folder GLUE and the text live in.
        base: A pretrained sentence encoder; default MiniLM.
        text: To distil on; default the training text of WikiText-2.
    """

    name: ClassVar[str] = "sentences"
    metric: ClassVar[str] = "spearman"
    factor: ClassVar[float] = 100.0
    scorer: ClassVar[str] = "flexformer.experiments.sentences:scores"

    def __init__(self, preset: str, root: str | None = None, base: str | None = None, text: str | None = None) -> None:
        super().__init__(preset, root, Subject.of(self.check_preset(preset), root, base, text))

    @property
    def stem(self) -> str:
        return self.subject.stem(self.name, self.preset, self.root)

    def options(self, **given: Any) -> tuple[DistillOptions, FinetuneOptions]:
        learned = load_distill(self.preset, self.subject.base, self.subject.text, **given)
        return learned, load_finetune(self.preset, self.subject.base, TASK, head="cosine", **given)[0]

    def score_column(self, step: str) -> Column:
        return Column(step, "STS-B dev, Spearman x 100", 2)

    def distilled_columns(self) -> dict[str, Column]:
        return {
            "after_kl": Column("KL", "distilled", 3, "lower"),
            "after_embedding_cosine": Column("cosine", "distilled", 3),
        }

    def headings(self) -> tuple[str, str]:
        note = (
            f"{self.subject} while it is distilled, then fine-tuned on STS-B as a sentence encoder, which compares "
            "mean hidden states by their cosine. KL is that of attention weights to softmax's, mean over layers; "
            "cosine is of sentence embeddings with those of the original, both on text that was held out. softmax is "
            "the model as it is, and fine-tuned by the same recipe."
        )
        return "A sentence encoder made linear", note


def scores(options: dict[str, Any], folder: str) -> dict[str, float]:
    """Spearman correlation on the dev set before fine-tuning.

    Args:
        options: Of the fine-tuning.
        folder: Of its run, which is not needed.
    """
    return scores_before(FinetuneOptions.from_dict(options), SentenceStudy.metric)
