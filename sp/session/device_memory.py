"""Device memory: sizes as people write them, the pool under a budget, and a journal of transfers."""

from __future__ import annotations

import time
from collections import deque
from contextlib import suppress
from dataclasses import asdict, dataclass
from typing import Any, Literal, Protocol

from sp.errors import ConfigError, DeviceError
from sp.kernels import import_cupy

Where = Literal["auto", "cpu", "cuda"]  # where models run: auto is the GPU if there is one


class MemoryPool:
    """CuPy's default memory pool, limited to `budget` bytes from the driver; None for the whole device."""

    def __init__(self, budget: int | None) -> None:
        self.budget = budget
        self._tidied = False

    @property
    def source(self) -> Any:
        """CuPy's pool."""
        return import_cupy().get_default_memory_pool()

    @property
    def obeys(self) -> bool:
        """True if the limit of CuPy's pool is this budget."""
        return bool(self.source.get_limit() == (self.budget or 0))

    @property
    def over(self) -> int:
        """Number of bytes taken beyond the budget."""
        return max(0, self.source.total_bytes() - self.budget) if self.budget else 0

    def limit(self) -> None:
        """Release unused memory, and limit the pool to the budget from now on."""
        self.release()
        self.source.set_limit(self.budget or 0)

    def release(self) -> None:
        """Return unused blocks to the driver."""
        self.source.free_all_blocks()
        self._tidied = False

    def tidy(self) -> None:
        """With a budget, merge the free memory into one block that all work is split from and merges into again.

        This lasts until the driver is asked for more, which then does not happen any more.
        """
        # Without a budget the pool may grow, and fragments do no harm.
        if self.budget is None or self._tidied:
            return
        self.release()
        self.take_free()
        self._tidied = True

    def take_free(self) -> None:
        """Take all that the budget has left from the driver, as one free block of the pool."""
        if self.budget is not None and (rest := self.budget - self.source.total_bytes()) > 0:
            # Other processes may have taken what the budget allows.
            with suppress(import_cupy().cuda.memory.OutOfMemoryError):
                self.source.malloc(rest)

    def refusal(self, size: int) -> DeviceError:
        """Return the error for a request that does not fit."""
        limit = f"the budget of {self.budget / 2**30:.2f} GiB" if self.budget else "the device"
        return DeviceError(
            f"the GPU's memory is full: {size / 2**20:.0f} MiB more do not fit {limit}, of which "
            f"{self.source.used_bytes() / 2**30:.2f} GiB are in use, and nothing is left to offload; "
            "use a shorter prompt, a lower --keep-ratio, --kv q4_0 or a larger --vram"
        )


STEP = 32 << 20  # change in bytes that adds a point to the timeline
MOST_POINTS = 4096
MOST_NOTES = 1024
Kind = Literal["load", "offload", "onload"]


@dataclass
class Transition:
    """A transfer of a model, or of parts of it.

    `at`: its start by `time.perf_counter`, `seconds`: its duration.
    """

    kind: Kind
    name: str
    parts: int
    nbytes: int
    at: float
    seconds: float = 0.0

    def as_dict(self, start: float = 0.0) -> dict[str, Any]:
        """Return the fields for the trace, with `at` relative to `start`."""
        return asdict(self) | {"at": self.at - start}


class Journal:
    """Transfers since the last report."""

    def __init__(self) -> None:
        self._notes: deque[Transition] = deque(maxlen=MOST_NOTES)
        self._copies: list[tuple[Transition, Any, Any]] = []

    def note(self, kind: Kind, name: str, parts: int, nbytes: int, *times: float) -> Transition:
        """Record a transfer, with start and duration if known; offloads in direct succession are merged."""
        start, seconds = times or (time.perf_counter(), 0.0)
        last = self._notes[-1] if self._notes else None
        if (
            last
            and (last.kind, last.name) == (kind, name)
            and start - (last.at + last.seconds) < 0.005
            and kind == "offload"
        ):
            last.parts, last.nbytes, last.seconds = last.parts + parts, last.nbytes + nbytes, start + seconds - last.at
            return last
        self._notes.append(Transition(kind, name, parts, nbytes, start, seconds))
        return self._notes[-1]

    def copying(self, note: Transition, before: Any, after: Any) -> None:
        """Let a transfer last as long as the device needs between two events."""
        self._copies.append((note, before, after))  # timed later, so that the host does not wait here

    def take(self, start: float) -> list[dict[str, Any]]:
        """Return and clear the journal, once the device has done its part; times are relative to `start`."""
        for note, before, after in self._copies:
            after.synchronize()  # elapsed times are defined once both events have occurred
            note.seconds = import_cupy().cuda.get_elapsed_time(before, after) / 1e3
        transitions = [note.as_dict(start) for note in self._notes]
        self._copies.clear()
        self._notes.clear()
        return transitions


