"""Turns: one thread after the other queues work, in place of all of them at once."""

from __future__ import annotations

import threading
from collections import deque
from collections.abc import Iterator
from contextlib import contextmanager

TURN_SECONDS = 0.01
"""Longest wait for a turn: who queues for longer waits for something itself, such as a kernel that is compiled."""


class Turns:
    """Whose turn it is to queue work.

    CuPy lets go of Python's lock in every launch. Threads that launch at the same time take it from each other at each
    of them, and waking a thread takes longer than a launch; one after the other they need what the launches need. Turns
    are given in the order they are asked for. They order nothing else: who waits too long goes on without one.

    Examples
    --------
    >>> turns = Turns()
    >>> with turns.turn() as first, turns.turn() as second:  # not given back meanwhile
    ...     print(first, second)
    True False
    """

    def __init__(self, seconds: float = TURN_SECONDS) -> None:
        self._seconds = seconds
        self._lock = threading.Lock()
        self._asking: deque[threading.Lock] = deque()
        self._taken = False

    @contextmanager
    def turn(self) -> Iterator[bool]:
        """Inside it is the caller's turn, or it is not and was waited for."""
        mine = self._take()
        try:
            yield mine
        finally:
            if mine:
                self._give()

    def _take(self) -> bool:
        with self._lock:
            if not self._taken:
                self._taken = True
                return True
            mine = threading.Lock()
            mine.acquire()
            self._asking.append(mine)
        if mine.acquire(timeout=self._seconds):
            return True
        with self._lock:
            late = mine in self._asking  # or it was handed over meanwhile
            if late:
                self._asking.remove(mine)
        return not late

    def _give(self) -> None:
        """Hand the turn to the one that asked first, and wake nobody else."""
        with self._lock:
            if self._asking:
                self._asking.popleft().release()
            else:
                self._taken = False
