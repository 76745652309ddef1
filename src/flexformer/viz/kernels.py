"""How near kernels come to softmax while they learn from it, and layer by layer."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from statistics import mean
from typing import Any

from .style import ACCENT, MUTED, PALETTE, new_figure, style, to_png, to_svg


def plot_kernel_study(maps: Mapping[str, Sequence[dict[str, Any]]], caption: str) -> dict[str, bytes]:
    """Divergence over steps and by layer, as PNG and SVG by file ending.

    Args:
        maps: By label, its runs at the best learning rate, with `curve` and `kl_by_layer`; seeds are averaged.
        caption: What was distilled on what.
    """
    with style():
        figure = new_figure(9.6, 4.2)
        left, right = figure.subplots(1, 2, width_ratios=(1.15, 1.0))
        ranked = sorted(maps, key=lambda label: mean(run["kl"] for run in maps[label]))
        colours = dict(zip(ranked, (ACCENT, *PALETTE, *PALETTE), strict=False))
        for label in ranked:
            steps = [step for step, _ in maps[label][0]["curve"]]
            curves = [dict(run["curve"]) for run in maps[label]]
            values = [mean(curve[step] for curve in curves if step in curve) for step in steps]
            left.plot(steps, values, "o-", color=colours[label], label=label)
            layers = [mean(column) for column in zip(*(run["kl_by_layer"] for run in maps[label]), strict=True)]
            right.plot(range(len(layers)), layers, "o-", color=colours[label])
        left.set(title="While learning", xlabel="steps", ylabel="divergence from softmax, nats", yscale="log")
        right.set(title="By layer, at the end", xlabel="layer", yscale="log")
        for axes in (left, right):
            axes.yaxis.set_major_formatter("{x:g}")
            axes.yaxis.set_minor_formatter("{x:g}")
        left.legend(fontsize=7.5, ncols=2)
        figure.suptitle(caption, x=0.01, ha="left", fontsize=9, color=MUTED)
        return {"png": to_png(figure), "svg": to_svg(figure)}
