"""Pieces of structured text that may be left out: lines, blocks, paragraphs, and members of JSON values.

A member needs the brackets and keys round it. Commas are the difficulty: of the members that are kept, the last has
none behind it. So one member of a value, the *pivot*, is kept with any other: members before it have the comma behind
them, members after it the one before them, and whichever are left out, what is left is well formed. The pivot is where
fewest tokens would have to be parted for that.
"""

from __future__ import annotations

from bisect import bisect_left, bisect_right
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from itertools import pairwise

import numpy as np

from sp.arrays import Ints
from sp.chat import Segment
from sp.prompt.spans import SENTENCE_END
from sp.selection.base import SelectionRequest
from sp.structure import JsonValue, is_prose, json_values, line_starts, nested_blocks, unquote

MARKUP = 0  # the node of all text that is kept or left out by other rules than these
TOP = -1


class Outline:
    """Nodes, and the pieces of a text that belong to them.

    `parents`: parent of each node, a node before it; `TOP` for none; `shells`: whether a node only holds others
    together (brackets, fences, tags) and is no choice by itself; `starts`, `nodes`: byte at which each piece begins,
    ascending, and its node. A piece ends where the next begins.

    >>> outline = Outline()
    >>> bracket = outline.node(TOP, shell=True)
    >>> for at, node in ((0, bracket), (1, outline.node(bracket)), (4, bracket)):
    ...     outline.put(at, node)
    >>> outline.starts, outline.nodes, outline.parents
    ([0, 1, 4], [1, 2, 1], [-1, -1, 1])
    """

    def __init__(self) -> None:
        self.parents = [TOP]
        self.shells = [True]
        self.starts = [0]
        self.nodes = [MARKUP]

    def node(self, parent: int, *, shell: bool = False) -> int:
        """A new node."""
        self.parents.append(parent)
        self.shells.append(shell)
        return len(self.parents) - 1

    def put(self, at: int, node: int) -> None:
        """Begin a piece; one that would be empty is forgotten."""
        if at <= self.starts[-1]:
            self.nodes[-1] = node
        elif node != self.nodes[-1]:
            self.starts.append(at)
            self.nodes.append(node)


@dataclass(frozen=True)
class View:
    """A part of the prompt, in bytes of its own."""

    text: bytes  # as it was said: the quotation is undone where the template quotes
    places: Ints  # byte of the prompt at which each byte stands, and the end
    grid: list[int]  # bytes of `text` at which a token begins, ascending

    @classmethod
    def of(cls, request: SelectionRequest, segment: Segment) -> View:
        """A segment, or a part of one, of a prompt."""
        assert request.spans is not None
        starts = request.spans[:, 0]
        raw = request.text[segment.start : segment.end]
        said = unquote(raw) if segment.quoted else None
        text = raw if said is None else said.text
        places = segment.start + (np.arange(len(raw) + 1) if said is None else said.places)
        low, high = np.searchsorted(starts, [segment.start, segment.end])
        first = starts[low:high]  # ascending; tokens of no byte share theirs
        first = first[np.diff(first, prepend=-1) > 0]
        grid = np.searchsorted(places, first)
        grid = grid[places[grid] == first]
        return cls(text, places, grid.tolist())

    def tokens(self, start: int, end: int) -> int:
        """Tokens that begin in `[start, end)`."""
        return bisect_left(self.grid, end) - bisect_left(self.grid, start)

    def cut(self, low: int, high: int) -> int | None:
        """The first place of `[low, high]` at which a token begins; None if there is none."""
        at = bisect_left(self.grid, low)
        if at < len(self.grid) and self.grid[at] <= high:
            return self.grid[at]
        return None


def views(request: SelectionRequest) -> Iterator[tuple[Segment, View]]:
    """What may be left out of a prompt, part by part; all of it where the request knows of no segments."""
    for segment in request.segments or (Segment("user", 0, len(request.text)),):
        if segment.start < segment.end:
            yield segment, View.of(request, segment)


@dataclass
class _Frame:
    """A value whose members are being put: their cuts and nodes, where it is closed, and the next member."""

    value: JsonValue
    node: int
    cuts: list[int]
    nodes: list[int]
    number: int = 0


