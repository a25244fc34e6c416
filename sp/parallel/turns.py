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
        self._changed = threading.Condition()
        self._asking: deque[object] = deque()
        self._taken = False

    @contextmanager
    def turn(self) -> Iterator[bool]:
        """Inside it is the caller's turn, or it is not and was waited for."""
        mine = self._take()
        try:
            yield mine
        finally:
            if mine:
                with self._changed:
                    self._taken = False
                    self._changed.notify_all()

    def _take(self) -> bool:
        me = object()
        with self._changed:
            self._asking.append(me)
            free = self._changed.wait_for(lambda: not self._taken and self._asking[0] is me, self._seconds)
            self._asking.remove(me)
            self._taken = self._taken or free
            if not free:  # the next one may be first now
                self._changed.notify_all()
        return free
