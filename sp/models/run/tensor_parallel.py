"""ShardModel: a model on one card of several, called as any other, in the thread of that card.

Each card holds 1/size of the residual stream and adds to it what its heads or columns make, a part of the sum that the
whole half of a layer adds. The mean of that over all cards is 1/size of the new stream: one all-reduce is the sum and
the addition, and no kernel is launched besides. To RMS norms the scale makes no difference once their `eps` is over
size squared as well; where the size is a power of two, not even rounding differs.

Many tokens pass in two parts, so that cards add up the one while they compute the other: half a layer ends in a sum
over all cards, for which the next half waits, and of two parts one is always free to go on.

    computed     first: mixer | second: mixer | first: feed-forward | second: feed-forward | first: the next mixer
    added up                  | first         | second              | first                | second
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import AbstractContextManager, nullcontext
from contextvars import ContextVar
from dataclasses import replace
from typing import Any

import numpy as np

from sp.arrays import Floats, Ints
from sp.errors import ConfigError
from sp.kernels.device import leaving_free
from sp.kernels.setting import setting
from sp.models.cache.cache import Cache, padded
from sp.models.config import ModelConfig
from sp.models.layer.block import Halves
from sp.models.layer.share import Share
from sp.models.layer.steps import Flow, Half
from sp.models.network.arithmetic import Arithmetic
from sp.models.network.model import Device, Model
from sp.models.network.trunk import Trunk
from sp.ops.array_module import array_module
from sp.ops.matmul.project import project
from sp.ops.norms import Norm, Ready
from sp.ops.sampling.cap_logits import cap_logits
from sp.parallel.group import Card, ParallelGroup
from sp.quant.repack import Repacked

PART = 1024
"""Fewest tokens of a part; products of fewer are made in another way, and sums of them take no time to speak of."""
ROUND = 128  # parts begin at multiples of it, where pages and blocks of queries do


def middle(tokens: int) -> int:
    """Where the second of two parts begins; 0 where the tokens are too few for two.

    >>> middle(6656), middle(2047), middle(2048)
    (3328, 0, 1024)
    """
    return -(-tokens // (2 * ROUND)) * ROUND if tokens >= 2 * PART else 0


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


class ShardModel(Model):
    """One card's share of a model.

    It does what a `Model` does, and each call waits for the same call on all cards. Logits are whole, and the same bits
    on every card, so that all choose the same tokens.
    `config`: with this card's heads and columns; caches hold no others. `trunk`: embedding and norms whole, of all else
    this card's share; the `eps` of blocks is that of a stream over the number of cards. `group`: whose cards share it.
    It lives as long as this, and so as long as graphs of this. `others`: see `Model`.
    """

    def __init__(
        self,
        config: ModelConfig,
        trunk: Trunk,
        device: Device,
        nbytes: int,
        repacked: tuple[Repacked, ...],
        arithmetic: Arithmetic,
        share: Share,
        group: ParallelGroup,
    ) -> None:
        self.share, self.group, self.captures, self.sharers = share, group, group.captures, share.size
        trunk = replace(trunk, blocks=tuple(replace(block, eps=self._eps(block.eps)) for block in trunk.blocks))
        super().__init__(config, trunk, device, nbytes, repacked, None, arithmetic)

    def _eps(self, eps: float) -> float:
        """Of a norm of the stream, of one over the number of cards."""
        return eps / self.share.size**2

    def embed(self, ids: Ints, *, normed: bool = True) -> Floats:
        """See `Model`; over the number of cards, as all streams are that layers take and give."""
        x = super().embed(ids, normed=normed)
        x *= np.float32(1 / self.share.size)
        return x

    def whole(self, x: Floats) -> Floats:
        found: Floats = x * np.float32(self.share.size)
        return found

    @property
    def chained_layers(self) -> list[Halves]:
        """See `Model`: norms begun of one card's part are of no use."""
        return self.trunk.layers

    def pass_layer(self, layer: Sequence[Half], flow: Flow) -> Floats:
        """See `Model`; behind each half x (n, hidden) is made of the parts that all cards have."""
        for half in layer:
            with this_card().launch_lock():
                super().pass_layer((half,), flow)
            if not flow.rows:
                break
            this_card().all_reduce(flow.x)
        return flow.x

    def parts_at(self, tokens: int) -> int:
        return middle(tokens)

    def in_parts(self, x: Floats, positions: Ints, cache: Cache, rest: Ints) -> Floats:
        """Many tokens through all layers but the last, in place, in two parts. `x`, float32 (n, hidden): on the device;
        n at least two parts. `positions`, int64 (n,): on the device. `cache`: counts every layer for itself, those on
        the device as well; the last is counted here. `rest`, int32 (1,): on the device: tokens of the second part that
        count; what is behind them is padding."""
        cut, layers = middle(len(x)), self.trunk.layers[:-1]
        assert cut, f"{len(x)} tokens in parts of {PART}"
        first, second = slice(0, cut), slice(cut, len(x))
        passes = [
            self._part(layers, Flow(x[first], positions[first], cache, cut)),
            self._part(layers, Flow(x[second], positions[second], cache, len(x) - cut), rest),
        ]
        with leaving_free(self.group.busy):  # multiprocessors for what adds up
            while passes:
                passes = [one for one in passes if next(one, False) is None]
        cache.advance(len(x), layer=len(layers))
        return x

    def agreed(self, fine: bool) -> bool:
        """Whether all cards say so, see `Card.agree`."""
        return this_card().agree(fine)

    def arrived(self, event: Any) -> None:
        """See `Model`; a card that hangs is found out."""
        this_card().wait_for(event)

    def queueing(self) -> AbstractContextManager[None]:
        return this_card().on_shared_cpu()

    def turn(self) -> AbstractContextManager[Any]:
        return this_card().launch_lock()

    def done_before(self, known: bool) -> None:
        this_card().set_warm(known)

    def settled(self) -> None:
        this_card().wait()

    def head(self, x: Floats, norm: Norm | Ready | None = None) -> Floats:
        """See `Model`; waits until the logits are there, so that a card that hangs is found out."""
        norm = (self.trunk.output_norm, self._eps(self.config.eps)) if norm is None else norm
        assert self.trunk.output is not None, "shards have heads"
        (mine,) = project(x, (self.trunk.output,), norm, f32=(True,))
        scale, cap = self.config.logit_scale, self.config.final_softcap
        mine = mine if scale == 1 and cap is None else cap_logits(mine, scale, cap)
        xp, vocab, size, card = array_module(x), self.config.vocab, self.share.size, this_card()
        parts = xp.empty((size, len(x), -(-vocab // size)), np.float32)
        parts[card.rank, :, : mine.shape[1]] = mine
        card.all_gather(parts)
        rows: Floats = xp.ascontiguousarray(parts.transpose(1, 0, 2).reshape(len(x), -1)[:, :vocab])
        card.wait()
        return rows

    def _part(self, layers: Sequence[Halves], flow: Flow, real: Ints | None = None) -> Iterator[None]:
        """One part's way through layers; it stops whenever a sum has begun. Only `real` of its tokens count."""
        for index, layer in enumerate(layers):
            states = [flow.cache.state(index)] if index in flow.cache.config.delta_layers else []
            for half in layer:
                with nullcontext() if real is None else padded(states, real), this_card().launch_lock():
                    super().pass_layer((half,), flow)
                joined = this_card().begin_reduce(flow.x)
                yield
                joined()
