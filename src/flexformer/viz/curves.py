"""Divergence from softmax while kernels learn, with a mark where each is stable, and layer by layer."""

from __future__ import annotations

import math
from collections.abc import Mapping
from statistics import mean
from typing import Any

from .style import MUTED, colours, logarithmic, new_figure, style, to_png, to_svg


def plot_curves(lines: Mapping[str, Mapping[str, Any]], caption: str) -> dict[str, bytes]:
    """PNG and SVG, by file ending.

    Args:
        lines: By label, `curves`: one list of (step, value) for each seed; `stable`, a step for each; and `layers`, one
            list of (step, value) for each layer.
        caption: What was distilled on what.
    """
    count = len(next(iter(lines.values()))["layers"])
    columns = math.ceil(count / 2)
    with style():
        figure = new_figure(5.6 + 2.4 * columns, 5.0)
        grid = figure.add_gridspec(2, 2 + columns)
        whole = figure.add_subplot(grid[:, :2])
        layers = [figure.add_subplot(grid[i // columns, 2 + i % columns]) for i in range(count)]
        chosen = colours(lines)
        for place, (label, line) in enumerate(lines.items()):
            shown = chosen[label]
            curves = [dict(curve) for curve in line["curves"]]
            steps = sorted(set.intersection(*(set(curve) for curve in curves)))
            whole.plot(steps, [mean(curve[s] for curve in curves) for s in steps], color=shown, label=label)
            # Dots of lines at the same step take turns.
            whole.axvline(
                mean(line["stable"]), color=shown, linestyle=(2 * place, (2, 2 * len(lines) - 2)), linewidth=1.4
            )
            for axes, points in zip(layers, line["layers"], strict=True):
                axes.plot(*zip(*points, strict=True), color=shown, linewidth=1.2)
        whole.set(title="All layers", xlabel="steps; dotted: stable from here", ylabel="divergence from softmax, nats")
        for i, axes in enumerate(layers):
            axes.set_title(f"Layer {i}", fontsize=10)
            axes.tick_params(labelsize=8)
        logarithmic(whole, *layers)
        whole.legend()
        figure.suptitle(caption, x=0.01, ha="left", fontsize=9, color=MUTED)
        return {"png": to_png(figure), "svg": to_svg(figure)}
