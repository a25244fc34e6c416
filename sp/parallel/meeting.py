"""Meeting: what the threads of one run know of each other, and who of them is late."""

from __future__ import annotations

import threading
import time
from typing import Any, NamedTuple

from sp.errors import DeviceError


class StoppedError(Exception):
    """Ends the work of a card because another one has failed, which is what is told."""


class Step(NamedTuple):
    """Something that all cards come to: which one of a run, counted from 1, and whether all-gather or all-reduce."""

    number: int
    kind: str


class Shown(NamedTuple):
    """What a card lets others fetch: the event after which it is made, and where each array of it begins."""

    ready: Any
    places: tuple[int, ...]


class Meeting:
    """What the threads of one `Group.run` know of each other.

    Attributes
    ----------
    came : list of int
        All-gathers and all-reduces that each card has come to.
    causes : list of (int, BaseException)
        Cards that failed and why, the first one first.
    votes : dict of int to list of bool
        What cards said at a step at which they agree.
    parts : dict of int to dict of int to Shown
        What cards let the others fetch at a step, by rank, until all have queued that.
    stopped : bool
        Whether the work is given up.
    """

    def __init__(self, size: int) -> None:
        self.came = [0] * size
        self.causes: list[tuple[int, BaseException]] = []
        self.votes: dict[int, list[bool]] = {}
        self.parts: dict[int, dict[int, Shown]] = {}
        self._fetched: dict[int, int] = {}
        self._last: list[tuple[Step, float] | None] = [None] * size
        self._waiting: list[tuple[Step, float] | None] = [None] * size
        self.stopped = False
        self._changed = threading.Condition()

    def stop(self) -> None:
        """Give the work up."""
        with self._changed:
            self.stopped = True
            self._changed.notify_all()

    def fail(self, rank: int, cause: BaseException) -> None:
        """Give the work up because of a card; the same cause counts once."""
        if all(cause is not known for _, known in self.causes):
            self.causes.append((rank, cause))
        self.stop()

    def come(self, rank: int, kind: str) -> Step:
        """Note that a card has come to its next step."""
        step = Step(self.came[rank] + 1, kind)
        self._last[rank] = step, time.monotonic()
        with self._changed:
            self.came[rank] = step.number
            if min(self.came) == step.number:
                self._changed.notify_all()
        return step

    def have_come(self, step: Step) -> bool:
        """Whether all cards have come to a step."""
        return min(self.came) >= step.number

    def all_came(self, step: Step, seconds: float) -> bool:
        """Wait until all cards have come to a step, or the work is given up; whether that was in time.

        >>> meeting = Meeting(2)
        >>> first = meeting.come(0, "all-gather")
        >>> meeting.all_came(first, 0.0), meeting.come(1, "all-gather") == first, meeting.all_came(first, 0.0)
        (False, True, True)
        """
        with self._changed:
            return self._changed.wait_for(lambda: self.stopped or self.have_come(step), seconds)

    def show(self, rank: int, shown: Shown) -> None:
        """Let the others fetch something at the step that a card comes to next."""
        self.parts.setdefault(self.came[rank] + 1, {})[rank] = shown

    def fetched(self, number: int) -> None:
        """Note that a card has queued all that was shown at a step, which nobody needs once all have."""
        with self._changed:
            self._fetched[number] = self._fetched.get(number, 0) + 1
            if self._fetched[number] == len(self.came):
                del self._fetched[number], self.parts[number]

    def wait(self, rank: int, step: Step | None) -> None:
        """Note that a card waits for a step to end, or with None that it no longer does."""
        self._waiting[rank] = None if step is None else (step, time.monotonic())

    def late(self, step: Step, seconds: float) -> DeviceError:
        """What a card says that has waited too long for a step."""
        missing = [str(other) for other, came in enumerate(self.came) if came < step.number]
        who = f"card {' and card '.join(missing)} did not come" if missing else "what was queued did not end"
        return DeviceError(f"{step.kind} {step.number}: {who} within {seconds:g} s; check nvidia-smi and run again")

    def overdue(self, seconds: float, grace: float) -> tuple[int, DeviceError] | None:
        """The card that should have said `late` after so many seconds, and has not for a further `grace`.

        It may itself be stuck in a call that does not return, while it looks whether a step has ended or before that,
        when it has come to a step that another has not come to.

        Examples
        --------
        >>> meeting = Meeting(2)
        >>> step = meeting.come(1, "all-gather")
        >>> meeting.overdue(60.0, 0.0)
        >>> meeting.overdue(0.0, 0.0)[0]
        1
        """
        now, first = time.monotonic(), min(self.came)
        held = [*enumerate(self._waiting)]
        held += [(rank, last) for rank, last in enumerate(self._last) if self.came[rank] > first]
        for rank, since in held:
            if since is not None and now - since[1] >= seconds + grace:
                return rank, self.late(since[0], seconds)
        return None
