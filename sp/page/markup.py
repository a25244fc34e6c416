"""Markup that escapes: what is not `Html` is text, whoever wrote it, and can only ever be shown."""

from __future__ import annotations

from collections.abc import Iterable
from html import escape

PICTURES = {code: 0x2400 + code for code in range(32) if code not in (9, 10, 13)} | {0x7F: 0x2421}
"""Control characters as their pictures: a page may not hold them."""
VOID = frozenset({"br", "hr", "input", "meta", "rect", "line"})
"""Elements without an end."""


class Html(str):
    """Text that is markup already."""

    __slots__ = ()


def html(value: object) -> Html:
    """Markup as it is; anything else as the text it prints as.

    Examples
    --------
    >>> html("</script><img onerror=x>")
    '&lt;/script&gt;&lt;img onerror=x&gt;'
    >>> html("nul: " + chr(0) + ", half a pair: " + chr(0xD800))
    'nul: ␀, half a pair: ?'
    """
    if isinstance(value, Html):
        return value
    known = str(value).encode(errors="replace").decode()  # names of files may hold halves of pairs
    return Html(escape(known.translate(PICTURES)))


def join(parts: Iterable[object], between: str = "") -> Html:
    """Parts one after the other.

    Examples
    --------
    >>> join([tag("b", "a"), "<"], ", ")
    '<b>a</b>, &lt;'
    """
    return Html(html(between).join(map(html, parts)))


def tag(name: str, /, *children: object, **attributes: object) -> Html:
    """An element.

    Parameters
    ----------
    *children : object
        `Html`, or text.
    **attributes : object
        ``class_`` is ``class`` and ``data_at`` is ``data-at``; None and False leave one out, True has no value.

    Examples
    --------
    >>> tag("p", "1 < 2", tag("b", "!"), class_="note", hidden=True, title=None)
    '<p class="note" hidden>1 &lt; 2<b>!</b></p>'
    >>> tag("rect", x=1, viewBox='"')
    '<rect x="1" viewBox="&quot;"/>'
    """
    said = "".join(
        f" {key.rstrip('_').replace('_', '-')}" + ("" if value is True else f'="{html(value)}"')
        for key, value in attributes.items()
        if value is not None and value is not False
    )
    return Html(f"<{name}{said}/>" if name in VOID else f"<{name}{said}>{join(children)}</{name}>")
