"""Shards: the cards that share a model, and work that all of them do with it at once."""

from __future__ import annotations

from collections.abc import Callable, Generator
from contextlib import closing
from contextvars import copy_context
from dataclasses import dataclass
from itertools import count
from queue import SimpleQueue
from threading import Condition, Thread
from typing import Any, NoReturn, TypeVar

from sp.errors import ConfigError
from sp.models.config import ModelConfig
from sp.models.network.model import Model
from sp.models.run.tensor_parallel import ShardModel, working_with
from sp.parallel.group import Card, ParallelGroup

T = TypeVar("T")


@dataclass(frozen=True)
class Shards:
    """A model that lies on several cards.

    Attributes
    ----------
    config : ModelConfig
        Of the whole model.
    models : tuple of ShardModel
        In the group's order.
    """

    group: ParallelGroup
    config: ModelConfig
    models: tuple[ShardModel, ...]

    def run(self, work: Callable[[ShardModel], T]) -> list[T]:
        """Do `work` with each card's share at once, in a thread a card; what it returns, by card. It must do the same
        on every card: the same passes over the same tokens, with a cache that it makes of its model. What it reads of
        logits is the same everywhere. SpError: of the card that failed first; see `ParallelGroup.run`.

        >>> import numpy as np
        >>> from sp.models import decode_step, load_shards, prefill
        >>> from sp.parallel.host import HostGroup
        >>> from sp.session.loaded import embedded
        >>> ids = np.arange(40)
        >>> def two_tokens(model):
        ...     cache = model.new_cache(50)
        ...     first = int(prefill(model, ids, ids, cache).argmax())
        ...     return first, int(decode_step(model, first, 40, cache).argmax())
        >>> one, other = load_shards(embedded("target"), HostGroup(2)).run(two_tokens)
        >>> one == other
        True
        """

        def on(card: Card) -> T:
            with working_with(card):
                return work(self.models[card.rank])

        return self.group.run(on)


class SharedModel(Model):
    """A model that cards share, where something is asked of the whole. `config`, `device`, `repacked`, `arithmetic`:
    see `Model`, of the whole. `trunk`, `nbytes`: of the card that holds most. `shards`: which read; see `Shards.run`
    and `sp.models.shards.shards`."""

    def __init__(self, shards: Shards) -> None:
        most = max(shards.models, key=lambda part: part.nbytes)
        super().__init__(shards.config, most.trunk, most.device, most.nbytes, most.repacked, None, most.arithmetic)
        self.shards = shards

    def __repr__(self) -> str:
        return f"{super().__repr__()[:-1]}, shared by {self.shards.group.size})"

    def new_cache(self, *_: object, **__: object) -> NoReturn:
        """Refused, as all that reads by itself is."""
        self._refuse()

    def embed(self, ids: object, *, normed: bool = True) -> NoReturn:
        """Refused, see `new_cache`."""
        self._refuse()

    def _refuse(self) -> NoReturn:
        raise ConfigError(
            f"a target that {self.shards.group.size} cards share cannot do this, which is for one card alone; leave it "
            "on one with --target-cards 1"
        )


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
    `work`: given a card's share. It must yield as often on every card, and do the same in between; see `Shards.run`.
    `spoiled`: called once the cards have ended after a failure: what they keep for later is good for nothing then.
    SpError: of the card that failed first, also from `close`.
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
