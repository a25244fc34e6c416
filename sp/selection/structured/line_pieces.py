"""Lines, blocks and sentences of a part of a prompt as pieces; JSON values inside of it go to `json_pieces`."""

from __future__ import annotations

from bisect import bisect_left, bisect_right
from collections.abc import Sequence
from dataclasses import dataclass
from itertools import pairwise

import numpy as np

from sp.prompt.sentences import SENTENCE_END
from sp.selection.structured.json_pieces import parted, put_members
from sp.selection.structured.outline import TOP, Outline
from sp.selection.structured.view import View
from sp.structure import JsonValue, is_prose, json_values, line_starts, nested_blocks


@dataclass(frozen=True)
class Reading:
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


def put_lines(view: View, outline: Outline, reading: Reading) -> None:
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
    """A paragraph as one piece; of a long one its sentences, and equal parts of those that are longer still.

    What breaks the line behind it is kept with any of its sentences, so that they run into nothing else.
    """
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
