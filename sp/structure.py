"""Structure of a text, in bytes: lines and nested blocks, JSON values, prose. All functions take linear time."""

from __future__ import annotations

import json
import re
from collections import Counter
from dataclasses import dataclass, field

import numpy as np

from sp.arrays import Bools, Ints

_MARK = re.compile(
    rb"^[ \t]*+(?:(?P<fence>`{3,}+|~{3,}+)(?P<info>[^\n]*+)"
    rb"|<(?P<closing>/?)(?P<tag>[A-Za-z_][\w.:-]*+)(?P<attributes>[ \t=][^<>\n]*+)?>[ \t\r]*+)$",
    re.MULTILINE,
)
_BLANKS = np.zeros(256, bool)
_BLANKS[list(b" \t\n\r\f\v")] = True


def is_blank(text: bytes) -> Bools:
    """Return True for each byte that is white space in ASCII, (bytes,)."""
    return np.asarray(_BLANKS[np.frombuffer(text, np.uint8)], bool)


def line_starts(text: bytes) -> Ints:
    """Return the byte at which each line starts, int64 (lines,).

    Blank lines belong to the line before them; those at the beginning to the first.
    """
    raw = np.frombuffer(text, np.uint8)
    starts = np.append(0, np.flatnonzero(raw == 0x0A) + 1)
    ink = np.append(0, np.cumsum(~is_blank(text)))  # bytes before each place that are not blank
    filled = ink[np.append(starts[1:], len(text))] > ink[np.minimum(starts, len(text))]
    starts = starts[filled]
    return np.append(0, starts[1:]).astype(np.int64)


def after_blank_line(text: bytes, starts: Ints) -> Bools:
    """Return True for each line that a blank line precedes, (lines,). `starts`: result of `line_starts`."""
    breaks = np.append(0, np.cumsum(np.frombuffer(text, np.uint8) == 0x0A))  # line breaks before each place
    ends = np.append(0, np.flatnonzero(~is_blank(text)) + 1)  # places behind a byte that is not blank
    last = ends[np.searchsorted(ends, starts, side="right") - 1]  # the visible text before each line ends there
    return np.asarray(breaks[starts] - breaks[last] > 1, bool)


def nested_blocks(text: bytes, starts: Ints) -> list[tuple[int, int]]:
    """Return pairs of lines that open and close a block, properly nested, in the order in which they open.

    Blocks are fences as in CommonMark 0.31, but one without an end is text, and elements whose tags are on lines of
    their own; a tag that is never closed is text. Inside of a fence everything is text. `starts`: result of
    `line_starts`.
    """
    marks = list(_MARK.finditer(text))
    lines = (np.searchsorted(starts, [mark.start() for mark in marks], side="right") - 1).tolist()
    longest = _longest_ends(marks)
    blocks: list[tuple[int, int]] = []
    opened: list[tuple[bytes, int]] = []
    names: Counter[bytes] = Counter()  # of opened tags
    number = 0
    while number < len(marks):
        mark, line = marks[number], lines[number]
        number += 1
        if (fence := mark["fence"]) is not None:
            if fence[:1] == b"`" and b"`" in mark["info"]:  # inline code, by CommonMark
                continue
            if len(fence) > longest[fence[:1]][number]:
                continue
            while _end_of(marks[number], fence[:1]) < len(fence):
                number += 1
            blocks.append((line, lines[number]))
            number += 1
        elif not mark["closing"]:
            if not (mark["attributes"] or b"").endswith(b"/"):
                opened.append((mark["tag"], line))
                names[mark["tag"]] += 1
        elif names[mark["tag"]] and not mark["attributes"]:
            while True:  # tags that were opened inside of this one and never closed are text
                name, first = opened.pop()
                names[name] -= 1
                if name == mark["tag"]:
                    break
            if first < line:
                blocks.append((first, line))
    return sorted(blocks)


