"""The sections about a demo: what to take from it, what was written, and what a token costs."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from .chart import Panel, Series, figure
from .html import Markup, join, tag
from .scale import length as short


def section(demos: Sequence[dict[str, Any]]) -> Markup:
    """What was done, and a piece of what the model wrote."""
    return join(_one(each) for each in demos)


def _one(demo: dict[str, Any]) -> Markup:
    parts = [tag("p", line) for line in demo.get("said") or []]
    if written := demo.get("written"):
        caption = (
            f"Written by the {written['attention']} model at {written['tokens_per_second']:.0f} bytes a second. All it "
            f"remembers of the {written['context']:,} bytes before is a state of {written['state_bytes'] / 1024:,.0f} "
            "KiB, whose size does not depend on how many they are."
        )
        text = tag("pre", tag("strong", written["prompt"]), written["text"])
        parts.append(tag("figure", text, tag("figcaption", caption)))
    return join(parts)


def writing(demos: Sequence[dict[str, Any]]) -> Markup:
    """Time of one more token and memory of the context, whole models."""
    costs = [cost for demo in demos for cost in demo.get("costs") or []]
    if not costs:
        return Markup("")
    contexts = sorted({float(cost["context"]) for cost in costs})

    def series(key: str, factor: float) -> list[Series]:
        points: dict[str, list[tuple[float, float]]] = {}
        for cost in costs:
            points.setdefault(cost["attention"], []).append((float(cost["context"]), factor * cost[key]))
        return [Series(name, own) for name, own in points.items()]

    panels = [
        Panel(title, "context", unit, series(key, factor), True, True, x_ticks=contexts, markers=True, x_format=short)
        for title, key, factor, unit in (
            ("Time of one more token", "seconds", 1e3, "ms"),
            ("Memory of the context", "state_bytes", 2.0**-20, "MiB"),
        )
    ]
    return tag("section", tag("h3", "Writing: one more token after a context"), figure(panels))
