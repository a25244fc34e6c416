"""What one of several cards does of a drafter's reading or a target's pass, and what the others send it meanwhile."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import replace
from math import ceil
from statistics import NormalDist

from sp.models.config import ModelConfig
from sp.models.layers.share import Share
from sp.models.passes.chunk_on_cards import MOST_TOGETHER, alike
from sp.models.passes.forward import chunk_tokens
from sp.models.passes.layerwise import CHUNK_BY_LAYER
from sp.models.passes.repeated_layers import MOST_VALUES, pays
from sp.models.passes.repeated_reading import MOST_ALONE
from sp.models.timing.work import Weights, Work

STRIPES = 2
"""Parts of a prompt that each card reads, see `sp.models.cache.striped.Stripes`."""
ATTENTION = ("attention", "sparse", "attention int8")
OF_PAIRS = (*ATTENTION, "select")
"""Kinds that are launched once for every stripe of a layer."""


SHORT_S, LONG_S = (6.6e-6, 0.6e-6), (8.4e-6, 3.4e-6)
"""Of an all-reduce, and of each step round its ring, as NCCL 2.28 reckons over NVLink (``src/graph/tuning.cc``): by
protocol LL, half of whose bytes are flags, and by Simple."""
RECORDED, REPEATED = 3.25, 0.08
"""What the host takes for launches that it records, and for those that it repeats, over what it takes where it plans
them alone; chosen with `sp.bench.predicted.fit.LAUNCH_US`."""

NODE_S = 1.2e-6
"""Seconds in which a host begins one of a graph's launches, one card's graph after the other's: 2.9 ms for the 2,354 of
6,532 tokens on four cards, as above."""


def striped(work: Iterable[Work], tokens: int, cards: int) -> list[Work]:
    """One card's part of a scoring that `cards` of them do together.

    The first card looks at all keys, and has that much less of all else: see `sp.models.passes.last_stripe`. Each card
    rounds for itself all keys and values that its two stripes see: those up to their ends, which are together the
    prompt and one stripe.

    Examples
    --------
    >>> whole = [Work("sparse", 8e12, 0.0, 27, 1e9), Work("importance", 0.0, 7e9, 112)]
    >>> striped(whole, 131072, 4)[0]
    Work(kind='sparse', flops=2000000000000.0, nbytes=0.0, launches=54, exponentials=250000000.0, products=(), blocks=0)
    >>> striped(whole, 131072, 4)[1]
    Work(kind='importance', flops=0.0, nbytes=1750000000.0, launches=112, exponentials=0.0, products=(), blocks=0)
    """
    stripe = tokens / (STRIPES * cards)
    runs = STRIPES * ceil(stripe / alike(ceil(stripe), MOST_TOGETHER)) / ceil(tokens / CHUNK_BY_LAYER["cuda"])
    found = []
    for one in work:
        if one.kind == "importance":
            found.append(replace(one, nbytes=one.nbytes / cards))
        elif one.kind == "rounding":
            found.append(replace(one, nbytes=one.nbytes * (1 + stripe / tokens), launches=STRIPES * one.launches))
        else:
            parts = one.flops / cards, one.nbytes / cards
            launches = round(one.launches * (STRIPES if one.kind in OF_PAIRS else runs))
            found.append(Work(one.kind, *parts, launches, one.exponentials / cards))
    return found


def halved(work: Iterable[Work]) -> list[Work]:
    """What is read in two parts, each of which is added up while the other is computed: twice as many launches."""
    found = []
    for one in work:
        parts = [(each._replace(tokens=-(-each.tokens // 2)), 2 * count) for each, count in one.products]
        found.append(replace(one, launches=2 * one.launches, products=tuple(parts)))
    return found


def repeats(drafter: Weights, tokens: int, cards: int) -> bool:
    """Whether the launches of a drafter's layer are planned once and repeated in others; of short stripes alone.

    >>> drafter = Weights.of_shape("qwen3-0.6b", "bf16")
    >>> repeats(drafter, 131072, 1), repeats(drafter, 131072, 4), repeats(drafter, 8192, 1)
    (False, True, True)
    """
    if cards == 1:
        return pays(drafter.config, tokens, MOST_ALONE[drafter.rounded.math])
    return pays(drafter.config, tokens / (STRIPES * cards), MOST_VALUES)


def begun(work: Iterable[Work], config: ModelConfig, alone: int, cards: int) -> float:
    """Launches that would take the host, were they planned alone, as long as all of the layers that it records in.

    Attention is recorded in the first layer, for each stripe; what is before and after it in the first layer of its
    kind, and once for all stripes of a card, which the first `alone` layers are of another kind than the others. One
    card plans these, and what comes before its last attention.

    Parameters
    ----------
    work : iterable of Work
        Of one card, see `striped`.
    config : ModelConfig
    alone, cards : int

    Examples
    --------
    >>> from sp.models.synthetic.shapes import find_shape
    >>> work = [Work("sparse", 0.0, 0.0, 27 * 2), Work("traffic", 0.0, 0.0, 27 * 20)]
    >>> [round(begun(work, find_shape("qwen3-0.6b").config, alone, 4), 1) for alone in (0, 2)]  # 2 and 20 a layer
    [39.8, 75.0]
    """
    layers, in_attention = config.layers - 1, (*OF_PAIRS, "rounding")
    attention = sum(one.launches for one in work if one.kind in in_attention) / layers
    others = sum(one.launches for one in work if one.kind not in (*in_attention, "importance")) / layers
    recorded, planned, last = attention + others, alone * others, others / 2
    if cards > 1:
        recorded, planned, last = attention + (1 + (alone > 0)) * others / STRIPES, 0.0, 0.0
    repeated = (alone + 1) * (attention + others) - recorded - planned
    return RECORDED * recorded + planned + last + REPEATED * repeated


def uneven(cards: int) -> float:
    """Of a layer's attention, by how much the largest stripes are longer than a card's own two.

    Of the ``2 cards`` stripes of a prompt the i-th has ``2 i + 1`` of ``(2 cards)²`` parts of causal attention. A card
    has the i-th of the first half and the i-th last, together ``4 cards`` parts. Were all to wait for the last of them
    after each half, they would take ``2 cards - 1`` and ``4 cards - 1`` parts instead.

    >>> uneven(1), uneven(2), uneven(4)
    (0.0, 0.125, 0.09375)
    """
    return (2 * cards - 2) / (STRIPES * cards) ** 2


def last_of(cards: int) -> float:
    """How long cards wait for the last of so many, over how long they wait for the later of two.

    As the largest of so many normal deviations lies above their mean: Blom, "Statistical Estimates and Transformed
    Beta-Variables", 1958.

    >>> last_of(2), round(last_of(4), 2), round(last_of(8), 2)
    (1.0, 1.78, 2.43)
    """

    def largest(count: int) -> float:
        return NormalDist().inv_cdf((count - 0.375) / (count + 0.25))

    return largest(cards) / largest(2)


def gathered(config: ModelConfig, tokens: int, cards: int) -> float:
    """Bytes of keys and values, in 16 bits, that each of several cards receives while a drafter reads.

    >>> from sp.models.synthetic.shapes import find_shape
    >>> round(gathered(find_shape("qwen3-0.6b").config, 131072, 2) / 28 / 1e9, 2)
    0.27
    """
    return len(config.attention_layers) * tokens * 2 * config.kv_heads * config.head_dim * 2 * (cards - 1) / cards


def share_of(model: Weights, cards: int) -> Weights:
    """A target as one of several cards holds it; ConfigError where they cannot share it.

    >>> share_of(Weights.of_shape("qwen3.6-27b", "q4_k_m"), 4).config.heads
    6
    """
    if cards == 1:
        return model
    return replace(model, config=Share(0, cards).config(model.config), nbytes=model.nbytes // cards)


def sums(model: Weights, tokens: int) -> int:
    """All-reduces of a pass: two a layer and chunk.

    >>> sums(Weights.of_shape("qwen3.6-27b", "q4_k_m"), 8193)
    256
    """
    return 2 * model.config.layers * ceil(tokens / chunk_tokens("cuda", model.rounded.math))


def graphs_begun(model: Weights, tokens: int, launches: float, cards: int) -> float:
    """Seconds for which the first of several cards waits at its first sum: until the others' graphs have begun, too."""
    return (cards - 1) * (launches + sums(model, tokens)) * NODE_S


