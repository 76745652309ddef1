"""`flexformer reproduce`: the paper's tables and figures, each by one command."""

from __future__ import annotations

from typing import Any, Literal

from flexformer.cli.reproduce_frame import Request, reproduce
from flexformer.experiments.arena_table import ArenaTable
from flexformer.experiments.frequencies import FrequencySweep
from flexformer.experiments.language_table import LanguageTable

Preset = Literal["paper", "cpu", "smoke"]


def table1(
    preset: Preset = "cpu",
    attention: list[str] | None = None,
    seeds: list[int] = [0],  # noqa: B006  (never changed)
    tasks: list[str] | None = None,
    root: str | None = None,
    **how: Any,
) -> int:
    """Every attention on the tasks of Long Range Arena, beside the paper's table 1.

    A cell is one run of flexformer train. Finished cells are not repeated, one that was cut off goes on, and only cells
    whose options have changed run again. Writes a JSON file for each cell, and the table as Markdown, LaTeX and a
    picture. Where AAN is not at hand, Articles stands in for Retrieval, in a column of its own.

    Args:
        preset: paper (a GPU), cpu (two cores) or smoke.
        attention: Some of the rows; default all.
        seeds: One run of each cell for each.
        tasks: Some of listops, text, retrieval, articles, image and pathfinder; default the five there is data for.
        root: Folder the data lives in; default $FLEXFORMER_DATA, else flexformer/data in the user's cache.

    Example:
        flexformer reproduce table1 --preset cpu --tasks image listops --attention softmax flexformer-n --seeds 0 1 2
    """
    request = Request(attention, seeds, **how)
    return reproduce(ArenaTable(preset, root, tasks), request)


def table2(
    preset: Preset = "cpu",
    attention: list[str] | None = None,
    seeds: list[int] = [0],  # noqa: B006  (never changed)
    corpus: str | None = None,
    root: str | None = None,
    **how: Any,
) -> int:
    """Language models with softmax and every attention that has a causal form, beside the paper's table 2.

    A cell is one run of flexformer train lm. Finished cells are not repeated, one that was cut off goes on, and only
    cells whose options have changed run again. Writes a JSON file for each cell, and the table as Markdown, LaTeX and a
    picture.

    Args:
        preset: paper (both sizes, WikiText-103, a GPU), cpu (WikiText-2, two cores) or smoke.
        attention: Some of the rows; default all.
        seeds: One run of each row for each.
        corpus: Another text, such as enwik8, whose table shows bits per byte.
        root: Folder the data lives in; default $FLEXFORMER_DATA, else flexformer/data in the user's cache.

    Example:
        flexformer reproduce table2 --preset cpu --attention softmax linear flexformer-n --seeds 0 1 2
    """
    request = Request(attention, seeds, **how)
    return reproduce(LanguageTable(preset, root, corpus), request)


def n_sweep(
    preset: Preset = "cpu",
    attention: list[str] = ["flexformer-n"],  # noqa: B006
    seeds: list[int] = [0],  # noqa: B006
    tasks: list[str] = ["lm", "image", "listops"],  # noqa: B006
    multiples: list[float] = [0.25, 0.5, 1, 2, 4],  # noqa: B006
    corpus: str | None = None,
    root: str | None = None,
    **how: Any,
) -> int:
    """Train with different numbers of frequencies n: accuracy or perplexity, speed and memory.

    A cell is one run of flexformer train or train lm with the preset's settings. Finished cells are not repeated, one
    that was cut off goes on. Speed and memory are measured by themselves, one training step of every n in turn; let the
    machine be quiet meanwhile. At the paper's scale they are those of the runs.

    Args:
        preset: The settings all runs share: paper, cpu or smoke.
        attention: flexformer-s, flexformer-n or flexformer-c.
        seeds: One run of each cell for each.
        tasks: Which tasks; lm for a language model.
        multiples: Numbers of frequencies as multiples of the head's width.
        corpus: The text of lm, such as enwik8; default that of table2.
        root: Folder the data lives in; default $FLEXFORMER_DATA, else flexformer/data in the user's cache.

    Example:
        flexformer reproduce n-sweep --tasks image --multiples 0.5 1 2 --preset cpu
    """
    request = Request(attention, seeds, **how)
    return reproduce(FrequencySweep(preset, root, tasks, multiples, corpus), request)