def parted(view: View, value: JsonValue, longest: int) -> bool:
    """Whether a value is taken member by member."""
    return bool(value.members) and view.tokens(value.start, value.end) > longest


def put_members(view: View, outline: Outline, value: JsonValue, node: int, longest: int) -> None:
    """Put the pieces of a value from its bracket to its last one; the brackets belong to `node`. Values inside of it of
    more than `longest` tokens are taken apart likewise; others are nodes as they are."""
    frames = [_frame(view, outline, value, node, longest)]
    while frames:
        frame = frames[-1]
        if frame.number == len(frame.nodes):
            outline.put(int(view.places[frame.cuts[-1]]), frame.node)
            frames.pop()
            continue
        member, inner = frame.value.members[frame.number], frame.nodes[frame.number]
        outline.put(int(view.places[frame.cuts[frame.number]]), inner)
        frame.number += 1
        if outline.shells[inner]:
            frames.append(_frame(view, outline, member, inner, longest))


def _frame(view: View, outline: Outline, value: JsonValue, node: int, longest: int) -> _Frame:
    """Cuts before each member and before the closing bracket, and the nodes of the members."""
    members = value.members
    gaps = list(pairwise(members))
    behind = [view.cut(one.comma + 1, other.start) for one, other in gaps]
    before = [view.cut(one.end, one.comma) for one, _ in gaps]
    apart = [parted(view, member, longest) for member in members]
    sizes = [
        view.tokens(member.start, member.at) + 2 if part else view.tokens(member.start, member.end)
        for member, part in zip(members, apart, strict=True)
    ]
    pivot = _pivot(behind, before, sizes)
    first, last = view.cut(value.at + 1, members[0].start), view.cut(members[-1].end, value.end - 1)
    cuts = [value.at + 1 if first is None else first]
    for number, (one, _) in enumerate(gaps):
        found, otherwise = (behind[number], one.comma + 1) if number < pivot else (before[number], one.end)
        cuts.append(otherwise if found is None else found)
    cuts.append(value.end - 1 if last is None else last)
    holder = outline.node(node, shell=apart[pivot])
    nodes = [holder if at == pivot else outline.node(holder, shell=part) for at, part in enumerate(apart)]
    return _Frame(value, node, cuts, nodes)


def _pivot(behind: list[int | None], before: list[int | None], sizes: list[int]) -> int:
    """The member that is kept with any other: that for which fewest tokens are in the way, then the smallest.

    >>> _pivot([3, None], [2, 6], [9, 8, 1]), _pivot([3, 7], [2, 6], [9, 8, 1])
    (1, 2)
    """
    wrong = sum(cut is None for cut in before)
    best, least = 0, (wrong, sizes[0])
    for number in range(1, len(sizes)):
        wrong += (behind[number - 1] is None) - (before[number - 1] is None)
        if (wrong, sizes[number]) < least:
            best, least = number, (wrong, sizes[number])
    return best


@dataclass(frozen=True)
class Parsing:
    """How a text is read.

    Parameters
    ----------
    longest : int
        Values and paragraphs of more tokens are taken apart.
    json : bool
        JSON values are units, or else only lines.
    prose : bool
        Paragraphs of prose are units, or their sentences, or else only lines.
    """

    longest: int
    json: bool = False
    prose: bool = False


