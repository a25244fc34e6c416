"""ShardBlock: what one card computes of a block, and where cards meet in it.

Each card holds 1/size of the residual stream and adds to it what its heads or columns make, a part of the sum that the
whole half of a block adds. The mean of that over all cards is 1/size of the new stream: one all-reduce is the sum and
the addition, and no kernel is launched besides. To RMS norms the scale makes no difference once their `eps` is over
size squared as well; where the size is a power of two, not even rounding differs.
"""

from __future__ import annotations

from collections.abc import Callable
from contextlib import AbstractContextManager
from contextvars import ContextVar
from dataclasses import dataclass

from sp.arrays import Floats, Ints
from sp.errors import ConfigError
from sp.kernels.setting import setting
from sp.models.cache.cache import Cache
from sp.models.layers.block import Block, Nodes, Tap
from sp.ops.delta.delta_tree import DeltaTrace
from sp.ops.norms import Norm, Ready
from sp.parallel.group import Card

_card: ContextVar[Card | None] = ContextVar("card_of_shard", default=None)
"""Of a thread, not of a model: one that was left behind goes on with the card that it had, and ends by it."""


def working_with(card: Card) -> AbstractContextManager[None]:
    """Inside, shards of this thread meet others by this card."""
    return setting(_card, card)


def this_card() -> Card:
    """The card of this thread; ConfigError outside of `working_with`."""
    card = _card.get()
    if card is None:
        raise ConfigError("one card's share of a model runs with those of the others alone; see Shards.run")
    return card


@dataclass(frozen=True)
class ShardBlock(Block):
    """A block whose halves were cut, see `sp.models.layers.share`; `eps` is of a stream over the number of cards.

    Cards queue a half each in turn, see `sp.parallel.nccl_card`.
    """

    def __call__(self, x: Floats, positions: Ints, cache: Cache, rows: int, tap: Tap | None) -> Floats:
        """See `Block`."""
        with this_card().turn():
            x = self.mixer(x, (self.attn_norm, self.eps), positions, cache, rows, tap)
        return self.feed_forward(self.joined(x)) if rows else x

    def joined(self, x: Floats) -> Floats:
        """The stream (n, hidden), over the number of cards, of the parts that all of them have; in place."""
        this_card().all_reduce(x)
        return x

    def feed_forward(self, x: Floats) -> Floats:
        """See `Block`."""
        with this_card().turn():
            x = super().feed_forward(x)
        return self.joined(x)

    def begin_mixing(self, x: Floats, positions: Ints, cache: Cache) -> Callable[[], None]:
        """The first half of all tokens on the device, in place; see `Card.begin_reduce` for what is returned."""
        with this_card().turn():
            self.mixer(x, (self.attn_norm, self.eps), positions, cache, len(x), None)
        return this_card().begin_reduce(x)

    def begin_feeding(self, x: Floats) -> Callable[[], None]:
        """The second half, as `begin_mixing`."""
        with this_card().turn():
            super().feed_forward(x)
        return this_card().begin_reduce(x)

    def read_tree(
        self, x: Floats, norm: Norm | Ready, nodes: Nodes, cache: Cache, trace: DeltaTrace | None, then: Norm
    ) -> tuple[Floats, Norm | Ready]:
        """See `Block`; norms begun of one card's part are of no use."""
        middle = self.ffn_norm, self.eps
        with this_card().turn():
            x, _ = self.mixer.read_tree(x, norm, nodes, cache, trace, middle)
        x = self.joined(x)
        with this_card().turn():
            x, _ = self.ffn.add_before(x, middle, then)
        return self.joined(x), then
