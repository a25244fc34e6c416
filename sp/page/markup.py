"""HTML: escaped text, elements, whole pages, and tables."""

from __future__ import annotations

from base64 import b64encode
from collections.abc import Collection, Iterable, Sequence
from dataclasses import dataclass
from functools import cache
from hashlib import sha256
from html import escape
from importlib.resources import files

PICTURES = {code: 0x2400 + code for code in range(32) if code not in (9, 10, 13)} | {0x7F: 0x2421}
"""Control characters, which HTML forbids, by code point, and the symbols that stand for them."""
VOID = frozenset({"br", "hr", "input", "meta", "rect", "line"})  # elements without an end tag


class Html(str):
    """Text that is markup already."""

    __slots__ = ()


def html(value: object) -> Html:
    """Return markup unchanged, and anything else as escaped text."""
    if isinstance(value, Html):
        return value
    text = str(value).encode(errors="replace").decode()  # names of files may have half surrogate pairs
    return Html(escape(text.translate(PICTURES)))


def join(parts: Iterable[object], between: str = "") -> Html:
    """Join parts into one piece of markup."""
    return Html(html(between).join(map(html, parts)))


def tag(name: str, /, *children: object, **attributes: object) -> Html:
    """Return an element.

    `children`: `Html`, or text to escape; `attributes`: ``class_`` is ``class``, ``data_at`` is ``data-at``; None and
    False omit an attribute, True writes it without a value.
    """
    markup = "".join(
        f" {key.rstrip('_').replace('_', '-')}" + ("" if value is True else f'="{html(value)}"')
        for key, value in attributes.items()
        if value is not None and value is not False
    )
    return Html(f"<{name}{markup}/>" if name in VOID else f"<{name}{markup}>{join(children)}</{name}>")


@cache
def asset(name: str, package: str = "sp.page") -> str:
    """Return the text of a style sheet or script of a package."""
    return (files(package) / name).read_text("utf-8")


def page(title: str, *body: object, styles: tuple[str, ...] = (), scripts: tuple[str, ...] = ()) -> str:
    """Return a whole page. `styles`, `scripts`: texts to embed, in addition to the common style sheet."""
    # Styles and scripts are allowed by their digests only: even if a text were inserted without escaping, a browser
    # would not run it, and the page can fetch only from its own origin.
    style, script = "\n".join([asset("style.css"), *styles]), "\n".join(scripts)
    allowed = f"default-src 'none'; style-src {_digest(style)}"
    allowed += f"; script-src {_digest(script)}; connect-src 'self'" if script else ""
    head = [
        tag("meta", charset="utf-8"),
        tag("meta", name="viewport", content="width=device-width, initial-scale=1"),
        tag("meta", http_equiv="Content-Security-Policy", content=allowed + "; base-uri 'none'; form-action 'none'"),
        tag("title", title),
        tag("style", Html(style)),
    ]
    inside = "\n".join([*map(html, body), tag("script", Html(script)) if script else ""])
    top = "\n".join(head)
    return f'<!doctype html>\n<html lang="en">\n<head>\n{top}\n</head>\n<body>\n{inside}\n</body>\n</html>\n'


def _digest(text: str) -> str:
    return f"'sha256-{b64encode(sha256(text.encode()).digest()).decode()}'"


@dataclass(frozen=True)
class Cell:
    """A cell of a sortable table: its content, and the value to sort by.

    A cell that is not measured is empty.
    """

    content: object
    value: float | str | None = None


def sortable(
    caption: str, heads: Sequence[str], rows: Sequence[Sequence[Cell]], words: Collection[str] = (), class_: str = ""
) -> Html:
    """Return a table with columns to sort by, which scrolls if it is wider than the screen.

    `caption`: name for screen readers; `words`: heads of left-aligned columns of text, besides the first; `class_`:
    further classes of the element.
    """
    is_text = [number == 0 or head in words for number, head in enumerate(heads)]
    top = join(
        tag("th", tag("button", head, type="button"), scope="col", class_="text" if textual else None)
        for head, textual in zip(heads, is_text, strict=True)
    )
    body = join(
        (
            tag("tr", *(tag("td", cell.content, class_="text" if textual else None, data_value=cell.value)
                        for cell, textual in zip(row, is_text, strict=True)))
            for row in rows
        ),
        "\n",
    )  # fmt: skip
    table = tag("table", tag("thead", tag("tr", top)), tag("tbody", body), class_=f"sorts {class_}".strip(),
                aria_label=caption)  # fmt: skip
    return tag("div", table, class_="scroll", tabindex="0", role="region", aria_label=caption)


def facts(pairs: Sequence[tuple[str, object]]) -> Html:
    """Return a list of names and their values."""
    return tag("dl", *(tag(kind, value) for pair in pairs for kind, value in zip(("dt", "dd"), pair, strict=True)))
