"""Speed and quality against the length, in one picture."""

from __future__ import annotations

import io
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any

from .style import ACCENT, MUTED, PALETTE, label_ends, new_figure, plain_ticks, style

if TYPE_CHECKING:
    from matplotlib.axes import Axes

Points = Sequence[tuple[int, float]]

COLOURS = {"flexformer-n": ACCENT, "softmax": PALETTE[0], "linear": PALETTE[1]}


def plot_overview(speed: Mapping[str, Points], quality: Mapping[str, Points], note: str, digest: str) -> bytes:
    """Two panels as PNG.

    Args:
        speed: Attention -> (length, seconds).
        quality: Attention -> (length, loss in nats).
        note: What was measured, in small print.
        digest: Of the data, kept in the file so that a test can see whether it shows what the records hold.
    """
    with style():
        figure = new_figure(9.6, 3.7)
        left, right = figure.subplots(1, 2)
        for axes, lines in ((left, speed), (right, quality)):
            for name, points in lines.items():
                x, y = [p[0] for p in points], [p[1] for p in points]
                axes.plot(x, y, "o-", color=COLOURS[name], linewidth=2.4 if name == "flexformer-n" else 1.7)
            ticks = sorted({p[0] for points in lines.values() for p in points})
            axes.set_xscale("log", base=2)
            axes.set_xticks(ticks, [f"{t // 1024}k" if t >= 1024 else str(t) for t in ticks])
            axes.set_xlim(ticks[0] * 0.85, ticks[-1] * 1.15)
        left.set(title="Time of attention, forward and backward", xlabel="tokens", ylabel="seconds", yscale="log")
        plain_ticks(left)
        right.set(title="A small language model on bytes", xlabel="tokens of context", ylabel="validation loss, nats")
        right.set_ymargin(0.3)
        figure.suptitle(note, x=0.01, ha="left", fontsize=8.5, color=MUTED)
        figure.canvas.draw()
        for axes, lines in ((left, speed), (right, quality)):
            _name(axes, lines)
        buffer = io.BytesIO()
        figure.savefig(buffer, format="png", metadata={"Software": None, "Description": digest})
        return buffer.getvalue()


def _name(axes: Axes, lines: Mapping[str, Points]) -> None:
    """Names beside the ends of lines; one that ends early has its name at its own end."""
    longest = max(points[-1][0] for points in lines.values())
    label_ends(axes, [(*p[-1], name, COLOURS[name]) for name, p in lines.items() if p[-1][0] == longest], gap=0.07)
    for name, points in lines.items():
        if points[-1][0] < longest:
            near: dict[str, Any] = {"xytext": (7, -3), "textcoords": "offset points", "fontsize": 8.5}
            axes.annotate(name, points[-1], color=COLOURS[name], **near)
