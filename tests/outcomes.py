"""What became of damaged files: refused in one short line each, or read, and at what cost."""

from __future__ import annotations

import re
import resource
import signal
import time
import traceback
from collections import Counter
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field
from pathlib import Path

from sp.errors import SpError

SECONDS = 2.0
"""Of processor time, for one step with one file; a good one takes up to half a second, twice that on a shared core."""
GIVEN_UP = 20.0
"""Seconds after which a file is given up; the machine may do other work."""
MOST_BYTES = 256 << 20
"""Of memory that one file may take beside what the process had."""
MOST_CHARACTERS = 360  # a file of no known family is told all of those, and a path
"""Of a message about a file whose path is short."""


def one_short_line(message: str, most: int = MOST_CHARACTERS) -> None:
    """Assert that a terminal may be shown this."""
    assert message.isprintable(), f"unprintable: {message[:400]!r}"
    assert len(message) <= most, f"{len(message)} characters: {message[:400]!r}"


Step = Callable[[], object]


class SlowError(Exception):
    """Reading was given up."""


@contextmanager
def alarm(seconds: float) -> Iterator[None]:
    """`SlowError` in what takes longer."""

    def ring(*_: object) -> None:
        raise SlowError

    before = signal.signal(signal.SIGALRM, ring)
    signal.setitimer(signal.ITIMER_REAL, seconds)
    try:
        yield
    finally:
        signal.setitimer(signal.ITIMER_REAL, 0)
        signal.signal(signal.SIGALRM, before)


def forget_peak() -> int:
    """Begin to watch for the largest memory of the process anew (Linux alone); bytes that it has now."""
    with suppress(OSError):
        Path("/proc/self/clear_refs").write_text("5")
    return _status("VmRSS")


def _status(name: str) -> int:
    with suppress(OSError, StopIteration):
        lines = Path("/proc/self/status").read_text().splitlines()
        return int(next(line for line in lines if line.startswith(name)).split()[1]) << 10
    return 0


@dataclass
class Outcomes:
    """Counts, and the worst of each kind."""

    read: int = 0
    refused: int = 0
    slowest: float = 0.0
    largest: int = 0
    longest: str = ""
    faults: Counter[str] = field(default_factory=Counter)
    examples: dict[str, str] = field(default_factory=dict)

    def meet(self, steps: Iterable[Step], told: Callable[[], str]) -> None:
        """Try one file; any end of a step but success and an `SpError` of one short line is a fault, told by `told`."""
        refusals, held = 0, forget_peak()
        for step in steps:
            start = time.process_time()
            try:
                with alarm(GIVEN_UP):
                    step()
            except SpError as error:
                refusals += 1
                self._refusal(str(error), told)
            except BaseException as error:
                if isinstance(error, KeyboardInterrupt):
                    raise
                frames = [one for one in traceback.extract_tb(error.__traceback__) if "/sp/" in one.filename]
                last = f"{frames[-1].filename.rpartition('/sp/')[2]}:{frames[-1].lineno}" if frames else ""
                self._fault(f"{type(error).__name__} {last} {error}"[:160], told)
            spent = time.process_time() - start
            self.slowest = max(self.slowest, spent)
            if spent > SECONDS:
                self._fault(f"took more than {SECONDS} s", told)
        self.refused, self.read = self.refused + bool(refusals), self.read + (not refusals)
        taken = _status("VmHWM") - held
        self.largest = max(self.largest, taken)
        if taken > MOST_BYTES:
            self._fault("took more memory than a file may", told)

    @property
    def tried(self) -> int:
        """How many files."""
        return self.read + self.refused

    def _refusal(self, message: str, told: Callable[[], str]) -> None:
        self.longest = max(self.longest, message, key=len)
        try:
            one_short_line(message)
        except AssertionError as error:
            self._fault(str(error)[:160], told)

    def _fault(self, what: str, told: Callable[[], str]) -> None:
        what = re.sub(r"\d+", "#", what)[:100]  # alike faults are one
        self.faults[what] += 1
        self.examples.setdefault(what, told()[:2000])

    def __str__(self) -> str:
        peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024
        lines = [
            f"{self.refused} refused, {self.read} read, {self.faults.total()} faults; the slowest took "
            f"{1e3 * self.slowest:.0f} ms; the longest message has {len(self.longest)} characters; "
            f"one took {self.largest >> 20} MiB, the process {peak:.0f} MiB"
        ]
        lines += [f"{count} x {what}\n    {self.examples[what][:300]}" for what, count in self.faults.most_common()]
        return "\n".join(lines)
