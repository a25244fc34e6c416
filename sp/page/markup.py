"""HTML: text escaped, elements, whole pages, and tables."""

from __future__ import annotations

from base64 import b64encode
from collections.abc import Collection, Iterable, Sequence
from dataclasses import dataclass
from functools import cache
from hashlib import sha256
from html import escape
from importlib.resources import files

PICTURES = {code: 0x2400 + code for code in range(32) if code not in (9, 10, 13)} | {0x7F: 0x2421}
"""Control characters as their pictures: a page may not hold them."""
VOID = frozenset({"br", "hr", "input", "meta", "rect", "line"})  # elements without an end


class Html(str):
    """Text that is markup already."""

    __slots__ = ()


def html(value: object) -> Html:
    """Markup as it is; anything else as the text it prints as."""
    if isinstance(value, Html):
        return value
    known = str(value).encode(errors="replace").decode()  # names of files may hold halves of pairs
    return Html(escape(known.translate(PICTURES)))


def join(parts: Iterable[object], between: str = "") -> Html:
    """Parts one after the other."""
    return Html(html(between).join(map(html, parts)))


def tag(name: str, /, *children: object, **attributes: object) -> Html:
    """An element. `children`: `Html`, or text; `attributes`: ``class_`` is ``class`` and ``data_at`` is ``data-at``;
    None and False leave one out, True has no value."""
    said = "".join(
        f" {key.rstrip('_').replace('_', '-')}" + ("" if value is True else f'="{html(value)}"')
        for key, value in attributes.items()
        if value is not None and value is not False
    )
    return Html(f"<{name}{said}/>" if name in VOID else f"<{name}{said}>{join(children)}</{name}>")


@cache
def asset(name: str, package: str = "sp.page") -> str:
    """A style or script that lies beside the code."""
    return (files(package) / name).read_text("utf-8")


def page(title: str, *body: object, styles: tuple[str, ...] = (), scripts: tuple[str, ...] = ()) -> str:
    """A whole page. Besides the style that all share only these `styles` and `scripts` run, by their digests: had some
    text come through unescaped, a browser would still not obey it, nor may the page fetch anything but from where it
    came."""
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
    """What stands in a cell and, where that is no number, what it is sorted by; an empty one was not measured."""

    shown: object
    value: float | str | None = None


def sortable(
    caption: str, heads: Sequence[str], rows: Sequence[Sequence[Cell]], words: Collection[str] = (), class_: str = ""
) -> Html:
    """A table that may be wider than the screen. `caption`: what a reader of the screen hears of it; `words`: heads of
    columns of words, which begin where their words do; the first always is one; `class_`: besides `sorts`."""
    left = [place == 0 or head in words for place, head in enumerate(heads)]
    top = join(
        tag("th", tag("button", head, type="button"), scope="col", class_="text" if first else None)
        for head, first in zip(heads, left, strict=True)
    )
    body = join(
        (
            tag("tr", *(tag("td", one.shown, class_="text" if first else None, data_value=one.value)
                        for one, first in zip(row, left, strict=True)))
            for row in rows
        ),
        "\n",
    )  # fmt: skip
    table = tag("table", tag("thead", tag("tr", top)), tag("tbody", body), class_=f"sorts {class_}".strip(),
                aria_label=caption)  # fmt: skip
    return tag("div", table, class_="scroll", tabindex="0", role="region", aria_label=caption)


def facts(pairs: Sequence[tuple[str, object]]) -> Html:
    """Names and what they are."""
    return tag("dl", *(tag(kind, value) for pair in pairs for kind, value in zip(("dt", "dd"), pair, strict=True)))
