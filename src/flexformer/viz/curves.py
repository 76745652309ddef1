"""Divergence from softmax while kernels learn, with a mark where each is stable."""

from __future__ import annotations

from collections.abc import Mapping
from statistics import mean
from typing import Any

from .style import ACCENT, MUTED, PALETTE, logarithmic, new_figure, style, to_png, to_svg


def plot_curves(lines: Mapping[str, Mapping[str, Any]], caption: str) -> dict[str, bytes]:
    """PNG and SVG, by file ending.

    Args:
        lines: By label, `curves`: one list of (step, value) for each seed; and `stable`, a step for each.
        caption: What was distilled on what.
    """
    with style():
        figure = new_figure(6.4, 4.2)
        axes = figure.subplots()
        for (label, line), colour in zip(lines.items(), (PALETTE[0], *PALETTE[1:], ACCENT), strict=False):
            shown = ACCENT if label == "flexformer-n" else colour
            curves = [dict(curve) for curve in line["curves"]]
            steps = sorted(set.intersection(*(set(curve) for curve in curves)))
            axes.plot(steps, [mean(curve[s] for curve in curves) for s in steps], "o-", color=shown, label=label)
            axes.axvline(mean(line["stable"]), color=shown, linestyle=":", linewidth=1.2)
        axes.set(title="Distillation", xlabel="steps; dotted: stable from here", ylabel="divergence, nats")
        logarithmic(axes)
        axes.legend()
        figure.suptitle(caption, x=0.01, ha="left", fontsize=9, color=MUTED)
        return {"png": to_png(figure), "svg": to_svg(figure)}