def put_lines(view: View, outline: Outline, reading: Parsing) -> None:
    """Put the pieces of a part of a prompt."""
    starts = line_starts(view.text)
    edges = [*starts.tolist(), len(view.text)]
    blocks = nested_blocks(view.text, starts)
    closed_at = dict(blocks)
    marks = set(closed_at) | set(closed_at.values())
    values = _values(view.text, edges, marks) if reading.json or reading.prose else []
    groups = {
        first: (last, inside)
        for first, last, inside in _groups(values, edges)
        if reading.json and (first < last or any(parted(view, value, reading.longest) for value in inside))
    }
    around: list[tuple[int, int]] = []  # nodes of open blocks, and their last lines
    line = 0
    while line < len(edges) - 1:
        parent, closes = around[-1] if around else (TOP, -1)
        at = int(view.places[edges[line]])
        if line in closed_at:
            around.append((outline.node(parent, shell=True), closed_at[line]))
            outline.put(at, around[-1][0])
            line += 1
        elif line == closes:
            outline.put(at, parent)
            around.pop()
            line += 1
        elif line in groups:
            last, inside = groups[line]
            _put_group(view, outline, (edges[line], edges[last + 1]), inside, parent, reading.longest)
            line = last + 1
        else:
            end = line + 1
            if reading.prose:
                while end < len(edges) - 1 and not (end in marks or end in groups or _parts(view.text, edges, end)):
                    end += 1
            if reading.prose and is_prose(view.text[edges[line] : edges[end]]):
                _put_prose(view, outline, (edges[line], edges[end]), values, parent, reading.longest)
            else:
                for start in edges[line:end]:
                    outline.put(int(view.places[start]), outline.node(parent))
            line = end


def _parts(text: bytes, edges: Sequence[int], line: int) -> bool:
    """Whether a blank line stands before a line."""
    before = text[edges[line - 1] : edges[line]]
    return before.count(b"\n", len(before.rstrip())) > 1


def _values(text: bytes, edges: Sequence[int], marks: set[int]) -> list[JsonValue]:
    """JSON values of a text, without those that share a line with what opens or closes a block."""
    return [
        value
        for value in json_values(text)
        if not marks & {bisect_right(edges, value.start) - 1, bisect_right(edges, value.end - 1) - 1}
    ]


def _groups(values: Sequence[JsonValue], edges: Sequence[int]) -> list[tuple[int, int, list[JsonValue]]]:
    """Lines from a first to a last that values hold together, and those values."""
    groups: list[tuple[int, int, list[JsonValue]]] = []
    for value in values:
        first, last = bisect_right(edges, value.start) - 1, bisect_right(edges, value.end - 1) - 1
        if groups and first <= groups[-1][1]:
            groups[-1][2].append(value)
            groups[-1] = groups[-1][0], last, groups[-1][2]
        else:
            groups.append((first, last, [value]))
    return groups


def _put_group(
    view: View, outline: Outline, extent: tuple[int, int], values: Sequence[JsonValue], parent: int, longest: int
) -> None:
    """Lines with JSON values: as one piece, or what is round the long values, and their members."""
    long = [value for value in values if parted(view, value, longest)]
    node = outline.node(parent, shell=bool(long))
    outline.put(int(view.places[extent[0]]), node)
    for value in long:
        put_members(view, outline, value, node, longest)


def _put_prose(
    view: View, outline: Outline, extent: tuple[int, int], values: Sequence[JsonValue], parent: int, longest: int
) -> None:
    """A paragraph as one piece; of a long one its sentences, and equal parts of those that are longer still. What
    breaks the line behind it is kept with any of its sentences, so that they run into nothing else."""
    start, end = extent
    if view.tokens(start, end) <= longest:
        outline.put(int(view.places[start]), outline.node(parent))
        return
    ink = start + len(view.text[start:end].rstrip())
    whole = outline.node(parent, shell=True) if ink < end else parent
    stops = np.array([match.end() for match in SENTENCE_END.finditer(view.text, start, ink)], np.int64)
    covers = np.array([(value.start, value.end) for value in values], np.int64).reshape(-1, 2)
    inside = np.searchsorted(covers[:, 0], stops, side="left") - 1
    free = (inside < 0) | (stops >= np.append(covers[:, 1], 0)[inside])
    cuts = sorted({start, ink, *stops[free].tolist()})
    for low, high in pairwise(cuts):
        first, count = bisect_left(view.grid, low), view.tokens(low, high)
        outline.put(int(view.places[low]), outline.node(whole))
        for part in range(1, -(-count // longest)):
            token = first + count * part // -(-count // longest)
            while token < first + count and view.text[view.grid[token]] & 0xC0 == 0x80:
                token += 1  # never inside a character
            if token < first + count:
                outline.put(int(view.places[view.grid[token]]), outline.node(whole))
    if ink < end:
        outline.put(int(view.places[ink]), whole)
