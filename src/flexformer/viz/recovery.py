"""A pretrained model on its way from softmax to linear attention."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from .style import INK, MUTED, colours, logarithmic, new_figure, style, to_png, to_svg


def plot_recovery(
    steps: Sequence[str],
    scores: Mapping[str, Sequence[float]],
    original: float | None,
    reference: float | None,
    title: str,
    metric: str,
    lower_is_better: bool = False,
) -> dict[str, bytes]:
    """Scores at every step of the way, as PNG and SVG by file ending.

    Args:
        steps: Names of the steps.
        scores: By attention, one score for each step.
        original: The score of the model as it was.
        reference: That of the model fine-tuned with its own attention.
        title: Over the plot.
        metric: What the scores are.
        lower_is_better: Of the metric; the axis is logarithmic then, as perplexities fall by large factors.
    """
    with style():
        figure = new_figure(6.4, 4.0)
        axes = figure.subplots()
        ranked = sorted(scores, key=lambda name: scores[name][-1], reverse=not lower_is_better)
        chosen = colours(scores)
        for name in ranked:
            axes.plot(range(len(steps)), scores[name], "o-", color=chosen[name], label=name)
        for value, label in ((original, "softmax, as it is"), (reference, "softmax, fine-tuned")):
            if value is not None:
                dashes = "--" if label.endswith("tuned") else ":"
                axes.axhline(value, color=INK, linewidth=1.2, linestyle=dashes, label=label)
        if lower_is_better:
            logarithmic(axes)
        axes.set(title=title, ylabel=metric)
        axes.set_xticks(range(len(steps)), steps)
        figure.legend(loc="outside right upper", labelcolor=MUTED)
        return {"png": to_png(figure), "svg": to_svg(figure)}
