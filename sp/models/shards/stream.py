"""stream: what cards make together piece by piece, as far as somebody asks for it."""

from __future__ import annotations

from collections.abc import Callable, Generator
from contextlib import closing
from contextvars import copy_context
from itertools import count
from queue import SimpleQueue
from threading import Condition, Thread
from typing import Any, TypeVar

from sp.models.shards.shard_model import ShardModel
from sp.models.shards.shards import Shards

T = TypeVar("T")


class _Asked:
    """How many pieces every card may make."""

    def __init__(self) -> None:
        self._changed, self._pieces, self._over = Condition(), 0, False

    def one_more(self) -> None:
        """Let all cards make another piece."""
        with self._changed:
            self._pieces += 1
            self._changed.notify_all()

    def end(self) -> None:
        """Let them make no more."""
        with self._changed:
            self._over = True
            self._changed.notify_all()

    def allows(self, number: int) -> bool:
        """Wait until piece `number`, counted from 0, is asked for, or will not be; which of both."""
        with self._changed:
            self._changed.wait_for(lambda: self._over or self._pieces > number)
            return self._pieces > number


def stream(
    shards: Shards, work: Callable[[ShardModel], Generator[T]], spoiled: Callable[[], object] = lambda: None
) -> Generator[T]:
    """What `work` yields on the first card, piece by piece; on every card it goes on exactly as far as here.

    Each card has a thread from the first piece until the end or until this is closed, and waits in between.

    Parameters
    ----------
    shards : Shards
    work : callable
        Given a card's share. It must yield as often on every card, and do the same in between; see `Shards.run`.
    spoiled : callable, optional
        Called once the cards have ended after a failure: what they keep for later is good for nothing then.

    Raises
    ------
    SpError
        Of the card that failed first, also from `close`.

    Examples
    --------
    >>> from sp.models import load_shards
    >>> from sp.parallel.host import HostGroup
    >>> from sp.session.loaded import embedded
    >>> shards = load_shards(embedded("target"), HostGroup(2))
    >>> pieces = stream(shards, lambda part: (10 * part.share.rank + number for number in range(9)))
    >>> next(pieces), next(pieces)
    (0, 1)
    >>> pieces.close()
    """
    asked, found, failed = _Asked(), SimpleQueue[Any](), list[BaseException]()
    over = object()

    def on(part: ShardModel) -> None:
        try:
            with closing(work(part)) as pieces:
                for number in count():
                    if not asked.allows(number):
                        return
                    piece = next(pieces, over)
                    if piece is over:
                        return
                    if part is shards.models[0]:
                        found.put(piece)
        except BaseException:
            asked.end()
            raise

    def whole() -> None:
        try:
            shards.run(on)
        except BaseException as error:
            failed.append(error)
        finally:
            found.put(over)

    thread = Thread(target=copy_context().run, args=(whole,), name="sp-cards", daemon=True)
    thread.start()
    try:
        while True:
            asked.one_more()
            piece = found.get()
            if piece is over:
                break
            yield piece
    finally:
        asked.end()
        thread.join()
        if failed:
            spoiled()
            raise failed[0]
