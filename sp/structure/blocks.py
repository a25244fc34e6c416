"""Lines, and what opens and closes round them: fenced blocks, and tags that have a line each."""

from __future__ import annotations

import re
from collections import Counter

import numpy as np

from sp.arrays import Ints

_MARK = re.compile(
    rb"^[ \t]*+(?:(?P<fence>`{3,}+|~{3,}+)(?P<info>[^\n]*+)"
    rb"|<(?P<closing>/?)(?P<tag>[A-Za-z_][\w.:-]*+)(?P<attributes>[ \t=][^<>\n]*+)?>[ \t\r]*+)$",
    re.MULTILINE,
)
_BLANKS = np.zeros(256, bool)
_BLANKS[list(b" \t\n\r\f\v")] = True


def line_starts(text: bytes) -> Ints:
    """Where lines begin, each with the blank ones behind it, the first also with those before it.

    Examples
    --------
    >>> line_starts(b"\\na\\n\\n  b\\nc").tolist()
    [0, 4, 8]
    """
    raw = np.frombuffer(text, np.uint8)
    starts = np.append(0, np.flatnonzero(raw == 0x0A) + 1)
    ink = np.append(0, np.cumsum(~_BLANKS[raw]))
    filled = ink[np.append(starts[1:], len(text))] > ink[np.minimum(starts, len(text))]
    starts = starts[filled]
    return np.append(0, starts[1:]).astype(np.int64)


def nested_blocks(text: bytes, starts: Ints) -> list[tuple[int, int]]:
    """Pairs of lines that open and close a block, properly nested, in the order in which they open.

    Fences as in CommonMark 0.31, save that one without an end is no fence; nothing inside of them is a mark. Tags
    count where each has a line of its own, and one that is never closed is only text.

    Parameters
    ----------
    text : bytes
    starts : array (lines,)
        As `line_starts` gives them.

    Examples
    --------
    >>> text = b"<a>\\n```py\\n</a>\\n```\\n<p>\\n</a>\\n"
    >>> nested_blocks(text, line_starts(text))
    [(0, 5), (1, 3)]
    """
    marks = list(_MARK.finditer(text))
    lines = (np.searchsorted(starts, [mark.start() for mark in marks], side="right") - 1).tolist()
    longest = _longest_ends(marks)
    found: list[tuple[int, int]] = []
    opened: list[tuple[bytes, int]] = []
    names: Counter[bytes] = Counter()
    number = 0
    while number < len(marks):
        mark, line = marks[number], lines[number]
        number += 1
        if (fence := mark["fence"]) is not None:
            if fence[:1] == b"`" and b"`" in mark["info"]:
                continue
            if len(fence) > longest[fence[:1]][number]:
                continue
            while _end_of(marks[number], fence[:1]) < len(fence):
                number += 1
            found.append((line, lines[number]))
            number += 1
        elif not mark["closing"]:
            if not (mark["attributes"] or b"").endswith(b"/"):
                opened.append((mark["tag"], line))
                names[mark["tag"]] += 1
        elif names[mark["tag"]] and not mark["attributes"]:
            while True:
                name, first = opened.pop()
                names[name] -= 1
                if name == mark["tag"]:
                    break
            if first < line:
                found.append((first, line))
    return sorted(found)


def _end_of(mark: re.Match[bytes], kind: bytes) -> int:
    """How long a fence of this kind a line can end; 0 for none."""
    fence = mark["fence"]
    return len(fence) if fence is not None and fence[:1] == kind and not mark["info"].strip() else 0


def _longest_ends(marks: list[re.Match[bytes]]) -> dict[bytes, list[int]]:
    """By kind: the longest fence that any mark from a place on can end. So no opening looks for an end in vain."""
    longest = {}
    for kind in (b"`", b"~"):
        most = [0] * (len(marks) + 1)
        for place in range(len(marks) - 1, -1, -1):
            most[place] = max(most[place + 1], _end_of(marks[place], kind))
        longest[kind] = most
    return longest
