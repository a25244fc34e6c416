"""What is told of device memory: a meter of every byte taken and given back, and who came and went."""

from __future__ import annotations

import time
from collections import deque
from dataclasses import asdict, dataclass
from typing import Any, Literal

from sp.kernels import import_cupy

STEP = 32 << 20
"""Bytes of change that make a new point of the timeline."""
MOST_POINTS = 4096
MOST_NOTES = 1024
Kind = Literal["load", "offload", "onload"]


@dataclass
class Transition:
    """A model, or a part of it, on its way.

    Attributes
    ----------
    kind : {"load", "offload", "onload"}
    name : str
        Of the model.
    parts, nbytes : int
    at : float
        Seconds, by `time.perf_counter`.
    seconds : float
        What it took; of an onload the copy itself, beside which the host goes on.
    """

    kind: Kind
    name: str
    parts: int
    nbytes: int
    at: float
    seconds: float = 0.0

    def as_dict(self, start: float = 0.0) -> dict[str, Any]:
        """For the trace; `at` counts from `start`."""
        return asdict(self) | {"at": self.at - start}


class Journal:
    """Who came and went, until it is told of."""

    def __init__(self) -> None:
        self._notes: deque[Transition] = deque(maxlen=MOST_NOTES)
        self._copies: list[tuple[Transition, Any, Any]] = []

    def note(self, kind: Kind, name: str, parts: int, nbytes: int, *times: float) -> Transition:
        """Write a transition down, with when it began and what it took if that is known; parks at once are one."""
        at, seconds = times or (time.perf_counter(), 0.0)
        last = self._notes[-1] if self._notes else None
        if (
            last
            and (last.kind, last.name) == (kind, name)
            and at - (last.at + last.seconds) < 0.005
            and kind == "offload"
        ):
            last.parts, last.nbytes, last.seconds = last.parts + parts, last.nbytes + nbytes, at + seconds - last.at
            return last
        self._notes.append(Transition(kind, name, parts, nbytes, at, seconds))
        return self._notes[-1]

    def copying(self, note: Transition, before: Any, after: Any) -> None:
        """A transition takes as long as the device does between two events."""
        self._copies.append((note, before, after))

    def take(self, start: float) -> list[dict[str, Any]]:
        """All that was noted, once the device has done its part; times count from `start`."""
        for note, before, after in self._copies:
            after.synchronize()
            note.seconds = import_cupy().cuda.get_elapsed_time(before, after) / 1e3
        found = [note.as_dict(start) for note in self._notes]
        self._copies.clear()
        self._notes.clear()
        return found


class Meter:
    """Counts bytes in use in CuPy's pools while `hook` is entered; what other threads do meanwhile is not seen.

    Attributes
    ----------
    used, peak : int
        Bytes of arrays now, and at most.
    requests : int
        How often memory was asked of the driver, for want of a free piece in the pool.
    points : deque of (seconds, bytes)
        The latest; the clock is `time.perf_counter`.
    """

    def __init__(self) -> None:
        self.used = self.peak = self.requests = 0
        self.points: deque[tuple[float, int]] = deque(maxlen=MOST_POINTS)
        self.hook = _hook(self)
        self.mark()

    def start(self, used: int) -> None:
        """Count on from `used` bytes."""
        self.used = used
        self.peak = max(self.peak, used)
        self.mark()

    def restart(self) -> None:
        """Begin a new timeline and a new peak."""
        self.points.clear()
        self.peak, self.requests = self.used, 0
        self.mark()

    def mark(self) -> None:
        """Add a point to the timeline."""
        self.points.append((time.perf_counter(), self.used))

    def changed(self, nbytes: int) -> None:
        """Bytes taken, or if negative given back."""
        self.used += nbytes
        if self.used > self.peak:
            self.peak = self.used
        if abs(self.used - self.points[-1][1]) >= STEP:
            self.mark()


def _hook(meter: Meter) -> Any:
    """CuPy's hook that tells a meter; a class made late, since its base is CuPy's."""

    class Hook(import_cupy().cuda.MemoryHook):  # type: ignore[misc]
        name = "sp-meter"

        def alloc_preprocess(self, **event: Any) -> None:
            self.asked = True

        def malloc_preprocess(self, **event: Any) -> None:
            self.asked = False  # a pool asked another pool

        def alloc_postprocess(self, **event: Any) -> None:
            meter.requests += self.asked

        def malloc_postprocess(self, **event: Any) -> None:
            if event["mem_ptr"]:
                meter.changed(event["mem_size"])

        def free_postprocess(self, **event: Any) -> None:
            meter.changed(-event["mem_size"])

    return Hook()
