"""Plan: which slots the target's cache is to hold when it answers, and where what is recalled stands among them."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from itertools import zip_longest

import numpy as np

from sp.arrays import Ints
from sp.conversation.choose import Run, tokens_of
from sp.conversation.shown import Shown
from sp.conversation.slots import Slots
from sp.conversation.turn import Way
from sp.pipeline.options import Positions


@dataclass(frozen=True)
class Plan:
    """The slots of a turn.

    Attributes
    ----------
    slots : Slots
    common : int
        So many of the first were planned for the turn before, too.
    decided : int
        So many tokens of the transcript those decide.
    way : {"append", "rewind"} or None
        How something was recalled.
    """

    slots: Slots
    common: int
    decided: int
    way: Way | None = None


@dataclass(frozen=True)
class Planner:
    """What a plan is made from.

    Attributes
    ----------
    old : Slots
        Of the turn before.
    transcript : int64 (n,)
    decided : int
        So many first tokens of it are those of the turn before.
    shown : Shown
        What is to stand in the transcript's place.
    positions : {"original", "contiguous"}
    """

    old: Slots
    transcript: Ints
    decided: int
    shown: Shown
    positions: Positions

    def appended(
        self, runs: Sequence[Run] = (), place: int = 0, gap: Ints | None = None, end: Ints | None = None
    ) -> Plan:
        """New tokens behind old slots, and an excerpt of `runs` before the token at `place`.

        `gap` stands between runs that are not joined and `end` behind the last.
        """
        common = self.old.before(self.decided)
        head, cut = self.old.first(common), max(place, self.decided) if runs else self.decided
        before = self._rest(self.decided, cut, head.offset)
        if not runs:
            return self._plan(head + self._rest(cut, len(self.transcript), head.offset), common, self.decided, None)
        assert gap is not None
        assert end is not None
        pieces: list[Ints] = []
        sources: list[Ints] = []
        for run, following in zip_longest(runs, runs[1:]):
            glue = end if following is None else gap[:0] if following.joined else gap
            pieces += [self.transcript[run.start : run.end], glue]
            sources += [np.arange(run.start, run.end), np.full(len(glue), -1)]
        ids, source = np.concatenate(pieces), np.concatenate(sources)
        positions = cut + head.offset + np.arange(len(ids))
        excerpt = Slots(ids, positions, np.full(len(ids), cut), source)
        after = self._rest(cut, len(self.transcript), head.offset + len(ids))
        return self._plan(head + before + excerpt + after, common, self.decided, "append")

    def rewound(self, runs: Sequence[Run] = ()) -> Plan:
        """Old slots before the first of the runs; from there on all that is kept and recalled where it stood.

        Without runs what excerpts hold comes back so. Old tokens of which a part was read are read whole then: what was
        left out of them may be beside what comes back.
        """
        wanted = self.shown.kept.copy()
        wanted[: self.decided] = self.old.in_place(self.decided)
        wanted[tokens_of(runs)] = True
        excerpts = self.old.excerpts
        start = min([*(run.start for run in runs), *([] if runs else self.old.place[excerpts].tolist()), self.decided])
        while True:  # excerpts behind the start go; what they hold comes back where it stood
            back = self.old.source[excerpts & (self.old.place >= start) & (self.old.source >= 0)]
            wanted[back] = True
            first = min([start, *back.tolist()])
            if first == start:
                break
            start = first
        common = self.old.before(start)
        head = self.old.first(common)
        index = np.flatnonzero(wanted[start:]) + start
        return self._plan(head + self._of(index, head.offset), common, start, "rewind")

    def _rest(self, start: int, stop: int, offset: int) -> Slots:
        return self._of(np.flatnonzero(self.shown.kept[start:stop]) + start, offset)

    def _of(self, index: Ints, offset: int) -> Slots:
        return Slots.of(self.shown.ids, index, offset, self.shown.source)

    def _plan(self, slots: Slots, common: int, decided: int, way: Way | None) -> Plan:
        if self.positions == "contiguous":
            slots = Slots(slots.ids, np.arange(len(slots)), slots.place, slots.source)
        return Plan(slots, common, decided, way)
