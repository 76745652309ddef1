"""How near kernels come to softmax while they learn from it, and layer by layer."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from statistics import mean
from typing import Any

from .style import MUTED, colours, logarithmic, new_figure, style, to_png, to_svg


def plot_kernel_study(maps: Mapping[str, Sequence[dict[str, Any]]], caption: str) -> dict[str, bytes]:
    """Divergence over steps, by layer and by how sharp a head's softmax is, as PNG and SVG by file ending.

    Args:
        maps: By label, its runs at the best learning rate, with `curve`, `kl_by_layer` and `by_entropy`, pairs of
            softmax's entropy and the divergence; seeds are averaged.
        caption: What was distilled on what.
    """
    with style():
        figure = new_figure(13.2, 4.6)
        left, middle, right = figure.subplots(1, 3)
        chosen = colours(maps)
        for label in sorted(maps, key=lambda label: mean(run["kl"] for run in maps[label])):
            look = {"color": chosen[label], "marker": "o"}
            steps = [step for step, _ in maps[label][0]["curve"]]
            curves = [dict(run["curve"]) for run in maps[label]]
            values = [mean(curve[step] for curve in curves if step in curve) for step in steps]
            left.plot(steps, values, label=label, **look)
            layers = [mean(column) for column in zip(*(run["kl_by_layer"] for run in maps[label]), strict=True)]
            middle.plot(range(len(layers)), layers, **look)
            parts = [run["by_entropy"] for run in maps[label] if "by_entropy" in run]  # early results have none
            if parts:
                points = [[mean(values) for values in zip(*same, strict=True)] for same in zip(*parts, strict=True)]
                right.plot(*zip(*points, strict=True), **look)
        left.set(title="While learning", xlabel="steps", ylabel="divergence from softmax, nats")
        middle.set(title="By layer, at the end", xlabel="layer")
        right.set(title="By head, sharp ones left", xlabel="entropy of softmax's weights, nats")
        logarithmic(left, middle, right)
        figure.legend(loc="outside lower center", ncols=4, fontsize=8, handlelength=3.5)
        figure.suptitle(caption, x=0.01, ha="left", fontsize=9, color=MUTED)
        return {"png": to_png(figure), "svg": to_svg(figure)}
