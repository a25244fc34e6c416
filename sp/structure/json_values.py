"""JSON objects and arrays in any text, found in one pass without recursion (RFC 8259)."""

from __future__ import annotations

import re
from dataclasses import dataclass, field

_BLANK = rb"[ \t\n\r]*+"
_STRING = rb'"[^"\\\x00-\x1f]*+(?:\\(?:["\\/bfnrt]|u[0-9a-fA-F]{4})[^"\\\x00-\x1f]*+)*+"'
_VALUE = rb"([\[{]|" + _STRING + rb"|-?(?:0|[1-9][0-9]*+)(?:\.[0-9]++)?(?:[eE][+-]?[0-9]++)?|true|false|null)"
_OPEN = re.compile(rb"[\[{]")
_MEMBER = re.compile(_BLANK + rb"(" + _STRING + _BLANK + rb":" + _BLANK + _VALUE + rb")")
_ELEMENT = re.compile(_BLANK + rb"(" + _VALUE + rb")")
_NEXT = re.compile(_BLANK + rb"([,\]}])")
_OBJECT, _COMMA, _CLOSERS = 0x7B, 0x2C, {0x7B: 0x7D, 0x5B: 0x5D}


@dataclass(slots=True, eq=False)
class JsonValue:
    """A value and where it stands.

    Parameters
    ----------
    start, at, end : int
        Bytes `[start, end)` are the value with its key, if it has one; `at` is where the value itself begins.
    comma : int
        Byte of the comma behind it; -1 without one.
    container : bool
        Whether it is an object or an array.
    members : list of JsonValue
        Of an object or an array.
    """

    start: int
    at: int
    end: int = -1
    comma: int = -1
    container: bool = False
    members: list[JsonValue] = field(default_factory=list)


def json_values(text: bytes) -> list[JsonValue]:
    """The outermost objects and arrays of a text, in order.

    What breaks off, or is no JSON, is passed over; whole values inside of it are found. One pass: where a value turns
    out to be none, the search goes on from there. A string that does not end costs its line once, as JSON has no line
    breaks in strings, and no other string can begin in the rest of that line.

    Examples
    --------
    >>> text = b'a[i] = f({"x": [1, 2]}) and [3, {"y": {}} oops'
    >>> [text[value.start:value.end] for value in json_values(text)]
    [b'{"x": [1, 2]}', b'{"y": {}}']
    """
    found: list[JsonValue] = []
    at = 0
    while opened := _OPEN.search(text, at):
        at = _read(text, opened.start(), found)
    return found


def _read(text: bytes, start: int, found: list[JsonValue]) -> int:
    """Read a value from its bracket on; add it, or the whole ones inside if it breaks off; where that was."""
    top = JsonValue(start, start, container=True)
    above: list[JsonValue] = []
    at = start + 1
    while True:
        after = None if top.members else _NEXT.match(text, at)
        if after is None:  # a member has to follow: at the beginning, or behind a comma
            member = (_MEMBER if text[top.at] == _OBJECT else _ELEMENT).match(text, at)
            if member is None:
                break
            value = JsonValue(member.start(1), member.start(2))
            top.members.append(value)
            at = member.end()
            if text[value.at] in _CLOSERS:
                value.container = True
                above.append(top)
                top = value
                continue
            value.end = at
            after = _NEXT.match(text, at)
        while after is not None and after[1][0] != _COMMA:
            if after[1][0] != _CLOSERS[text[top.at]]:
                after = None
                break
            at = top.end = after.end()
            if not above:
                found.append(top)
                return at
            top = above.pop()
            after = _NEXT.match(text, at)
        if after is None or not top.members:
            break
        top.members[-1].comma = after.start(1)
        at = after.end()
    for broken in (*above, top):
        for inner in broken.members:
            if inner.container and inner.end >= 0:
                inner.start, inner.comma = inner.at, -1
                found.append(inner)
    return at
