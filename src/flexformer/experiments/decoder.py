"""What is left of a language model when its attention is made linear: perplexity at every step of the way.

Unless a text is named, the model reads what it wrote itself: what it was trained on is often not to be had, and on any
other text fine-tuning would teach it more than its attention.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, ClassVar

import torch

from flexformer.convert import load as load_converted
from flexformer.distill import DistillOptions, FinetuneOptions
from flexformer.distill.options import TEXT_PREFIX
from flexformer.distill.pretrained import load_model, load_tokenizer, start_token
from flexformer.files import write_text
from flexformer.models.cache import state_bytes
from flexformer.tasks.base import data_root
from flexformer.training.run import quiet_libraries

from .cells import Job
from .digest import place
from .glue_cells import SOFTMAX
from .presets.pretrained import load_distill, load_finetune
from .pretrained_models import Subject, slug
from .recovery import RecoveredCell, RecoveryStudy, of_attention, scores_before
from .results import Result
from .tables import Column, Table

SMALL_MODEL = "models/stories15M"
OWN_TEXT = "own-text"
PIECES = {"cpu": 1024, "smoke": 16}
PIECE_TOKENS = {"cpu": 256, "smoke": 48}
AT_ONCE = 64
SAMPLE_TOKENS = 60

# Over the presets: sequences as long as a piece, few at a time, and a fine-tuning that is short.
LENGTHS = {"cpu": {"max_length": 256}, "smoke": {}}
DISTILL = {"cpu": {"steps": 400, "batch_size": 4, "eval_batch_size": 8}, "smoke": {}}
FINETUNE = {"cpu": {"steps": 150, "batch_size": 4, "eval_batch_size": 8, "evaluate_every": 50}, "smoke": {}}


@dataclass(frozen=True)
class DecoderCell(RecoveredCell):
    """A language model; the text it wrote itself comes first."""

    def jobs(self, output: Path) -> list[Job]:
        options, jobs = self.stage.options, super().jobs(output)
        assert isinstance(options, FinetuneOptions)
        text = Path(options.task.removeprefix(TEXT_PREFIX))
        if text.parent.name != OWN_TEXT or text.exists():
            return jobs
        given = {"base": options.base, "path": str(text), "preset": self.preset}
        return [Job("its own text", "flexformer.experiments.decoder:write_own_text", given), *jobs]


class DecoderStudy(RecoveryStudy):
    """Maps by how much of a language model they keep.

    Args:
        preset: cpu or smoke.
        root: Folder that the default model and own texts live in.
        base: A pretrained decoder; default models/stories15M in the data folder.
        text: To distil and fine-tune on; default what the model writes itself.
    """

    name: ClassVar[str] = "decoder"
    metric: ClassVar[str] = "perplexity"
    scorer: ClassVar[str] = "flexformer.experiments.decoder:scores"
    cell_class: ClassVar[type[RecoveredCell]] = DecoderCell

    def __init__(self, preset: str, root: str | None = None, base: str | None = None, text: str | None = None) -> None:
        model = base or str(data_root(root) / SMALL_MODEL)
        super().__init__(preset, root, Subject(model, text or str(own_text(model, self.check_preset(preset), root))))

    @property
    def stem(self) -> str:
        standard = place(self.subject.base) == SMALL_MODEL and self._is_own_text
        return f"{self.name}-{self.preset}" if standard else f"{self.name}-{self.subject.slug}-{self.preset}"

    @property
    def _is_own_text(self) -> bool:
        return Path(self.subject.text).parent.name == OWN_TEXT

    def options(self, **given: Any) -> tuple[DistillOptions, FinetuneOptions]:
        given["data"] = {**given["data"], **LENGTHS[self.preset]}
        base, text = self.subject.base, self.subject.text
        learned = load_distill(self.preset, base, text, training=DISTILL[self.preset], **given)
        training = FINETUNE[self.preset]
        return learned, load_finetune(self.preset, base, f"{TEXT_PREFIX}{text}", training=training, **given)[0]

    def score_column(self, step: str) -> Column:
        return Column(step, "perplexity", 2, "lower")

    def distilled_columns(self) -> dict[str, Column]:
        return {
            "after_kl": Column("KL", "distilled", 3, "lower"),
            "after_same_token": Column("same token", "distilled", 3),
        }

    def headings(self) -> tuple[str, str]:
        whose = ", which it wrote itself" if self._is_own_text else ""
        note = (
            f"{self.subject}{whose}. KL is that of attention weights to softmax's, mean over layers; same token is the "
            "share of positions whose likeliest token is the original's. All figures are of text that was held out. "
            "softmax is the model as it is, and fine-tuned by the same recipe."
        )
        return "A language model made linear", note

    def tables(self, found: Sequence[Result]) -> list[Table]:
        table, *others = super().tables(found)
        firsts = [
            min(own, key=lambda result: result.seed) for name in self.rows() if (own := of_attention(name, found))
        ]
        samples = [
            f"{result.labels['attention']}, fine-tuned, goes on greedily, with "
            f"{result.details['state_bytes'] / 1024:,.0f} KiB for what came before: "
            f"“{' '.join(result.details['sample'].split())} …”"
            for result in firsts
        ]
        return [replace(table, notes=(*table.notes, *samples)), *others]


def own_text(base: str, preset: str, root: str | None) -> Path:
    """Where the text is kept that a model wrote itself."""
    return data_root(root) / OWN_TEXT / f"{slug(place(base))}-{PIECES[preset]}.txt"


@quiet_libraries()
def write_own_text(base: str, path: str, preset: str) -> None:
    """Let a language model write, from its start token to its end token, and keep that as paragraphs of a file.

    Args:
        base: Folder or hub name.
        path: Of the file.
        preset: How many pieces, and how long they may be.
    """
    model, tokenizer = load_model(base).eval(), load_tokenizer(base)
    start = start_token(model.config, tokenizer)
    if start is None:
        raise ValueError(f"base {base} has no token to start with, so it cannot write by itself; name a text")
    torch.manual_seed(0)
    written: list[str] = []
    while len(written) < PIECES[preset]:
        ids = torch.full((min(AT_ONCE, PIECES[preset] - len(written)), 1), start)
        end = tokenizer.eos_token_id
        how = {"do_sample": True, "top_k": 0, "pad_token_id": start if end is None else end}
        mask = torch.ones_like(ids)
        found = model.generate(input_ids=ids, attention_mask=mask, max_new_tokens=PIECE_TOKENS[preset], **how)
        written += tokenizer.batch_decode(found, skip_special_tokens=True)
        print(f"{len(written)} of {PIECES[preset]} pieces written")
    target = Path(path)
    target.parent.mkdir(parents=True, exist_ok=True)
    # Blank lines stand between pieces and nowhere else.
    write_text(target, "\n\n".join(re.sub(r"\s*\n\s*", "\n", text.strip()) for text in written) + "\n")


@quiet_libraries()
def scores(options: dict[str, Any], folder: str) -> dict[str, Any]:
    """Perplexity before fine-tuning, and how the fine-tuned model goes on from the beginning of a text.

    Args:
        options: Of the fine-tuning.
        folder: Of its run.
    """
    given, folder = FinetuneOptions.from_dict(options), str(Path(folder) / "model")
    model = load_model(folder) if given.attention == SOFTMAX else load_converted(folder)
    tokenizer = load_tokenizer(folder)
    start = start_token(model.config, tokenizer)
    text = tokenizer("Once upon a time", add_special_tokens=False).input_ids
    ids = torch.tensor([text if start is None else [start, *text]])
    written = model.eval().generate(
        input_ids=ids,
        attention_mask=torch.ones_like(ids),
        do_sample=False,
        min_new_tokens=SAMPLE_TOKENS,
        max_new_tokens=SAMPLE_TOKENS,
        return_dict_in_generate=True,
    )
    return {
        **scores_before(given, DecoderStudy.metric),
        "sample": tokenizer.decode(written.sequences[0], skip_special_tokens=True),
        "state_bytes": state_bytes(written.past_key_values),
    }