def _end_of(mark: re.Match[bytes], kind: bytes) -> int:
    """Return the length of the longest fence of this kind that a line can end; 0 if it ends none."""
    fence = mark["fence"]
    return len(fence) if fence is not None and fence[:1] == kind and not mark["info"].strip() else 0


def _longest_ends(marks: list[re.Match[bytes]]) -> dict[bytes, list[int]]:
    """Return, by kind of fence, the longest one that any mark from each index on can end.

    An opening without an end is recognised by it in constant time, without a search.
    """
    longest = {}
    for kind in (b"`", b"~"):
        most = [0] * (len(marks) + 1)
        for place in range(len(marks) - 1, -1, -1):
            most[place] = max(most[place + 1], _end_of(marks[place], kind))
        longest[kind] = most
    return longest


_BLANK = rb"[ \t\n\r]*+"
_STRING = rb'"[^"\\\x00-\x1f]*+(?:\\(?:["\\/bfnrt]|u[0-9a-fA-F]{4})[^"\\\x00-\x1f]*+)*+"'
_LITERAL = rb"-?(?:0|[1-9][0-9]*+)(?:\.[0-9]++)?(?:[eE][+-]?[0-9]++)?|true|false|null"
_VALUE = rb"([\[{]|" + _STRING + rb"|" + _LITERAL + rb")"
_SCALAR = re.compile(_BLANK + rb"(?:(" + _STRING + rb")|" + _LITERAL + rb")" + _BLANK)
_OPEN = re.compile(rb"[\[{]")
_MEMBER = re.compile(_BLANK + rb"(" + _STRING + _BLANK + rb":" + _BLANK + _VALUE + rb")")
_ELEMENT = re.compile(_BLANK + rb"(" + _VALUE + rb")")
_NEXT = re.compile(_BLANK + rb"([,\]}])")
_OBJECT, _COMMA, _CLOSERS = 0x7B, 0x2C, {0x7B: 0x7D, 0x5B: 0x5D}


@dataclass(slots=True, eq=False)
class JsonValue:
    """A value of a JSON text and its place.

    Attributes
    ----------
    start, end : int
        Bytes ``[start, end)`` of the value with its key, if it has one.
    value_start : int
        First byte of the value itself.
    comma : int
        Byte of the comma after it; -1 without one.
    container : bool
        True for an object or an array.
    members : list of JsonValue
        Members of an object or an array.
    """

    start: int
    value_start: int
    end: int = -1
    comma: int = -1
    container: bool = False
    members: list[JsonValue] = field(default_factory=list)


def json_values(text: bytes) -> list[JsonValue]:
    """Return the outermost objects and arrays of a text, in order.

    A value that breaks off or is not JSON is skipped, but complete values inside of it are returned.
    """
    # One pass: the search goes on where a value breaks off. A string without an end costs its line only once, as JSON
    # strings have no line breaks, and no other string can begin in the rest of that line.
    values: list[JsonValue] = []
    position = 0
    while opened := _OPEN.search(text, position):
        position = _read(text, opened.start(), values)
    return values


def _read(text: bytes, start: int, values: list[JsonValue]) -> int:
    """Read a value from its bracket on, and return the byte at which it ends or breaks off.

    Appends it to `values`; if it breaks off, the complete values inside.
    """
    top = JsonValue(start, start, container=True)  # the innermost open container
    above: list[JsonValue] = []  # a stack, not recursion: nesting may be deeper than Python's limit
    position = start + 1
    while True:
        after = None if top.members else _NEXT.match(text, position)
        if after is None:  # a member has to follow: at the beginning, or after a comma
            member = (_MEMBER if text[top.value_start] == _OBJECT else _ELEMENT).match(text, position)
            if member is None:
                break
            value = JsonValue(member.start(1), member.start(2))
            top.members.append(value)
            position = member.end()
            if text[value.value_start] in _CLOSERS:
                value.container = True
                above.append(top)
                top = value
                continue
            value.end = position
            after = _NEXT.match(text, position)
        while after is not None and after[1][0] != _COMMA:
            if after[1][0] != _CLOSERS[text[top.value_start]]:
                after = None
                break
            position = top.end = after.end()
            if not above:
                values.append(top)
                return position
            top = above.pop()
            after = _NEXT.match(text, position)
        if after is None or not top.members:
            break
        top.members[-1].comma = after.start(1)
        position = after.end()
    for broken in (*above, top):
        for inner in broken.members:
            if inner.container and inner.end >= 0:
                inner.start, inner.comma = inner.value_start, -1  # it is outermost now: without key and comma
                values.append(inner)
    return position


