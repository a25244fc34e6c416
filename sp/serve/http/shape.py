"""How many values a JSON text holds, before it is parsed: each costs a parser far more than its bytes."""

from __future__ import annotations

import re

from sp.serve.errors import RequestError

MOST_VALUES = 200_000
"""Strings and parts of lists and objects in a body; a chat of a thousand messages has some ten thousand."""
STRING = re.compile(rb'"[^"\\]*+(?:\\.[^"\\]*+)*+"', re.DOTALL)


def check_shape(raw: bytes) -> None:
    """RequestError for a text with more than `MOST_VALUES` values; takes time in proportion to its bytes.

    It need not be JSON: a string that does not end is for the parser to tell.

    Examples
    --------
    >>> check_shape(b'{"messages": [1, 2, 3]}')
    >>> check_shape(b"[" * 300_000)
    Traceback (most recent call last):
    sp.serve.errors.RequestError: the body has more than 200000 values; send fewer messages
    """
    at, found = 0, 0
    while at < len(raw):
        quote = raw.find(b'"', at)
        stop = len(raw) if quote < 0 else quote
        if stop - at > 1:  # between most strings there is a single sign
            found += sum(raw.count(sign, at, stop) for sign in (b",", b"[", b"{"))
        if found > MOST_VALUES:
            raise RequestError(f"the body has more than {MOST_VALUES} values; send fewer messages")
        string = STRING.match(raw, stop) if quote >= 0 else None
        if string is None:
            return
        at, found = string.end(), found + 1
