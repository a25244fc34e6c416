"""In what way a request fits a card: with which cache, and whether both models stay there or take turns."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass

from sp.models.cache.pages import DEVICE_KV_FORMATS, KV_FORMATS
from sp.models.config import ModelConfig
from sp.models.inspect.cards import ANSWER, CARDS, KEEP, SYSTEM, Drafter, need
from sp.models.inspect.memory import Stacks, scoring_bytes
from sp.quant import Math

SPOKEN = (8192, 32768, 131072)
"""Lengths of prompt and answer, in tokens, that a plan tells memory of."""


@dataclass(frozen=True)
class Way:
    """How a request is run.

    Attributes
    ----------
    kv : str
        Type of the target's cache.
    by_turns : bool
        Whether idle weights have to wait in host memory; experts of the target among them where that takes least.
    nbytes : int
        What it takes on the card.
    """

    kv: str
    by_turns: bool
    nbytes: int

    def options(self, card: int) -> tuple[str, ...]:
        """Options of `sp run` that ask for it on a card of so many GiB; none for the usual way.

        >>> Way("q4_0", True, 1 << 30).options(24)
        ('--kv q4_0', '--vram 23g')
        """
        cache = () if self.kv == DEVICE_KV_FORMATS[0] else (f"--kv {self.kv}",)
        return (*cache, f"--vram {room(card) >> 30}g") if self.by_turns else cache


def room(card: int) -> int:
    """Bytes of a card of so many GiB that models, caches and work may take: the budget to give to ``--vram``."""
    return (card << 30) - SYSTEM


def caches(target: ModelConfig) -> list[str]:
    """Types of cache that the device has for the heads of a model, the exact one first."""
    return [name for name in DEVICE_KV_FORMATS if target.head_dim % KV_FORMATS[name].block_size == 0]


def ways(
    target: ModelConfig,
    weights: int,
    drafter: Drafter | None,
    tokens: int,
    keep: float = KEEP,
    stacks: Stacks = (),
    math: Math = Math.BF16,
    alone: bool = True,
) -> Iterator[Way]:
    """All ways to answer a prompt that takes `tokens` tokens with its answer, that which gives up least first.

    Turns cost copies and change no token, those of experts (`stacks`, see `stack_bytes`) the most; a narrower cache
    rounds keys and values, so it comes after them. Without a drafter everything is read, of which there is no way where
    the window is shorter. Products in `math` take room of their own. Of several cards, of which the target is then a
    share, no weights wait in host memory.
    """
    if drafter is None and tokens > target.context:
        return
    for kv in caches(target):
        found = need(target, weights, drafter, max(tokens - ANSWER, 1), kv, keep, stacks, math)
        yield Way(kv, False, found.together)
        if alone and found.by_turns < found.together:
            yield Way(kv, True, found.by_turns)
        if alone and found.least < found.by_turns:
            yield Way(kv, True, found.least)


def scoring_way(drafter: Drafter, tokens: int) -> Way:
    """What a drafter takes by itself to score a prompt, of which it caches nothing."""
    return Way(DEVICE_KV_FORMATS[0], False, drafter.weights + scoring_bytes(drafter.config, max(tokens - ANSWER, 1)))


def best(found: Sequence[Way], card: int) -> Way | None:
    """The first of the ways that a card has room for; None if it has for none."""
    return next((way for way in found if way.nbytes <= room(card)), None)


def smallest_card(found: Sequence[Way]) -> int | None:
    """The smallest card that has room for any of the ways."""
    return next((card for card in CARDS if best(found, card)), None)


def longest(
    target: ModelConfig,
    weights: int,
    drafter: Drafter | None,
    card: int,
    keep: float = KEEP,
    stacks: Stacks = (),
    alone: bool = True,
) -> tuple[int, Way] | None:
    """The longest of `SPOKEN` that a card has a way for, and that way; None if it has none for the shortest."""
    for tokens in reversed(SPOKEN):
        if way := best(list(ways(target, weights, drafter, tokens, keep, stacks, alone=alone)), card):
            return tokens, way
    return None