LETTERS = bytes(range(0x80, 0x100)) + b"abcdefghijklmnopqrstuvwxyzABCDEFGHIJKLMNOPQRSTUVWXYZ \n,.;:!?'\"-"
STOP = re.compile(rb"[.!?][\"')\]]*+(?:\s|$)|\xe3\x80\x82|\xef\xbc[\x81\x9f]")
INDENTED = re.compile(rb"^(?:    |\t)", re.MULTILINE)
LEAST_LETTERS, LEAST_WORDS = 0.92, 5


def is_prose(paragraph: bytes) -> bool:
    """Return True if a paragraph consists of sentences.

    It has a full stop before white space, no indented line, at least `LEAST_WORDS` words per line, and few of the
    characters that are frequent in code and logs: brackets, slashes, underscores, equals signs, digits.
    """
    signs = len(paragraph.translate(None, LETTERS))
    lines = paragraph.strip().count(b"\n") + 1
    if signs > (1 - LEAST_LETTERS) * len(paragraph) or INDENTED.search(paragraph):
        return False
    if STOP.search(paragraph) is None:
        return False
    words, least = len(paragraph.split()), LEAST_WORDS * lines
    if words < least:  # characters of Chinese, Japanese and Korean, which have no spaces: each counts as a word
        words += sum(paragraph.count(lead) for lead in (b"\xe3", b"\xe4", b"\xe5", b"\xe6", b"\xe7", b"\xe8", b"\xe9"))
    return words >= least


_PART = re.compile(rb"\\u[0-9a-fA-F]{4}(?:\\u[dD][c-fC-F][0-9a-fA-F]{2})?|\\.|[^\\]++", re.DOTALL)


@dataclass(frozen=True)
class Unquoted:
    """The content of a JSON string, and the byte of the string that encodes each of its bytes and its end, (n + 1,)."""

    text: bytes
    places: Ints


def unquote(string: bytes) -> Unquoted | None:
    r"""Decode the bytes between the quotes of a JSON string; None if they are not valid there."""
    texts, places, position = [], [np.zeros(0, np.int64)], 0
    for part in _PART.finditer(string):
        if part.start() != position:
            return None
        position, text = part.end(), part[0]
        if text[:1] == b"\\":
            try:
                text = json.loads(b'"' + text + b'"').encode()
            except ValueError:  # an unknown escape, or half a surrogate pair
                return None
            places.append(np.full(len(text), part.start()))
        else:
            places.append(np.arange(part.start(), position))
        texts.append(text)
    return None if position != len(string) else Unquoted(b"".join(texts), np.concatenate([*places, [position]]))


NOTHING = range(0)


def scalar_content(text: bytes) -> range | None:
    r"""Return which bytes can be left out of a text that is one JSON string or number, so that it stays valid JSON.

    They are those between the quotes of a string. `NOTHING` of a number, as another one would result, and of a string
    with half a surrogate pair. None for any other text.

    >>> scalar_content(b'"a b"'), scalar_content(b"-1.5e3\n"), scalar_content(b'["a"]')
    (range(1, 4), range(0, 0), None)
    """
    match = _SCALAR.fullmatch(text)
    if match is None:
        return None
    content = range(match.start(1) + 1, match.end(1) - 1) if match[1] else NOTHING
    return NOTHING if unquote(text[content.start : content.stop]) is None else content
