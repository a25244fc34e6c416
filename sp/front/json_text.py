"""Edit single values of a JSON text and leave every other character as it is.

Parsing and writing a body again would change what it spells: numbers beyond a double, repeated keys, escapes, spaces.
All functions expect a text that `json.loads` accepts; of repeated keys the last one counts, as there.
"""

from __future__ import annotations

import json
import re
from collections.abc import Collection, Iterator, Mapping
from dataclasses import dataclass
from typing import Any

Path = tuple[str | int, ...]
"""Keys and indices that lead to a value."""

TOKEN = re.compile(r'([{}\[\],:])|("[^"\\]*+(?:\\.[^"\\]*+)*+")|([^\s{}\[\],:"]++)', re.DOTALL)
"""A sign of structure, a string, or another scalar."""
COMMA = re.compile(r"\s*,")


@dataclass(frozen=True)
class Member:
    """Where a value stands in a JSON text, in characters. `key`: start of its key in an object, else of the value."""

    key: int
    start: int
    end: int


@dataclass
class _Container:
    """An object or a list that is still open. `path` is None where nothing below it is wanted."""

    path: Path | None
    key: int
    start: int
    index: int | None  # of the next value of a list; None for objects


def locate(text: str, paths: Collection[Path]) -> dict[Path, Member]:
    """Find the values at some paths.

    >>> locate('{"a": [1, "b"]}', [("a", 1)])
    {('a', 1): Member(key=10, start=10, end=13)}
    """
    members = dict(_members(text, paths))  # the last one of each path
    return {path: members[path] for path in paths if path in members}


def _members(text: str, paths: Collection[Path]) -> Iterator[tuple[Path, Member]]:
    """Yield the values at some paths and at those that lead there, as they end; repeated keys repeat a path."""
    # A value whose path is no prefix of a wanted one is passed over without decoding its keys.
    prefixes = {path[:depth] for path in paths for depth in range(len(path) + 1)}
    open_containers: list[_Container] = []
    path: Path | None = ()  # of the next value
    key_start, reads_key = -1, False

    def child(parent: Path | None, step: str | int) -> Path | None:
        below = None if parent is None else (*parent, step)
        return below if below in prefixes else None

    for match in TOKEN.finditer(text):
        sign, string, _ = match.groups()
        if string is not None and reads_key:
            parent = open_containers[-1].path
            path = None if parent is None else child(parent, json.loads(string))
            key_start, reads_key = match.start(), False
            continue
        if sign == ":":
            continue
        if sign == ",":
            container = open_containers[-1]
            if container.index is None:
                reads_key = True
            else:
                container.index += 1
                path = child(container.path, container.index)
            key_start = -1
            continue
        start = match.start()
        if sign in ("{", "["):
            index = 0 if sign == "[" else None
            open_containers.append(_Container(path, key_start if key_start >= 0 else start, start, index))
            path = None if index is None else child(path, index)
            key_start, reads_key = -1, index is None
            continue
        first = key_start if key_start >= 0 else start
        if sign is not None:  # the end of an object or a list
            container = open_containers.pop()
            path, first, start, reads_key = container.path, container.key, container.start, False
        if path is not None:
            yield path, Member(first, start, match.end())


def with_strings(text: str, strings: Mapping[Path, str], inserted: Mapping[Path, Any] | None = None) -> str:
    """Replace the values at some paths by strings, and insert values in front of the items of lists at some paths.

    >>> with_strings('{"n": 1.0e2, "a": ["x", "y"]}', {("a", 0): "new"}, {("a", 1): 2})
    '{"n": 1.0e2, "a": ["new", 2, "y"]}'
    """
    inserted = inserted or {}
    edits = list[tuple[int, int, str]]()
    for path, member in locate(text, {*strings, *inserted}).items():
        if path in inserted:
            edits.append((member.start, member.start, json.dumps(inserted[path], ensure_ascii=False) + ", "))
        if path in strings:
            edits.append((member.start, member.end, json.dumps(strings[path], ensure_ascii=False)))
    pieces, last = [], 0
    for start, end, new in sorted(edits):
        pieces += [text[last:start], new]
        last = end
    return "".join([*pieces, text[last:]])


def without_member(text: str, name: str) -> str:
    """Remove a member of the outermost object, however often it is repeated.

    >>> without_member('{"sp": {"off": true}, "n": 1}', "sp")
    '{ "n": 1}'
    """
    rest, last = "", 0
    for path, member in _members(text, [(name,)]):
        if path != (name,):
            continue
        rest += text[last : member.key]
        if comma := COMMA.match(text, member.end):
            last = comma.end()
        else:
            rest, last = rest.rstrip().removesuffix(","), member.end
    return rest + text[last:]


def with_member(text: str, path: Path, name: str, value: Any) -> str:
    """Set a member of the object at a path; the text as it is where there is none.

    >>> with_member('{"usage": {"n": 1}}', ("usage",), "sp", {"shortened": 2})
    '{"usage": {"n": 1, "sp": {"shortened": 2}}}'
    """
    members, new = locate(text, [path, (*path, name)]), json.dumps(value, ensure_ascii=False)
    if member := members.get((*path, name)):
        return text[: member.start] + new + text[member.end :]
    owner = members.get(path)
    if owner is None or text[owner.start] != "{":
        return text
    comma = ", " if text[owner.start + 1 : owner.end - 1].strip() else ""
    return f"{text[: owner.end - 1]}{comma}{json.dumps(name)}: {new}{text[owner.end - 1 :]}"