class Meter:
    """Counts the bytes in use in CuPy's pools while `hook` is entered; other threads are not counted.

    Attributes
    ----------
    used, peak : int
        Bytes of arrays now, and at most.
    requests : int
        Number of requests to the driver, for lack of a free block in the pool.
    points : deque of (seconds, bytes)
        The latest points of the timeline; the clock is `time.perf_counter`.
    """

    def __init__(self) -> None:
        self.used = self.peak = self.requests = 0
        self.points: deque[tuple[float, int]] = deque(maxlen=MOST_POINTS)
        self.hook = _hook(self)
        self.mark()

    def start(self, used: int) -> None:
        """Continue counting from `used` bytes."""
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
        """Count bytes taken, or if negative given back."""
        self.used += nbytes
        if self.used > self.peak:
            self.peak = self.used
        # Small changes are not recorded, so that the timeline of a long run stays short.
        if abs(self.used - self.points[-1][1]) >= STEP:
            self.mark()


def _hook(meter: Meter) -> Any:
    """Return CuPy's hook for a meter; its class is created here, because its base class needs CuPy."""

    class MeterHook(import_cupy().cuda.MemoryHook):  # type: ignore[misc]
        name = "sp-meter"

        def alloc_preprocess(self, **event: Any) -> None:
            self.asks_driver = True

        def malloc_preprocess(self, **event: Any) -> None:
            self.asks_driver = False  # served by the pool

        def alloc_postprocess(self, **event: Any) -> None:
            meter.requests += self.asks_driver

        def malloc_postprocess(self, **event: Any) -> None:
            if event["mem_ptr"]:
                meter.changed(event["mem_size"])

        def free_postprocess(self, **event: Any) -> None:
            meter.changed(-event["mem_size"])

    return MeterHook()


UNITS = {"k": 1 << 10, "m": 1 << 20, "g": 1 << 30}


def parse_bytes(text: str | int, option: str = "--vram") -> int:
    """Parse a size such as ``24g`` (GiB), ``900m`` or ``17.5g`` to bytes; ConfigError names the `option` it is for.

    A whole number is in bytes; a text of digits alone is refused, because GiB may have been meant.

    >>> parse_bytes("1.5g") // (1 << 20)
    1536
    """
    source = text if isinstance(text, str) else f"{text!r}b"
    sized = source.strip().lower().removesuffix("ib").removesuffix("b")
    number, factor = (sized[:-1], UNITS[sized[-1]]) if sized[-1:] in UNITS else (sized, 1)
    try:
        size = float(number) * factor if source.strip()[-1:].isalpha() else 0.0  # without a unit it is refused below
    except ValueError:
        size = 0.0
    if not 0 < size < 1 << 50:
        raise ConfigError(f"{option} takes a size with its unit, such as 24g or 900m, not {text!r}")
    return int(size)


class Size(int):
    """Bytes, written in options as a text such as ``24g``."""

    @classmethod
    def parse(cls, text: str, option: str) -> Size:
        """Parse a text; see `parse_bytes`."""
        return cls(parse_bytes(text, option))

    def __str__(self) -> str:
        return str(format_bytes(int(self)))


def format_bytes(budget: int | None) -> str | None:
    """Return a budget in the form that `parse_bytes` takes, for records; None for none.

    >>> format_bytes(parse_bytes("23g")), format_bytes(None)
    ('23g', None)
    """
    return None if budget is None else f"{budget / UNITS['g']:g}g"


class OffloadClient(Protocol):
    """An owner of device memory that is idle between runs and can be moved to the host."""

    used: float  # time of its last use, by `time.perf_counter`

    def offload_for(self, name: str | None) -> bool:
        """Move its memory to the host, except what the running model `name` uses; returns True if there was any."""
        ...
