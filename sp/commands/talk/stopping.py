"""Ctrl-C that ends an answer: at the next token, or where a model has read a part more, never in between."""

from __future__ import annotations

import signal
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from types import FrameType

from sp.session.result import Reporter


class Stopped(Exception):  # noqa: N818  it is no error
    """The user wants no answer any more, and there is none yet."""


class Stop:
    """Whether a stop was asked for.

    Examples
    --------
    >>> stop = Stop()
    >>> stop.ask()
    >>> stop.asked
    True
    """

    def __init__(self) -> None:
        self.asked = False

    def ask(self) -> None:
        """Ask for it; the second time, end the program."""
        if self.asked:
            raise KeyboardInterrupt
        self.asked = True

    def watched(self, reporter: Reporter) -> Reporter:
        """The same reporter, whose stages end with `Stopped` once it was asked for."""

        @contextmanager
        def opened(what: str, total: int) -> Iterator[Callable[[int], None]]:
            with reporter(what, total) as progress:

                def told(done: int) -> None:
                    if self.asked:
                        raise Stopped
                    if progress is not None:
                        progress(done)

                yield told

        return opened


@contextmanager
def stop_by_signal() -> Iterator[Stop]:
    """Ctrl-C asks for a stop as long as this lasts; it does what it did before in a thread, and behind it."""
    stop = Stop()

    def handle(number: int, frame: FrameType | None) -> None:
        stop.ask()

    if threading.current_thread() is not threading.main_thread():
        yield stop
        return
    before = signal.signal(signal.SIGINT, handle)
    try:
        yield stop
    finally:
        signal.signal(signal.SIGINT, before)
