"""A part of a prompt as selectors look at it: its text, and where tokens begin in it."""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Iterator
from dataclasses import dataclass

import numpy as np

from sp.arrays import Ints
from sp.chat import Segment
from sp.selection.base import SelectionRequest
from sp.structure import unquote


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
        first = np.unique(starts[low:high])
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
