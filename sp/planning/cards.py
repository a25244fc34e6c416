"""Which cards hold a model, alone and with a drafter, up to what length of prompt."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import cache
from itertools import takewhile
from math import ceil
from typing import Any

from sp.models.cache.block_tables import DEVICE_KV_FORMATS, KV_FORMATS
from sp.models.config import ModelConfig, first_layers
from sp.models.synthetic.shapes import find_shape, list_shapes
from sp.planning.cold_layers import least_cold
from sp.planning.known_cards import KNOWN
from sp.planning.memory import Stacks, held_weights, kv_bytes, reading_bytes, scoring_bytes, state_bytes
from sp.quant import BlockFormat, Math

CARDS = tuple(sorted({card.gib for card in KNOWN}))
"""Sizes of cards in GiB."""
SYSTEM = 1 << 30
"""Of a card: what driver, context and kernels take."""
LENGTHS = tuple(1 << power for power in range(13, 19))
KEEP, ANSWER = 0.05, 256
"""Share of a prompt that is kept, and tokens of an answer, that the table reckons with."""
DRAFTER_TYPE, LARGEST_DRAFTER = "bf16", 2 * 10**9
"""How drafters are published, and the parameters of the largest model that is proposed as one."""


@dataclass(frozen=True)
class Drafter:
    """A model that could score for a target.

    Parameters
    ----------
    name : str
    config : ModelConfig
        Of the layers that are read.
    weights : int
        Bytes of what is loaded of it on the device.
    of_layers : int, optional
        Of the whole model; those that are read if left out.
    """

    name: str
    config: ModelConfig
    weights: int
    of_layers: int | None = None

    @property
    def layers(self) -> int:
        """Of the whole model."""
        return self.of_layers or self.config.layers

    @classmethod
    def of(
        cls, name: str, config: ModelConfig, formats: Mapping[str, BlockFormat], depth: int | None, cards: int = 1
    ) -> Drafter:
        """A model of which so many layers are read, without its head; all of it for None. Errors of `held_weights`."""
        weights = weights_bytes(config, formats, cards, depth)
        return cls(name, first_layers(config, depth), weights, config.layers)

    @property
    def stops(self) -> str:
        """Which layers are read, where it is not all of them, as in ``19 of 30 layers``."""
        return "" if self.config.layers == self.layers else f"{self.config.layers} of {self.layers} layers"


def drafters_for(target: ModelConfig, parameters: int) -> list[Drafter]:
    """Small published models of the registry, those whose architecture is called most like it first.

    A drafter need not share the target's vocabulary, for scores are carried over by bytes of the text.

    Examples
    --------
    >>> config = find_shape("qwen3.6-27b").config
    >>> [one.name for one in drafters_for(config, 27 * 10**9)][:1]
    ['qwen3-0.6b']
    """
    found = [
        (-_alike(one.config.architecture, target.architecture), size, one.name, one)
        for size, one in _small()
        if 4 * size <= parameters
    ]
    return [one for *_, one in sorted(found, key=lambda each: each[:3])]


@cache
def _small() -> tuple[tuple[int, Drafter], ...]:
    """Parameters of every shape that may be proposed, and what it takes as a drafter."""
    found = []
    for name in list_shapes():
        shape = find_shape(name)
        size = sum(tensor.size for tensor in shape.tensors())
        if not name.startswith("tiny-") and size <= LARGEST_DRAFTER:
            formats = {tensor: fmt for tensor, _, fmt in shape.plan(DRAFTER_TYPE)}
            found.append((size, Drafter.of(name, shape.config, formats, None)))
    return tuple(found)


def _alike(a: str, b: str) -> int:
    """Letters that two names begin with alike."""
    return sum(1 for _ in takewhile(lambda pair: pair[0] == pair[1], zip(a, b, strict=False)))


def weights_bytes(
    config: ModelConfig, formats: Mapping[str, BlockFormat], cards: int = 1, depth: int | None = None
) -> int:
    """Bytes of a model's weights on the device; arguments and errors as for `held_weights`."""
    return sum(row.nbytes for row in held_weights(config, formats, cards, depth))


@dataclass(frozen=True)
class Need:
    """Bytes that a request needs on a card.

    Attributes
    ----------
    together : int
        With both models there all the time.
    by_turns : int
        Where the model that is not at work may leave for host memory, as it does within ``--vram``.
    cold : int or None
        Where experts of the target wait there besides, see `least_cold`.
    """

    together: int
    by_turns: int
    cold: int | None = None

    @property
    def least(self) -> int:
        """In whatever way takes least."""
        return self.by_turns if self.cold is None else min(self.by_turns, self.cold)


def need(
    target: ModelConfig,
    weights: int,
    drafter: Drafter | None,
    tokens: int,
    kv: str,
    keep: float = KEEP,
    stacks: Stacks = (),
    math: Math = Math.BF16,
) -> Need:
    """What a prompt of so many tokens and its answer need: read whole, or a share after a drafter has scored it.

    `stacks` are those of a mixture's experts, see `stack_bytes`; `math` is what the target's products are made in.

    Examples
    --------
    >>> config = find_shape("qwen3.6-27b").config
    >>> whole = need(config, 16_540_829_696, None, 131072, "q4_0")
    >>> whole.together == whole.by_turns, round(whole.together / 2**30, 1)
    (True, 21.4)
    """
    read = tokens if drafter is None else ceil(keep * tokens)
    held = weights + state_bytes(target) + kv_bytes(target, read + ANSWER, kv)
    reading = held + reading_bytes(target, read, math)
    cold = least_cold(target, weights, stacks, reading - weights)
    if drafter is None:
        return Need(reading, reading, cold)
    scoring = drafter.weights + scoring_bytes(drafter.config, tokens)
    together = max(reading + drafter.weights, held + scoring)
    return Need(together, max(reading, scoring), None if cold is None else max(cold, scoring))


def card_rows(
    target: ModelConfig,
    weights: int,
    drafters: Iterable[Drafter],
    kv: str,
    lengths: Iterable[int] = LENGTHS,
    stacks: Stacks = (),
) -> list[dict[str, Any]]:
    """For every card the longest prompt that it answers, in full and with each drafter.

    Returns
    -------
    list of dict
        ``card`` in GiB, ``kv``, ``full`` (tokens, or None where not even the shortest length fits), ``full_by_turns``
        (the same where experts may wait in host memory) and ``drafters``: name to ``together`` and ``by_turns``, tokens
        or None alike. Tokens are those of the prompt with its answer; in full they are tried up to the target's window.
    """
    lengths, rows = tuple(lengths), []

    def needs_of(drafter: Drafter | None, most: int) -> dict[int, Need]:
        return {n: need(target, weights, drafter, n - ANSWER, kv, stacks=stacks) for n in lengths if n <= most}

    whole = needs_of(None, target.context)
    pairs = {one.name: needs_of(one, max(lengths)) for one in drafters}
    for card in CARDS:
        room = (card << 30) - SYSTEM
        rows.append(
            {
                "card": card,
                "kv": kv,
                "full": _longest({n: one.together for n, one in whole.items()}, room),
                "full_by_turns": _longest({n: one.least for n, one in whole.items()}, room),
                "drafters": {
                    name: {
                        "together": _longest({n: one.together for n, one in needs.items()}, room),
                        "by_turns": _longest({n: one.least for n, one in needs.items()}, room),
                    }
                    for name, needs in pairs.items()
                },
            }
        )
    return rows


def _longest(needs: Mapping[int, int], room: int) -> int | None:
    return max((n for n, nbytes in needs.items() if nbytes <= room), default=None)


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