def sum_time(cards: int) -> float:
    """What an all-reduce takes beside its bytes, over what it takes between two cards, where it is short.

    >>> sum_time(2), round(sum_time(4), 2)
    (1.0, 1.31)
    """
    return _round(SHORT_S, cards) / _round(SHORT_S, 2)


def longer(cards: int, bytes_s: float) -> float:
    """Seconds by which an all-reduce takes longer than a short one and its bytes, which take `bytes_s`.

    NCCL takes the protocol that is done sooner: twice the bytes, or more for each step.

    >>> longer(4, 1e-6), round(longer(2, 1e-3) * 1e6, 1), round(longer(4, 1e-3) * 1e6, 1)
    (1e-06, 7.4, 18.6)
    """
    return min(bytes_s, _round(LONG_S, cards) - _round(SHORT_S, cards))


def _round(protocol: tuple[float, float], cards: int) -> float:
    """Seconds for the ``2 (cards - 1)`` steps of a ring."""
    start, step = protocol
    return start + 2 * (cards - 1) * step


def summed(config: ModelConfig, tokens: int, cards: int) -> float:
    """Bytes that each of several cards receives in the all-reduces of a pass, when NCCL goes round in a ring.

    >>> from sp.models.synthetic.shapes import find_shape
    >>> round(summed(find_shape("qwen3.6-27b").config, 8192, 2) / 1e9, 1)
    21.5
    """
    return 2 * config.layers * 4.0 * tokens * config.hidden * 2 * (cards - 1) / cards
