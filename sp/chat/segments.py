"""A rendered chat as segments: who says what, in bytes of its text. What lies between them is markup, and nobody's."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from typing import Literal, get_args

from sp.chat.located import Located
from sp.chat.turn import Turn

SegmentKind = Literal["system", "tools", "user", "assistant", "tool"]


@dataclass(frozen=True)
class Segment:
    """Bytes `[start, end)` of a prompt that one message says, or one part of it.

    `kind`, one of "system", "tools", "user", "assistant", "tool": `tools` are the schemas of tools; a role that is no
    kind counts as `system`, which is kept whole; `index`: the message; -1 for `tools`; `quoted`: the template wrote the
    message as the inside of a JSON string.
    """

    kind: SegmentKind
    start: int
    end: int
    index: int = -1
    quoted: bool = False


def segments_of(found: Located, turns: Sequence[Turn]) -> tuple[Segment, ...]:
    """What messages say of a rendered text, in its order; see `Located.regions` for where one ends.

    `turns`: the messages it was rendered from.

    Examples
    --------
    >>> from sp.chat.located import render_located
    >>> from sp.gguf.template import ChatTemplate
    >>> template = ChatTemplate("{% for m in messages %}<{{ m.role }}>{{ m.content }}\\n{% endfor %}")
    >>> turns = [Turn("user", "Où?"), Turn("tool", '{"a": 1}')]
    >>> for segment in segments_of(render_located(template, turns, {}), turns):
    ...     print(segment)
    Segment(kind='user', start=6, end=10, index=0, quoted=False)
    Segment(kind='tool', start=17, end=25, index=1, quoted=False)
    """
    quoted = {copy.index for copy in found.copies if copy.end - copy.start != copy.stop - copy.at}
    places: list[tuple[int, int, SegmentKind, int]] = [(start, end, "tools", -1) for start, end in found.tools]
    for index, start, end in found.regions(turns):
        role = turns[index].role
        kind: SegmentKind = role if role in get_args(SegmentKind) else "system"  # type: ignore[assignment]
        places.append((start, end, kind, index))
    segments, at, size = [], 0, 0
    for start, end, kind, index in sorted(places):
        first = size + len(found.text[at:start].encode())
        at, size = end, first + len(found.text[start:end].encode())
        if start < end:
            segments.append(Segment(kind, first, size, index, kind == "tool" and index in quoted))
    return tuple(segments)


def without(segments: Sequence[Segment], taken: Sequence[tuple[int, int]]) -> Iterator[Segment]:
    """The parts of segments that lie in none of the ranges `taken`; both in order, by bytes.

    Examples
    --------
    >>> [(part.start, part.end) for part in without([Segment("user", 2, 9), Segment("tool", 9, 12)], [(0, 3), (5, 9)])]
    [(3, 5), (9, 12)]
    """
    number = 0
    for segment in segments:
        at = segment.start
        while number < len(taken) and taken[number][0] < segment.end:
            start, end = taken[number]
            if at < start:
                yield replace(segment, start=at, end=start)
            at = max(at, end)
            if end > segment.end:
                break
            number += 1
        if at < segment.end:
            yield replace(segment, start=at)
