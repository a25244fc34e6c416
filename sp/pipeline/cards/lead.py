"""Lead: of an answer that somebody watches one card chooses the tokens, and the others take them from it."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from queue import SimpleQueue
from typing import Any

import numpy as np

from sp.arrays import Floats
from sp.decode import Decoder
from sp.decode.choose import Chooser
from sp.ops.array_module import array_module, on_host
from sp.parallel.meeting import StoppedError


class Lead:
    """What the first card has chosen, for every other one.

    A grammar goes on with each token and log probabilities are told of each, so that this may be done once alone. All
    cards have the same logits, and where nobody watches each chooses by itself.

    Parameters
    ----------
    cards : int

    Examples
    --------
    >>> from sp.decode import Greedy
    >>> lead, told = Lead(2), []
    >>> first = lead.decoder(Greedy(), 0).chooser(0, on_choice=told.append)
    >>> logits = np.array([[0.5, 2.0]], np.float32)
    >>> int(first.choose(logits)[0]), int(lead.decoder(Greedy(), 1).chooser(0).choose(logits)[0]), len(told)
    (1, 1, 1)
    """

    def __init__(self, cards: int) -> None:
        self._chosen = [SimpleQueue[int | None]() for _ in range(cards - 1)]

    def decoder(self, base: Decoder, rank: int) -> Decoder:
        """How a card decodes."""
        return _Led(base, self, rank)

    @contextmanager
    def leading(self) -> Iterator[None]:
        """The first card is inside while it answers; others that wait for it leave when it has left."""
        try:
            yield
        finally:
            self.tell(None)

    def tell(self, token: int | None) -> None:
        """What was chosen; None when nothing more is."""
        for queue in self._chosen:
            queue.put(token)

    def token(self, rank: int) -> int:
        """What a card is to take next; StoppedError where the first one has failed."""
        token = self._chosen[rank - 1].get()
        if token is None:
            raise StoppedError
        return token


@dataclass(frozen=True)
class _Led(Decoder):
    base: Decoder
    lead: Lead
    rank: int

    def chooser(self, seed: int, **watched: Any) -> Chooser:
        """See `Decoder`."""
        if self.rank > 0:
            return _Taken(self.lead, self.rank)
        chooser = self.base.chooser(seed, **watched)
        assert chooser is not None, "nobody watches"
        return _Told(chooser, self.lead)


class _Told(Chooser):
    """Chooses as another does, and tells the other cards."""

    def __init__(self, chooser: Chooser, lead: Lead) -> None:
        self._chooser, self._lead = chooser, lead

    def choose(self, logits: Floats) -> Any:
        """See `Chooser`."""
        token = self._chooser.choose(logits)
        self._lead.tell(int(on_host(token)[0]))
        return token


class _Taken(Chooser):
    """Takes what the first card has chosen."""

    def __init__(self, lead: Lead, rank: int) -> None:
        self._lead, self._rank = lead, rank

    def choose(self, logits: Floats) -> Any:
        """See `Chooser`."""
        return array_module(logits).full(1, self._lead.token(self._rank), np.int32)
