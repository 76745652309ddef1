"""The section about results: tables that were written as Markdown, with their pictures."""

from __future__ import annotations

import base64
import re
from collections.abc import Sequence

from .html import Markup, join, table, tag, text
from .sources import Results


def section(results: Sequence[Results]) -> Markup:
    return join(_one(each) for each in results)


def _one(results: Results) -> Markup:
    parts: list[Markup] = [tag("h3", results.path.stem if results.path.is_file() else results.path.resolve().name)]
    parts += [markdown(page) for page in results.pages.values()]
    if not results.pages and results.cells:
        parts.append(_cells(results))
    parts += [picture(name, content) for name, content in results.pictures.items()]
    return tag("section", *parts)


def picture(name: str, content: bytes) -> Markup:
    """A PNG inside the page."""
    encoded = base64.b64encode(content).decode()
    return tag(
        "figure", tag("img", src=f"data:image/png;base64,{encoded}", alt=name.rpartition(".")[0], class_="paper")
    )


def markdown(source: str) -> Markup:
    """The part of Markdown that our tables are written in: headings, paragraphs, tables, emphasis, code."""
    parts: list[Markup] = []
    for block in re.split(r"\n\s*\n", re.sub(r"<!--.*?-->", "", source, flags=re.DOTALL).strip()):
        lines = block.strip().splitlines()
        if not lines:
            continue
        if len(lines) > 1 and lines[0].lstrip().startswith("|") and re.match(r"^\s*\|?[\s:|-]+\|?\s*$", lines[1]):
            parts.append(_table(lines))
        elif heading := re.match(r"^(#+)\s+(.*)$", lines[0]):
            parts.append(tag("h4", _inline(heading[2])))
            if len(lines) > 1:
                parts.append(tag("p", _inline(" ".join(lines[1:]))))
        elif re.match(r"^!\[.*\]\(.*\)$", block.strip()):
            continue  # pictures come by themselves
        elif all(line.lstrip().startswith(("- ", "* ")) for line in lines):
            parts.append(tag("ul", *(tag("li", _inline(line.lstrip()[2:])) for line in lines)))
        else:
            parts.append(tag("p", _inline(" ".join(lines))))
    return join(parts)


def _table(lines: list[str]) -> Markup:
    rows = [[_inline(cell.strip()) for cell in line.strip().strip("|").split("|")] for line in lines]
    return table(rows[0], rows[2:])


def _inline(source: str) -> Markup:
    escaped = str(text(source))
    for pattern, made in (
        (r"`([^`]+)`", r"<code>\1</code>"),
        (r"\*\*([^*]+)\*\*", r"<strong>\1</strong>"),
        (r"(?<!\*)\*([^*]+)\*(?!\*)", r"<em>\1</em>"),
        (r"\[([^\]]+)\]\([^)]*\)", r"\1"),
    ):
        escaped = re.sub(pattern, made, escaped)
    return Markup(escaped)


def _cells(results: Results) -> Markup:
    """Cells without a table of their own: their metrics one by one."""
    names = list(dict.fromkeys(key for cell in results.cells for key in cell["metrics"]))[:8]
    rows = []
    for cell in results.cells:
        command = cell["command"]
        values = [cell["metrics"].get(name) for name in names]
        numbers = [f"{value:.4g}" if isinstance(value, int | float) else "–" for value in values]
        rows.append([tag("code", command if isinstance(command, str) else " ".join(map(str, command))), *numbers])
    return table(["command", *(name.replace("_", " ") for name in names)], rows)
