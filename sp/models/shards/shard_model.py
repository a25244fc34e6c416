"""ShardModel: a model on one card of several, called as any other, in the thread of that card."""

from __future__ import annotations

from contextlib import AbstractContextManager
from dataclasses import replace
from typing import Any

import numpy as np

from sp.arrays import Floats, Ints
from sp.models.arithmetic import Arithmetic
from sp.models.cache.cache import Cache
from sp.models.config import ModelConfig
from sp.models.layers.block import Block
from sp.models.layers.share import Share
from sp.models.model import Device, Model
from sp.models.shards.in_parts import in_parts
from sp.models.shards.shard_block import ShardBlock, this_card
from sp.models.trunk import Trunk
from sp.ops.array_module import array_module
from sp.ops.matmul.project import project
from sp.ops.norms import Norm, Ready
from sp.parallel.group import Group
from sp.quant.repack import Repacked


class ShardModel(Model):
    """One card's share of a model.

    It does what a `Model` does, and each call waits for the same call on all cards. Logits are whole, and the same bits
    on every card, so that all choose the same tokens.

    Attributes
    ----------
    config : ModelConfig
        With this card's heads and columns; caches hold no others.
    trunk : Trunk
        Embedding and norms whole, of all else this card's share; blocks are `ShardBlock`.
    share : Share
    group : Group
        Whose cards share it. It lives as long as this, and so as long as graphs of this.
    others
        See `Model`.
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
        group: Group,
    ) -> None:
        self.share, self.group, self.captures, self.sharers = share, group, group.captures, share.size
        trunk = replace(trunk, blocks=tuple(self._shared(block) for block in trunk.blocks))
        super().__init__(config, trunk, device, nbytes, repacked, None, arithmetic)

    def _shared(self, block: Block) -> ShardBlock:
        return ShardBlock(block.attn_norm, block.mixer, block.ffn_norm, block.ffn, self._eps(block.eps))

    def _eps(self, eps: float) -> float:
        """Of a norm of the stream, of one over the number of cards."""
        return eps / self.share.size**2

    def embed(self, ids: Ints) -> Floats:
        """See `Model`; over the number of cards, as all streams are that layers take and give."""
        x = super().embed(ids)
        x *= np.float32(1 / self.share.size)
        return x

    def whole(self, x: Floats) -> Floats:
        """See `Model`."""
        found: Floats = x * np.float32(self.share.size)
        return found

    def in_parts(self, x: Floats, positions: Ints, cache: Cache, rest: Ints) -> Floats:
        """See `Model`."""
        blocks: Any = self.trunk.blocks[:-1]
        in_parts(blocks, x, positions, cache, rest, self.group.busy)
        cache.advance(len(x), layer=len(blocks))
        return x

    def agreed(self, fine: bool) -> bool:
        """Whether all cards say so, see `Card.agree`."""
        return this_card().agree(fine)

    def arrived(self, event: Any) -> None:
        """See `Model`; a card that hangs is found out."""
        this_card().arrived(event)

    def queueing(self) -> AbstractContextManager[None]:
        """See `Model`."""
        return this_card().one_core()

    def turn(self) -> AbstractContextManager[Any]:
        """See `Model`."""
        return this_card().turn()

    def done_before(self, known: bool) -> None:
        """See `Model`."""
        this_card().done_before(known)

    def settled(self) -> None:
        """See `Model`."""
        this_card().wait()

    @property
    def norms(self) -> tuple[Norm, ...]:
        """See `Model`."""
        *of_blocks, (weight, eps) = super().norms
        return (*of_blocks, (weight, self._eps(eps)))

    def head(self, x: Floats, norm: Norm | Ready | None = None) -> Floats:
        """See `Model`; waits until the logits are there, so that a card that hangs is found out."""
        norm = (self.trunk.output_norm, self._eps(self.config.eps)) if norm is None else norm
        assert self.trunk.output is not None, "shards have heads"
        (mine,) = project(x, (self.trunk.output,), norm, f32=(True,))
        xp, vocab, size, card = array_module(x), self.config.vocab, self.share.size, this_card()
        parts = xp.empty((size, len(x), -(-vocab // size)), np.float32)
        parts[card.rank, :, : mine.shape[1]] = mine
        card.all_gather(parts)
        rows: Floats = xp.ascontiguousarray(parts.transpose(1, 0, 2).reshape(len(x), -1)[:, :vocab])
        card.wait()
        return rows
