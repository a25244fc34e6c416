"""Whether a paragraph is prose, which is read by sentences, or code, a log, a table, which are read by lines."""

from __future__ import annotations

import re

LETTERS = bytes(range(0x80, 0x100)) + b"abcdefghijklmnopqrstuvwxyzABCDEFGHIJKLMNOPQRSTUVWXYZ \n,.;:!?'\"-"
STOP = re.compile(rb"[.!?][\"')\]]*+(?:\s|$)|\xe3\x80\x82|\xef\xbc[\x81\x9f]")
INDENTED = re.compile(rb"^(?:    |\t)", re.MULTILINE)
LEAST_LETTERS, LEAST_WORDS = 0.92, 5


def is_prose(paragraph: bytes) -> bool:
    """Whether a paragraph is written in sentences.

    It has a stop before white space, no indented line, words to a line as sentences have, and few signs that code and
    logs are full of: brackets, slashes, underscores, equals signs, digits.

    Examples
    --------
    >>> is_prose(b"The cat sat on the mat. It was\\n7 o'clock, and nobody came."), is_prose(b"x = f(y).\\n")
    (True, False)
    """
    signs = len(paragraph.translate(None, LETTERS))
    lines = paragraph.strip().count(b"\n") + 1
    if signs > (1 - LEAST_LETTERS) * len(paragraph) or INDENTED.search(paragraph):
        return False
    wide = sum(paragraph.count(lead) for lead in (b"\xe3", b"\xe4", b"\xe5", b"\xe6", b"\xe7", b"\xe8", b"\xe9"))
    return len(paragraph.split()) + wide >= LEAST_WORDS * lines and STOP.search(paragraph) is not None
