"""Memory of a device: sizes as people write them, the pool under a budget, and who came and went."""

from __future__ import annotations

import time
from collections import deque
from contextlib import suppress
from dataclasses import asdict, dataclass
from typing import Any, Literal, Protocol

from sp.errors import ConfigError, DeviceError
from sp.kernels import import_cupy

Where = Literal["auto", "cpu", "cuda"]  # where models run, as it is asked for: auto is the GPU where there is one


class Pool:
    """The default pool of the device, which takes at most `budget` bytes from the driver; None for the whole GPU."""

    def __init__(self, budget: int | None) -> None:
        self.budget = budget
        self._tidied = False

    @property
    def source(self) -> Any:
        """CuPy's pool."""
        return import_cupy().get_default_memory_pool()

    @property
    def obeys(self) -> bool:
        """Whether the pool's limit is this budget."""
        return bool(self.source.get_limit() == (self.budget or 0))

    @property
    def over(self) -> int:
        """Bytes taken beyond the budget."""
        return max(0, self.source.total_bytes() - self.budget) if self.budget else 0

    def limit(self) -> None:
        """Give back what nothing uses, and take no more than the budget from now on."""
        self.release()
        self.source.set_limit(self.budget or 0)

    def release(self) -> None:
        """Give pieces that nothing uses back to the driver."""
        self.source.free_all_blocks()
        self._tidied = False

    def tidy(self) -> None:
        """With a budget, make the memory that is free one piece, from which all work is cut and into which it merges.
        It stays so until the driver is asked again, which then happens no more.
        """
        if self.budget is None or self._tidied:
            return
        self.release()
        self.take_free()
        self._tidied = True

    def take_free(self) -> None:
        """Ask the driver for all that the budget has left, as one free piece of the pool."""
        if self.budget is not None and (rest := self.budget - self.source.total_bytes()) > 0:
            with suppress(import_cupy().cuda.memory.OutOfMemoryError):
                self.source.malloc(rest)

    def refusal(self, size: int) -> DeviceError:
        """The error of a request that does not fit."""
        limit = f"the budget of {self.budget / 2**30:.2f} GiB" if self.budget else "the device"
        return DeviceError(
            f"the GPU's memory is full: {size / 2**20:.0f} MiB more do not fit {limit}, of which "
            f"{self.source.used_bytes() / 2**30:.2f} GiB are in use, and nothing is left that could leave it; "
            "use a shorter prompt, a lower --keep-ratio, --kv q4_0 or a larger --vram"
        )


STEP = 32 << 20  # bytes of change that make a new point of the timeline
MOST_POINTS = 4096
MOST_NOTES = 1024
Kind = Literal["load", "offload", "onload"]


@dataclass
class Transition:
    """A model, or a part of it, on its way."""

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
    """Counts bytes in use in CuPy's pools while `hook` is entered; what other threads do meanwhile is not seen. `used`,
    `peak`: bytes of arrays now, and at most; `requests`: how often memory was asked of the driver, for want of a free
    piece in the pool; `points` deque of (seconds, bytes): the latest; the clock is `time.perf_counter`.
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


UNITS = {"k": 1 << 10, "m": 1 << 20, "g": 1 << 30}


def parse_bytes(text: str | int, option: str = "--vram") -> int:
    """Bytes of a size such as ``24g`` (GiB), ``900m`` or ``17.5g``; ConfigError names the `option` it is for.

    A whole number is bytes already; a text of digits alone is refused, for it may have meant GiB.

    >>> parse_bytes("1.5g") // (1 << 20)
    1536
    """
    written = text if isinstance(text, str) else f"{text!r}b"
    sized = written.strip().lower().removesuffix("ib").removesuffix("b")
    number, factor = (sized[:-1], UNITS[sized[-1]]) if sized[-1:] in UNITS else (sized, 1)
    try:
        size = float(number) * factor if written.strip()[-1:].isalpha() else 0.0
    except ValueError:
        size = 0.0
    if not 0 < size < 1 << 50:
        raise ConfigError(f"{option} takes a size with its unit, such as 24g or 900m, not {text!r}")
    return int(size)


class Size(int):
    """Bytes, which options have as a text such as ``24g``."""

    @classmethod
    def parse(cls, text: str, option: str) -> Size:
        """Read them; see `parse_bytes`."""
        return cls(parse_bytes(text, option))

    def __str__(self) -> str:
        return str(format_bytes(int(self)))


def format_bytes(budget: int | None) -> str | None:
    """A budget as `parse_bytes` takes it, for records; None for none.

    >>> format_bytes(parse_bytes("23g")), format_bytes(None)
    ('23g', None)
    """
    return None if budget is None else f"{budget / UNITS['g']:g}g"


class Guest(Protocol):
    """Who holds memory of the device from one run to the next, and can do without it meanwhile."""

    used: float  # when it was at work last; the clock is `time.perf_counter`

    def leave_for(self, name: str | None) -> bool:
        """Move what it holds to host memory, but nothing that the model `name` is at work on; whether there was any."""
        ...
