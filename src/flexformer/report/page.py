"""The page: one HTML file that needs nothing besides itself."""

from __future__ import annotations

import datetime
from collections.abc import Sequence
from importlib.resources import files

from .. import __version__
from . import demo, efficiency, environment, learned, results, runs
from .html import Markup, join, tag
from .sources import Sources

TITLE = "Flexformer report"

# Nothing may be loaded from anywhere, and nothing may run.
POLICY = "default-src 'none'; style-src 'unsafe-inline'; img-src data:"


def page(sources: Sources, title: str = TITLE, kernels: Sequence[learned.Learned] = ()) -> str:
    """The report.

    Args:
        sources: What it is about.
        title: Its heading.
        kernels: What was learned, see `learned.read`.
    """
    sections = [
        ("demo", "At a glance", demo.section(sources.demos) if sources.demos else None),
        ("runs", "What was run", runs.section(sources.runs) if sources.runs else None),
        ("results", "Results", results.section(sources.results) if sources.results else None),
        ("efficiency", "Speed and memory", _efficiency(sources)),
        ("kernels", "What the kernels learned", learned.section(kernels) if kernels else None),
        ("environment", "Environment", environment.section(sources)),
    ]
    present = [(name, heading, body) for name, heading, body in sections if body]
    nav = tag("nav", *(tag("a", heading, href=f"#{name}") for name, heading, _ in present), aria_label="contents")
    when = datetime.datetime.now().astimezone().strftime("%d %B %Y, %H:%M")
    body = tag(
        "body",
        tag(
            "header",
            tag("h1", title),
            tag("p", _summary(sources)),
            tag("div", f"Written on {when} by flexformer {__version__}", class_="when"),
            nav if len(present) > 1 else None,
        ),
        tag("main", *(tag("section", tag("h2", heading), content, id=name) for name, heading, content in present)),
        tag("footer", "Attention whose cost grows linearly with length and whose similarity function is learned."),
    )
    style = Markup(files(__package__).joinpath("style.css").read_text(encoding="utf-8"))
    head = tag(
        "head",
        tag("meta", charset="utf-8"),
        tag("meta", http_equiv="Content-Security-Policy", content=POLICY),
        tag("meta", name="viewport", content="width=device-width, initial-scale=1"),
        tag("meta", name="color-scheme", content="light dark"),
        tag("title", title),
        tag("style", style),
    )
    return f"<!DOCTYPE html>\n{tag('html', head, body, lang='en')}\n"


def _efficiency(sources: Sources) -> Markup | None:
    parts = [part for part in (demo.writing(sources.demos), efficiency.section(sources.benches)) if part]
    return join(parts) if parts else None


def _summary(sources: Sources) -> str:
    """What is here, in a sentence."""
    groups = runs.grouped(sources.runs)
    attentions = list(dict.fromkeys(run.attention for _, group in groups for run in group))
    parts = []
    if sources.runs:
        about = f"{_count(len(sources.runs), 'run')} with {_and(attentions)}"
        titles = [title[0].lower() + title[1:] if title[1:2].islower() else title for title, _ in groups]
        parts.append(f"{about}: {'; '.join(titles)}" if len(groups) <= 3 else f"{about}, {len(groups)} settings")
    if sources.results:
        parts.append(f"{_count(len(sources.results), 'table')} of results")
    if sources.benches:
        parts.append(_count(len(sources.benches), "measurement") + " of speed and memory")
    said = "; ".join(parts) if parts else "Nothing was run"
    return said[0].upper() + said[1:] + "."


def _count(number: int, noun: str) -> str:
    return f"{number} {noun}" if number == 1 else f"{number} {noun}s"


def _and(names: Sequence[str]) -> str:
    shown = list(names) if len(names) <= 5 else [*names[:4], f"{len(names) - 4} more"]
    return shown[0] if len(shown) == 1 else f"{', '.join(shown[:-1])} and {shown[-1]}"
