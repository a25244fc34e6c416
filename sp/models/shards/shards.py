"""Shards: the cards that share a model, and work that all of them do with it at once."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import TypeVar

from sp.models.config import ModelConfig
from sp.models.shards.shard_block import working_with
from sp.models.shards.shard_model import ShardModel
from sp.parallel.group import Card, Group

T = TypeVar("T")


@dataclass(frozen=True)
class Shards:
    """A model that lies on several cards.

    Attributes
    ----------
    group : Group
    config : ModelConfig
        Of the whole model.
    models : tuple of ShardModel
        In the group's order.
    """

    group: Group
    config: ModelConfig
    models: tuple[ShardModel, ...]

    def run(self, work: Callable[[ShardModel], T]) -> list[T]:
        """Do `work` with each card's share at once, in a thread a card; what it returns, by card.

        It must do the same on every card: the same passes over the same tokens, with a cache that it makes of its
        model. What it reads of logits is the same everywhere.

        Raises
        ------
        SpError
            Of the card that failed first; see `Group.run`.

        Examples
        --------
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
