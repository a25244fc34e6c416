"""What text is made of, in bytes: lines and the blocks round them, JSON values, prose. All linear in its size."""

from __future__ import annotations

import json
import re
from collections import Counter
from dataclasses import dataclass, field

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
    """Where lines begin, each with the blank ones behind it, the first also with those before it."""
    raw = np.frombuffer(text, np.uint8)
    starts = np.append(0, np.flatnonzero(raw == 0x0A) + 1)
    ink = np.append(0, np.cumsum(~_BLANKS[raw]))
    filled = ink[np.append(starts[1:], len(text))] > ink[np.minimum(starts, len(text))]
    starts = starts[filled]
    return np.append(0, starts[1:]).astype(np.int64)


def nested_blocks(text: bytes, starts: Ints) -> list[tuple[int, int]]:
    """Pairs of lines that open and close a block, properly nested, in the order in which they open. Fences as in
    CommonMark 0.31, save that one without an end is no fence; nothing inside of them is a mark. Tags count where each
    has a line of its own, and one that is never closed is only text. `starts` array (lines,): as `line_starts` gives
    them.
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
    """A value and where it stands. `start`, `at`, `end`: bytes `[start, end)` are the value with its key, if it has
    one; `at` is where the value itself begins.
    """

    start: int
    at: int
    end: int = -1
    comma: int = -1  # byte of the comma behind it; -1 without one
    container: bool = False  # whether it is an object or an array
    members: list[JsonValue] = field(default_factory=list)  # of an object or an array


def json_values(text: bytes) -> list[JsonValue]:
    """The outermost objects and arrays of a text, in order. What breaks off, or is no JSON, is passed over; whole
    values inside of it are found. One pass: where a value turns out to be none, the search goes on from there. A string
    that does not end costs its line once, as JSON has no line breaks in strings, and no other string can begin in the
    rest of that line.
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


LETTERS = bytes(range(0x80, 0x100)) + b"abcdefghijklmnopqrstuvwxyzABCDEFGHIJKLMNOPQRSTUVWXYZ \n,.;:!?'\"-"
STOP = re.compile(rb"[.!?][\"')\]]*+(?:\s|$)|\xe3\x80\x82|\xef\xbc[\x81\x9f]")
INDENTED = re.compile(rb"^(?:    |\t)", re.MULTILINE)
LEAST_LETTERS, LEAST_WORDS = 0.92, 5


def is_prose(paragraph: bytes) -> bool:
    """Whether a paragraph is written in sentences. It has a stop before white space, no indented line, words to a line
    as sentences have, and few signs that code and logs are full of: brackets, slashes, underscores, equals signs,
    digits.
    """
    signs = len(paragraph.translate(None, LETTERS))
    lines = paragraph.strip().count(b"\n") + 1
    if signs > (1 - LEAST_LETTERS) * len(paragraph) or INDENTED.search(paragraph):
        return False
    wide = sum(paragraph.count(lead) for lead in (b"\xe3", b"\xe4", b"\xe5", b"\xe6", b"\xe7", b"\xe8", b"\xe9"))
    return len(paragraph.split()) + wide >= LEAST_WORDS * lines and STOP.search(paragraph) is not None


_PART = re.compile(rb"\\u[0-9a-fA-F]{4}(?:\\u[dD][c-fC-F][0-9a-fA-F]{2})?|\\.|[^\\]++", re.DOTALL)


@dataclass(frozen=True)
class Unquoted:
    """The text, and the byte of the string at which each of its bytes and its end are written, shape (n + 1,)."""

    text: bytes
    places: Ints


def unquote(string: bytes) -> Unquoted | None:
    r"""What is written between the quotes of a JSON string; None if that is no such string."""
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
