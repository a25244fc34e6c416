"""Members of JSON values as pieces that can be left out, so that what is kept parses.

A member needs the brackets and keys round it. Commas are the difficulty: of the members that are kept, the last has
none behind it. So one member of a value, the *pivot*, is kept with any other: members before it have the comma behind
them, members after it the one before them, and whichever are left out, what is left is well formed. The pivot is where
fewest tokens would have to be parted for that.
"""

from __future__ import annotations

from dataclasses import dataclass
from itertools import pairwise

from sp.selection.structured.outline import Outline
from sp.selection.structured.view import View
from sp.structure import JsonValue


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
    """Put the pieces of a value from its bracket to its last one; the brackets belong to `node`.

    Values inside of it of more than `longest` tokens are taken apart likewise; others are nodes as they are.
    """
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
