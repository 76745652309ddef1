"""`flexformer reproduce fig2` and `distill-curves`."""

from __future__ import annotations

from typing import Any

from flexformer.cli.reproduce import Preset
from flexformer.cli.reproduce_frame import Request, reproduce
from flexformer.experiments.curves import DistillationCurves
from flexformer.experiments.efficiency_figure import EfficiencyFigure


def fig2(
    preset: Preset = "cpu",
    attention: list[str] | None = None,
    lengths: list[int] | None = None,
    threads: int = 1,
    **how: Any,
) -> int:
    """Time and memory of the Retrieval model, as in the paper's figure 2, on this machine's CPU.

    (a) a forward pass of softmax, linear and flexformer-n at growing lengths, a cell for each length; (b) a training
    step of every attention at 4000 tokens, one cell, with accuracies of table 1 where there are some. What is compared
    is measured in turn; let the machine be quiet meanwhile.

    Args:
        preset: paper and cpu differ in lengths and repetitions; smoke is tiny.
        attention: Some of the attentions; softmax is measured in any case. Default all.
        lengths: Of (a), instead of the preset's.
        threads: Of torch.

    Example:
        flexformer reproduce fig2 --preset cpu --attention softmax linear flexformer-n
    """
    request = Request(attention, [0], None, **how)
    return reproduce(EfficiencyFigure(preset, None, threads, lengths), request)


def distill_curves(
    preset: Preset = "cpu",
    base: str | None = None,
    text: str | None = None,
    maps: list[str] | None = None,
    seeds: list[int] = [0, 1, 2],  # noqa: B006
    root: str | None = None,
    **how: Any,
) -> int:
    """How fast kernels learn softmax: divergence over steps, and from which step on it is stable.

    Distils with kernels as conversion builds them, at the learning rates that flexformer reproduce kernels found best,
    and evaluates often. Stable is a run from the first evaluation from which on its divergence stays as near to where
    it ends as 5 % of its whole way. Finished cells are not repeated, one that was cut off goes on.

    Args:
        preset: The settings all runs share: paper (a GPU), cpu or smoke.
        base: Folder or hub name of a pretrained encoder or decoder; default as for reproduce kernels.
        text: What is read; default as for reproduce kernels.
        maps: Some of hedgehog, "hedgehog, two maps", flexformer-s, flexformer-n and "flexformer-c, all real"; default
            all.
        seeds: One run of each map for each.
        root: Folder the data lives in; default $FLEXFORMER_DATA, else flexformer/data in the user's cache.

    Example:
        flexformer reproduce distill-curves --maps hedgehog flexformer-n --seeds 0
    """
    request = Request(maps, seeds, **how)
    return reproduce(DistillationCurves(preset, root, base, text), request)
