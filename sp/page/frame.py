"""What every page has: its head, the style they share, and a policy by which no text can run or fetch anything."""

from __future__ import annotations

from base64 import b64encode
from functools import cache
from hashlib import sha256
from importlib.resources import files

from sp.page.markup import Html, html, tag


@cache
def asset(name: str, package: str = "sp.page") -> str:
    """A style or script that lies beside the code."""
    return (files(package) / name).read_text("utf-8")


def page(title: str, *body: object, styles: tuple[str, ...] = (), scripts: tuple[str, ...] = ()) -> str:
    """A whole page.

    Parameters
    ----------
    *body : object
        `Html`, or text.
    styles, scripts : tuple of str
        Besides the style that all share. Only these run, by their digests: had some text come through unescaped, a
        browser would still not obey it, nor may the page fetch anything but from where it came.

    Examples
    --------
    >>> made = page("a & b", tag("p", "<hello>"))
    >>> "<title>a &amp; b</title>" in made, "<p>&lt;hello&gt;</p>" in made, "http" in made.replace("http-equiv", "")
    (True, True, False)
    """
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
