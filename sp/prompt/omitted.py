"""Marks of what was left out of a prompt: `[... 212 lines ...]`, or characters where it was less than whole lines."""

from __future__ import annotations

from bisect import bisect_right
from functools import cached_property

from sp.prompt.prompt import Prompt
from sp.structure import json_values


class Omitted:
    """What to write in the gaps of a prompt.

    There is no mark inside a JSON value, which would not parse with it; one that is left out whole is told as its lines
    are. Nor is there one that is no shorter than what it stands for.
    """

    def __init__(self, prompt: Prompt) -> None:
        self.raw = prompt.text.encode()
        self.segments = prompt.free

    @cached_property
    def edges(self) -> set[int]:
        """Where what may be left out begins and ends."""
        return {edge for segment in self.segments for edge in (segment.start, segment.end)}

    @cached_property
    def values(self) -> list[tuple[int, int]]:
        """Where JSON values begin and end; of quoted text, where that does."""
        found = []
        for segment in self.segments:
            text = self.raw[segment.start : segment.end]
            if segment.quoted:
                found.append((segment.start - 1, segment.end + 1))
            else:
                found += [(segment.start + value.start, segment.start + value.end) for value in json_values(text)]
        return found

    def inside_json(self, place: int) -> bool:
        """Whether a place lies between two bytes of a value."""
        at = bisect_right(self.values, (place, 0)) - 1
        return at >= 0 and place < self.values[at][1]

    def mark(self, start: int, end: int) -> str:
        """The mark of bytes [start, end); empty for none."""
        if self.inside_json(start) or self.inside_json(end):
            return ""
        gap = self.raw[start:end]
        begins = start in self.edges or self.raw[start - 1 : start] in (b"", b"\n")
        ends = end in self.edges or gap[-1:] == b"\n" or self.raw[end : end + 1] in (b"", b"\n", b"\r")
        if begins and ends:
            count, unit = sum(bool(line.strip()) for line in gap.split(b"\n")), "line"
        else:
            count, unit = len(gap.decode(errors="replace").strip()), "character"
        lead = " " if not begins and gap[:1].isspace() else ""
        tail = gap[len(gap.rstrip()) :].count(b"\n")
        mark = f"{lead}[... {count:,} {unit}{'s' * (count != 1)} ...]" + "\n" * min(tail, 2)
        return mark if count and len(mark) < len(gap) else ""
