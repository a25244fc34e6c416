"""A text inside a JSON string, as some chat templates write results of tools: what it says, and where."""

from __future__ import annotations

import json
import re
from dataclasses import dataclass

import numpy as np

from sp.arrays import Ints

_PART = re.compile(rb"\\u[0-9a-fA-F]{4}(?:\\u[dD][c-fC-F][0-9a-fA-F]{2})?|\\.|[^\\]++", re.DOTALL)


@dataclass(frozen=True)
class Unquoted:
    """The text, and the byte of the string at which each of its bytes and its end are written, shape (n + 1,)."""

    text: bytes
    places: Ints


def unquote(string: bytes) -> Unquoted | None:
    r"""What is written between the quotes of a JSON string; None if that is no such string.

    Examples
    --------
    >>> found = unquote(b'a\\n\\"b\\u00e9')
    >>> found.text, found.places.tolist()
    (b'a\n"b\xc3\xa9', [0, 1, 3, 5, 6, 6, 12])
    """
    texts, places, at = [], [np.zeros(0, np.int64)], 0
    for part in _PART.finditer(string):
        if part.start() != at:
            return None
        at, written = part.end(), part[0]
        if written[:1] == b"\\":
            try:
                said = json.loads(b'"' + written + b'"').encode()
            except ValueError:  # no such escape, or half of a pair
                return None
            places.append(np.full(len(said), part.start()))
        else:
            said = written
            places.append(np.arange(part.start(), at))
        texts.append(said)
    return None if at != len(string) else Unquoted(b"".join(texts), np.concatenate([*places, [at]]))
