"""HTML from small calls, with everything escaped that is not known to be HTML."""

from __future__ import annotations

import html
from collections.abc import Iterable, Sequence

VOID = {"br", "hr", "img", "meta", "path", "line", "rect", "circle", "polyline", "polygon"}

Value = str | float | int | bool | None


class Markup(str):
    """Text that is HTML already; what is added to it is escaped if it is not."""

    __slots__ = ()

    def __add__(self, other: str) -> Markup:
        return Markup(str.__add__(self, text(other)))


def text(value: object) -> Markup:
    """Anything as HTML: markup as it is, the rest escaped."""
    return value if isinstance(value, Markup) else Markup(html.escape(str(value)))


def tag(name: str, /, *children: object, **attributes: Value) -> Markup:
    """An element.

    Args:
        name: Of the element.
        *children: Markup, or text, which is escaped; None is left out.
        **attributes: Underscores become hyphens, so that `class_` and `stroke_width` can be written; None and False
            leave an attribute out.
    """
    written = "".join(
        f' {key.rstrip("_").replace("_", "-")}="{html.escape(_value(value))}"'
        for key, value in attributes.items()
        if value is not None and value is not False
    )
    if name in VOID and not children:
        return Markup(f"<{name}{written}/>")
    return Markup(f"<{name}{written}>{''.join(text(child) for child in children if child is not None)}</{name}>")


def join(parts: Iterable[object]) -> Markup:
    """Several pieces one after the other."""
    return Markup("".join(text(part) for part in parts))


def table(
    head: Sequence[object],
    rows: Iterable[Sequence[object]],
    *,
    caption: object = None,
    words: int = 1,
) -> Markup:
    """A table that scrolls sideways where it is wider than the page.

    Args:
        head: The headings.
        rows: As many cells each.
        caption: Stands above.
        words: So many columns from the left hold words; the others hold numbers and are set flush right.
    """

    def cells(kind: str, row: Sequence[object]) -> Markup:
        return join(
            tag(kind, cell, class_=None if i < words else "number", scope="col" if kind == "th" else None)
            for i, cell in enumerate(row)
        )

    body = join(tag("tr", cells("td", row)) for row in rows)
    title = None if caption is None else tag("caption", caption)
    return tag(
        "div",
        tag("table", title, tag("thead", tag("tr", cells("th", head))), tag("tbody", body)),
        class_="wide",
        tabindex=0,
        role="region",
        aria_label="table",
    )


def details(summary: object, *children: object) -> Markup:
    """What only some readers want to see."""
    return tag("details", tag("summary", summary), *children)


def _value(value: Value) -> str:
    return f"{value:.2f}".rstrip("0").rstrip(".") if isinstance(value, float) else str(value)
