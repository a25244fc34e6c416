"""Pieces of structured text that may be left out: lines, blocks, paragraphs, and members of JSON values.

A member needs the brackets and keys around it. Commas are the difficulty: the last selected member must not be followed
by one. So one member of a value, the *pivot*, is selected together with any other: members before it take the comma
behind them along, members after it the comma before them, and whichever are left out, the rest is well formed. The
pivot is the member for which the fewest tokens have to be split.
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
from sp.structure import (
    JsonValue,
    after_blank_line,
    is_prose,
    json_values,
    line_starts,
    nested_blocks,
    unquote,
)

MARKUP = 0  # the node of all text that other rules keep or leave out
TOP = -1  # the parent of a node that needs no other
LONG_LINE = 1024
"""A line of more tokens, such as a minified script, is split like prose: as a whole it would hardly ever fit."""


class Outline:
    """Nodes, and the pieces of a text that belong to them.

    `parents`: parent of each node, a node before it; `TOP` for none; `wrappers`: True for nodes that only hold others
    together (brackets, fences, tags) and are no choice by themselves; `starts`, `nodes`: byte at which each piece
    begins, ascending, and its node. A piece ends where the next begins.

    >>> outline = Outline()
    >>> bracket = outline.node(TOP, wrapper=True)
    >>> for offset, node in ((0, bracket), (1, outline.node(bracket)), (4, bracket)):
    ...     outline.put(offset, node)
    >>> outline.starts, outline.nodes, outline.parents
    ([0, 1, 4], [1, 2, 1], [-1, -1, 1])
    """

    def __init__(self) -> None:
        self.parents = [TOP]
        self.wrappers = [True]
        self.starts = [0]
        self.nodes = [MARKUP]

    def node(self, parent: int, *, wrapper: bool = False) -> int:
        """Add a node and return its index."""
        self.parents.append(parent)
        self.wrappers.append(wrapper)
        return len(self.parents) - 1

    def put(self, offset: int, node: int) -> None:
        """Begin a piece at byte `offset`; an empty piece is dropped."""
        if offset <= self.starts[-1]:
            self.nodes[-1] = node
        elif node != self.nodes[-1]:
            self.starts.append(offset)
            self.nodes.append(node)


@dataclass(frozen=True)
class SegmentView:
    """A part of the prompt, in byte offsets of its own."""

    text: bytes  # the unquoted content, where the template quotes it
    places: Ints  # prompt byte of each byte of `text`, and of its end
    grid: list[int]  # bytes of `text` at which a token begins, ascending

    @classmethod
    def of(cls, request: SelectionRequest, segment: Segment) -> SegmentView:
        """Return the view of a segment of a prompt, or of a part of one."""
        assert request.spans is not None
        starts = request.spans[:, 0]
        raw = request.text[segment.start : segment.end]
        unquoted = unquote(raw) if segment.quoted else None
        text = raw if unquoted is None else unquoted.text
        places = segment.start + (np.arange(len(raw) + 1) if unquoted is None else unquoted.places)
        low, high = np.searchsorted(starts, [segment.start, segment.end])
        first = starts[low:high]  # ascending; tokens of no byte share theirs
        first = first[np.diff(first, prepend=-1) > 0]
        grid = np.searchsorted(places, first)
        grid = grid[places[grid] == first]
        return cls(text, places, grid.tolist())

    def tokens(self, start: int, end: int) -> int:
        """Count the tokens that begin in `[start, end)`."""
        return bisect_left(self.grid, end) - bisect_left(self.grid, start)

    def first_cut(self, low: int, high: int) -> int | None:
        """Return the first byte in `[low, high]` at which a token begins, or None."""
        index = bisect_left(self.grid, low)
        if index < len(self.grid) and self.grid[index] <= high:
            return self.grid[index]
        return None


def views(request: SelectionRequest) -> Iterator[tuple[Segment, SegmentView]]:
    """Yield the parts of a prompt that may be left out, with their views; without segments the whole prompt."""
    for segment in request.segments or (Segment("user", 0, len(request.text)),):
        if segment.start < segment.end:
            yield segment, SegmentView.of(request, segment)


@dataclass
class _Frame:
    """A value whose members are being put: their cuts, their nodes, and the index of the next member."""

    value: JsonValue
    node: int
    cuts: list[int]
    nodes: list[int]
    number: int = 0


def is_split(view: SegmentView, value: JsonValue, longest: int) -> bool:
    """Return True if a value is split into its members."""
    return bool(value.members) and view.tokens(value.start, value.end) > longest


def put_members(view: SegmentView, outline: Outline, value: JsonValue, node: int, longest: int) -> None:
    """Put the pieces of a value from its opening bracket to its closing one.

    The brackets belong to `node`. Inner values of more than `longest` tokens are split too; others are single nodes.
    """
    # An explicit stack, so that the nesting of a prompt is not limited by recursion.
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
        if outline.wrappers[inner]:
            frames.append(_frame(view, outline, member, inner, longest))


def _frame(view: SegmentView, outline: Outline, value: JsonValue, node: int, longest: int) -> _Frame:
    """Return cuts before each member and before the closing bracket, and the nodes of the members."""
    members = value.members
    gaps = list(pairwise(members))
    # A cut behind the comma leaves it with the member before; a cut before the comma leaves it with the member after.
    behind = [view.first_cut(member.comma + 1, following.start) for member, following in gaps]
    before = [view.first_cut(member.end, member.comma) for member, _ in gaps]
    splits = [is_split(view, member, longest) for member in members]
    sizes = [
        view.tokens(member.start, member.value_start) + 2 if split else view.tokens(member.start, member.end)
        for member, split in zip(members, splits, strict=True)
    ]
    pivot = _pivot(behind, before, sizes)
    first, last = (
        view.first_cut(value.value_start + 1, members[0].start),
        view.first_cut(members[-1].end, value.end - 1),
    )
    cuts = [value.value_start + 1 if first is None else first]
    for number, (member, _) in enumerate(gaps):
        token_start, otherwise = (behind[number], member.comma + 1) if number < pivot else (before[number], member.end)
        cuts.append(otherwise if token_start is None else token_start)  # `otherwise` splits a token
    cuts.append(value.end - 1 if last is None else last)
    # The other members are children of the pivot, so that none is selected without it.
    holder = outline.node(node, wrapper=splits[pivot])
    nodes = [holder if number == pivot else outline.node(holder, wrapper=split) for number, split in enumerate(splits)]
    return _Frame(value, node, cuts, nodes)


def _pivot(behind: list[int | None], before: list[int | None], sizes: list[int]) -> int:
    """Return the member that is kept with any other: the one that splits the fewest tokens, then the smallest.

    >>> _pivot([3, None], [2, 6], [9, 8, 1]), _pivot([3, 7], [2, 6], [9, 8, 1])
    (1, 2)
    """
    # Tokens split if the first member is the pivot; moving it by one changes the side of a single comma.
    wrong = sum(place is None for place in before)
    best, least = 0, (wrong, sizes[0])  # ties go to the smaller member
    for number in range(1, len(sizes)):
        wrong += (behind[number - 1] is None) - (before[number - 1] is None)
        if (wrong, sizes[number]) < least:
            best, least = number, (wrong, sizes[number])
    return best


@dataclass(frozen=True)
class Parsing:
    """The structure a text is split by.

    Parameters
    ----------
    longest : int
        Values and paragraphs of more tokens are split.
    json : bool
        JSON values are units; otherwise only lines are.
    prose : bool
        Paragraphs of prose are units, or their sentences; otherwise only lines are.
    """

    longest: int
    json: bool = False
    prose: bool = False


def put_lines(view: SegmentView, outline: Outline, parsing: Parsing) -> None:
    """Put the pieces of a part of a prompt."""
    starts = line_starts(view.text)
    edges = [*starts.tolist(), len(view.text)]  # line i is the bytes [edges[i], edges[i + 1])
    blocks = nested_blocks(view.text, starts)
    closed_at = dict(blocks)  # last line by first line
    marks = set(closed_at) | set(closed_at.values())
    values = _values(view.text, edges, marks) if parsing.json or parsing.prose else []
    covers = np.array([(value.start, value.end) for value in values], np.int64).reshape(-1, 2)
    groups = {
        first: (last, inside)
        for first, last, inside in _groups(values, edges)
        if parsing.json and (first < last or any(is_split(view, value, parsing.longest) for value in inside))
    }
    around: list[tuple[int, int]] = []  # nodes of open blocks, and their last lines
    offsets = view.places[starts].tolist()
    before = np.searchsorted(view.grid, edges).tolist()  # tokens before each line
    breaks = sorted({*marks, *groups, *np.flatnonzero(after_blank_line(view.text, starts)).tolist(), len(starts)})
    line = 0
    while line < len(edges) - 1:
        parent, closes = around[-1] if around else (TOP, -1)
        offset = offsets[line]
        if line in closed_at:
            around.append((outline.node(parent, wrapper=True), closed_at[line]))
            outline.put(offset, around[-1][0])
            line += 1
        elif line == closes:
            outline.put(offset, parent)
            around.pop()
            line += 1
        elif line in groups:
            last, inside = groups[line]
            _put_group(view, outline, (edges[line], edges[last + 1]), inside, parent, parsing.longest)
            line = last + 1
        else:
            end = breaks[bisect_right(breaks, line)] if parsing.prose else line + 1
            if parsing.prose and is_prose(view.text[edges[line] : edges[end]]):
                _put_prose(view, outline, (edges[line], edges[end]), covers, parent, parsing.longest)
            else:
                for first in range(line, end):
                    if before[first + 1] - before[first] > max(LONG_LINE, parsing.longest):
                        extent = edges[first], edges[first + 1]
                        _put_prose(view, outline, extent, covers, parent, parsing.longest)
                    else:
                        outline.put(offsets[first], outline.node(parent))
            line = end


def _values(text: bytes, edges: Sequence[int], marks: set[int]) -> list[JsonValue]:
    """Return the JSON values of a text, except those that share a line with the start or end of a block."""
    return [
        value
        for value in json_values(text)
        if not marks & {bisect_right(edges, value.start) - 1, bisect_right(edges, value.end - 1) - 1}
    ]


def _groups(values: Sequence[JsonValue], edges: Sequence[int]) -> list[tuple[int, int, list[JsonValue]]]:
    """Return ranges of lines (first, last) that values hold together, and those values."""
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
    view: SegmentView, outline: Outline, extent: tuple[int, int], values: Sequence[JsonValue], parent: int, longest: int
) -> None:
    """Put lines with JSON values: as one piece, or as the text around the long values and their members."""
    long = [value for value in values if is_split(view, value, longest)]
    node = outline.node(parent, wrapper=bool(long))
    outline.put(int(view.places[extent[0]]), node)
    for value in long:
        put_members(view, outline, value, node, longest)


def _put_prose(
    view: SegmentView, outline: Outline, extent: tuple[int, int], covers: Ints, parent: int, longest: int
) -> None:
    """Put a paragraph as one piece; a long one as sentences, and sentences that are longer still as equal parts.

    The line break behind a long paragraph is kept with any of its sentences, so that they do not run into what follows.
    `covers`: bytes of the JSON values of the text, (values, 2); a stop inside of one ends no sentence.
    """
    start, end = extent
    if view.tokens(start, end) <= longest:
        outline.put(int(view.places[start]), outline.node(parent))
        return
    ink = start + len(view.text[start:end].rstrip())  # end of the visible text
    whole = outline.node(parent, wrapper=True) if ink < end else parent
    stops = [match.end() for match in SENTENCE_END.finditer(view.text, start, ink)]
    if len(covers):
        inside = np.searchsorted(covers[:, 0], stops, side="left") - 1
        free = (inside < 0) | (np.array(stops, np.int64) >= np.append(covers[:, 1], 0)[inside])
        stops = np.array(stops, np.int64)[free].tolist()
    cuts = sorted({start, ink, *stops})
    for low, high in pairwise(cuts):
        # First token of the sentence, and their number.
        first, count = bisect_left(view.grid, low), view.tokens(low, high)
        outline.put(int(view.places[low]), outline.node(whole))
        for part in range(1, -(-count // longest)):
            token = first + count * part // -(-count // longest)
            while token < first + count and view.text[view.grid[token]] & 0xC0 == 0x80:
                token += 1  # skip UTF-8 continuation bytes
            if token < first + count:
                outline.put(int(view.places[view.grid[token]]), outline.node(whole))
    if ink < end:
        outline.put(int(view.places[ink]), whole)
