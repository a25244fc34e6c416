"""StripedCache: keys and values of a prompt that several cards read in stripes, one layer at a time."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, Literal, NamedTuple

import numpy as np

from sp.arrays import Ints
from sp.kernels import import_cupy
from sp.models.cache.cache import Cache
from sp.models.config import ModelConfig
from sp.ops.attention.kv_pages import PAGE_TOKENS
from sp.ops.attention.paged_kv import PagedKV
from sp.quant import Math


class Stripe(NamedTuple):
    """Tokens `start` to `stop` of a prompt, of which only the last stripe's last page may be in part."""

    start: int
    stop: int


class Stripes:
    """A prompt cut into twice as many stripes of whole pages as there are cards.

    Card r has the stripes r and ``2 cards - 1 - r``. The first has few tokens before it where the second has many, so
    that all cards have the same pairs of queries and keys, within a page; the end of the prompt is card 0's.

    Parameters
    ----------
    tokens, cards : int
    tail : int
        Fewest tokens of the last stripe.

    Examples
    --------
    >>> stripes = Stripes(tokens=1000, cards=2, tail=8)
    >>> [tuple(stripe) for stripe in stripes.of(0)], [tuple(stripe) for stripe in stripes.of(1)]
    ([(0, 256), (768, 1000)], [(256, 512), (512, 768)])
    >>> stripes.pages, stripes.table().tolist()  # of a card, and where each block of the prompt lies
    (4, [0, 1, 4, 5, 6, 7, 2, 3])
    """

    def __init__(self, tokens: int, cards: int, tail: int) -> None:
        assert self.fits(tokens, cards, tail), f"{tokens} tokens on {cards} cards"
        self.tokens, self.cards = tokens, cards
        parts, blocks = 2 * cards, -(-tokens // PAGE_TOKENS)
        last = min(blocks * (parts - 1) // parts, (tokens - tail) // PAGE_TOKENS)
        edges = [last * i // (parts - 1) for i in range(parts)]
        starts = [edge * PAGE_TOKENS for edge in edges]
        self.all = [Stripe(*ends) for ends in zip(starts, [*starts[1:], tokens], strict=True)]
        self._blocks = [range(*ends) for ends in zip(edges, [*edges[1:], blocks], strict=True)]

    @staticmethod
    def fits(tokens: int, cards: int, tail: int) -> bool:
        """Whether every stripe has a page.

        >>> Stripes.fits(900, 4, 8), Stripes.fits(1024, 4, 8)
        (False, True)
        """
        return (tokens - tail) // PAGE_TOKENS >= 2 * cards - 1

    def of(self, card: int) -> tuple[Stripe, Stripe]:
        """The stripes of a card, in token order."""
        return self.all[card], self.all[-1 - card]

    def places(self, card: int) -> Ints:
        """Tokens of a card: (n,)."""
        return np.concatenate([np.arange(*stripe) for stripe in self.of(card)])

    @property
    def pages(self) -> int:
        """Most pages of a card; each has room for so many, since an all-gather takes equal parts."""
        return max(len(self._blocks[card]) + len(self._blocks[-1 - card]) for card in range(self.cards))

    def table(self) -> Ints:
        """Page of each block of the prompt where the pages of all cards lie one card after the other: (blocks,)."""
        parts = 2 * self.cards
        pages = np.empty(self._blocks[-1].stop, np.int64)
        for part, blocks in enumerate(self._blocks):
            card = min(part, parts - 1 - part)
            before = 0 if part == card else len(self._blocks[card])
            pages[blocks.start : blocks.stop] = card * self.pages + before + np.arange(len(blocks))
        return pages


class StripedCache(Cache):
    """What a card has of one layer: room for all pages of the prompt, into which it writes those of its stripes.

    `append` and `append_heads` take the tokens of the card's stripes, one after the other, into pages that follow each
    other; the host alone counts them. After `gather_pages` what reads the layer sees the tokens up to the end of the
    stripe that `look` named, so that queries of that stripe are the last of what they see.

    Parameters
    ----------
    config, kv, rotate, device, math
        See `Cache`.
    stripes : Stripes
    card : int

    Examples
    --------
    >>> from sp.models.synthetic.shapes import find_shape
    >>> stripes = Stripes(1000, cards=2, tail=8)
    >>> cache = StripedCache(find_shape("tiny-qwen3").config, stripes, 1)
    >>> cache.look(stripes.of(1)[0])
    >>> cache.stored(0).tokens
    512
    """

    def __init__(
        self,
        config: ModelConfig,
        stripes: Stripes,
        card: int,
        kv: str = "f16",
        *,
        rotate: bool = False,
        device: Literal["cpu", "cuda"] = "cpu",
        math: Math = Math.BF16,
    ) -> None:
        room = stripes.cards * stripes.pages * PAGE_TOKENS
        super().__init__(config, room, kv, rotate=rotate, layers=1, device=device, math=math)
        own, table = card * stripes.pages + np.arange(stripes.pages), stripes.table()
        self._own: Any = own if device == "cpu" else import_cupy().asarray(own, np.int32)
        self._table: Any = table if device == "cpu" else import_cupy().asarray(table, np.int32)
        self._cards, self._seen = stripes.cards, stripes.tokens
        self._filled = 0

    def reset(self) -> None:
        """See `Cache`."""
        super().reset()
        self._filled = 0

    def release(self, layer: int) -> None:
        """Let the next layer have the pages; nothing is written anew for it, on the device either."""
        self._filled = 0

    def _room(self, layer: int, tokens: int) -> PagedKV:
        at = self._pool.view(self._own, self._filled)
        self._filled += tokens
        assert self._filled <= len(self._own) * PAGE_TOKENS, f"{self._filled} tokens in {len(self._own)} pages"
        return at

    def look(self, stripe: Stripe) -> None:
        """Show tokens up to the end of a stripe."""
        self._seen = stripe.stop

    def stored(self, layer: int) -> PagedKV:
        """Where keys and values up to the end of the stripe in view lie, once they are gathered."""
        return self._pool.view(self._table, self._seen)

    def gather_pages(self, all_gather: Callable[..., None]) -> None:
        """Fetch the pages of all cards, in place: keys (cards, pages, ...) and as many values."""
        at = self.stored(0)
        all_gather(*(pages.reshape(self._cards, -1, *pages.shape[1:]) for pages in (at.k, at.v)))
