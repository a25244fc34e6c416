"""StripedCache: keys and values of a prompt that several cards read in stripes, two layers at a time."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any, Literal, NamedTuple

import numpy as np

from sp.arrays import Ints
from sp.kernels import import_cupy
from sp.models.cache.cache import Cache
from sp.models.config import ModelConfig
from sp.ops.attention.key_basis import KeyBasis
from sp.ops.attention.kv_pages import PAGE_TOKENS, PagedKV
from sp.quant import Math


class Stripe(NamedTuple):
    """Tokens `start` to `stop` of a prompt, of which only the last stripe's last page may be in part."""

    start: int
    stop: int


class Stripes:
    """A prompt cut into twice as many stripes of whole pages as there are cards.

    Card r has the stripes r and ``2 cards - 1 - r``. The first has few tokens before it where the second has many, so
    that all cards have the same pairs of queries and keys, within a page a stripe; the end of the prompt is card 0's.
    Where the last one gets a page of its own besides its tail, all others are equally long, and launches of one are
    those of another.
    `tail`: fewest tokens of the last stripe. `less`: pages that it is to have less than others, about, if it then has
    its tail.

    >>> stripes = Stripes(tokens=1000, cards=2, tail=8)
    >>> [tuple(stripe) for stripe in stripes.of(0)], [tuple(stripe) for stripe in stripes.of(1)]
    ([(0, 256), (768, 1000)], [(256, 512), (512, 768)])
    >>> stripes.pages, stripes.table().tolist()  # where each block of the prompt lies
    ((2, 2), [0, 1, 2, 3, 6, 7, 4, 5])
    >>> [stop - start for start, stop in Stripes(8192, 2, 8, less=5).all]
    [2176, 2176, 2176, 1664]
    """

    def __init__(self, tokens: int, cards: int, tail: int, less: int = 0) -> None:
        assert self.fits(tokens, cards, tail), f"{tokens} tokens on {cards} cards"
        self.tokens, self.cards = tokens, cards
        parts, blocks = 2 * cards, -(-tokens // PAGE_TOKENS)
        most = (tokens - tail) // PAGE_TOKENS  # pages before the last stripe
        alike = -(-blocks // parts)
        more = (blocks + less) // parts
        if more > alike and more * (parts - 1) <= most:
            alike = more
        last = alike * (parts - 1)
        if last > most:
            last = min(blocks * (parts - 1) // parts, most)
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
    def pages(self) -> tuple[int, int]:
        """Most pages of a card's first stripe and of its second; all have room for so many, as all-gathers ask for."""
        return max(map(len, self._blocks[: self.cards])), max(map(len, self._blocks[self.cards :]))

    def table(self) -> Ints:
        """Page of each block of the prompt where the first stripes of all cards lie, and then the second: (blocks,)."""
        first, second = self.pages
        pages = np.empty(self._blocks[-1].stop, np.int64)
        for part, blocks in enumerate(self._blocks):
            card = min(part, 2 * self.cards - 1 - part)
            start = card * first if part == card else self.cards * first + card * second
            pages[blocks.start : blocks.stop] = start + np.arange(len(blocks))
        return pages


class StripedCache(Cache):
    """What a card has of two layers that follow each other: room for all pages of the prompt, some written by itself.

    `add` takes the tokens of the card's stripes, one after the other; the host alone counts them.
    After both `begin_stripe` what reads a layer sees the tokens up to the end of the stripe that `look` named, so that
    queries of that stripe are the last of what they see; after the first one the card's first stripe may be named.
    `config`, `kv`, `rotate`, `device`, `precision`, `bases`: see `Cache`.
    """

    def __init__(
        self,
        config: ModelConfig,
        stripes: Stripes,
        card: int,
        kv: str = "f16",
        *,
        rotate: bool | None = None,
        device: Literal["cpu", "cuda"] = "cpu",
        precision: Math = Math.BF16,
        bases: Mapping[int, KeyBasis] | None = None,
    ) -> None:
        room = stripes.cards * sum(stripes.pages)
        how: dict[str, Any] = {"rotate": rotate, "device": device, "precision": precision, "bases": bases}
        super().__init__(config, room * PAGE_TOKENS, kv, layers=2, **how)
        (self._pool,) = self._pools  # all layers are alike
        table, self._stripes, self._seen = stripes.table(), stripes, stripes.tokens
        own = [table[first // PAGE_TOKENS : -(-stop // PAGE_TOKENS)] for first, stop in stripes.of(card)]
        if stripes.cards == 1:  # one follows the other, and tokens of both are written together
            own = [table]
        self._starts = range(0, room * min(2, config.layers), room)  # of the layers that are held at once
        self._first = PAGE_TOKENS * len(own[0])  # tokens of the first, which is of whole pages
        self._most = PAGE_TOKENS * sum(map(len, own))
        tables = [part + start for start in self._starts for part in (table, *own)]
        placed, ends = self._placed(np.concatenate(tables)), np.cumsum([len(one) for one in tables]).tolist()
        parts = [placed[end - len(one) : end] for one, end in zip(tables, ends, strict=True)]
        each = 1 + len(own)
        self._all, self._own = parts[::each], [parts[i + 1 : i + each] for i in range(0, len(parts), each)]
        self._filled = [0 for _ in self._starts]
        self._wholes: dict[tuple[int, int], tuple[Any, Any]] = {}

    def reset(self) -> None:
        super().reset()
        self._filled = [0 for _ in self._starts]

    def release(self, layer: int) -> None:
        """Let the next layer but one have the pages; nothing is written anew for it, on the device either."""
        self._filled[self._place(layer)] = 0

    def appended(self, layer: int, tokens: int) -> None:
        """Count tokens whose keys and values are stored, by `append` or by launches of another layer, repeated."""
        place = self._place(layer)
        self._filled[place] += tokens
        assert self._filled[place] <= self._most, f"{self._filled[place]} tokens"

    def look(self, stripe: Stripe) -> None:
        """Show tokens up to the end of a stripe."""
        self._seen = stripe.stop

    def stored(self, layer: int) -> PagedKV:
        """Where keys and values up to the end of the stripe in view lie, once they are gathered."""
        return self._at(layer, self._all[self._place(layer)], self._seen)

    def all_pages(self, layer: int) -> Ints:
        """Where a layer's pages lie, on the device if the cache is there; those of every other layer are the same."""
        return self._all[self._place(layer)]  # type: ignore[no-any-return]

    def own_pages(self, layer: int, which: int) -> Ints:
        """Those of the card's first (0) or second (1) stripe, which a card alone has all in the first."""
        return self._own[self._place(layer)][which]  # type: ignore[no-any-return]

    def begin_stripe(self, layer: int, which: int, begin: Callable[..., Callable[[], None]]) -> Callable[[], None]:
        """Fetch the first (0) or second (1) stripes of all cards, in place: keys (cards, pages, ...), and as values.
        `begin` is `Card.begin_gather`, whose result is returned."""
        return begin(*self._whole(self._place(layer), which))

    def _whole(self, place: int, which: int) -> tuple[Any, Any]:
        """What is gathered in one of the places for a layer; slices take the host long enough to be kept."""
        found = self._wholes.get((place, which))
        if found is None:
            cards, pages, at = self._stripes.cards, self._stripes.pages, self.stored(place)
            start = self._starts[place] + which * cards * pages[0]
            part = slice(start, start + cards * pages[which])
            k, v = (one[part].reshape(cards, pages[which], *one.shape[1:]) for one in (at.k, at.v))
            found = self._wholes[place, which] = k, v
        return found

    def add(self, layer: int, tokens: int) -> PagedKV:
        filled, second = self._filled[self._place(layer)], 0
        if filled >= self._first:
            filled, second = filled - self._first, 1
        at = self._at(layer, self.own_pages(layer, second), filled)
        self.appended(layer, tokens)
        return at

    def _at(self, layer: int, table: Any, tokens: int) -> PagedKV:
        how: dict[str, Any] = {**self._how, "basis": self._bases.get(layer)}
        return PagedKV(self._pool.k, self._pool.v, table, tokens, **how)

    def _place(self, layer: int) -> int:
        return layer % len(self._starts)

    def _placed(self, table: Ints) -> Any:
        return table if self.device == "cpu" else import_cupy().asarray(table, np.int32)
