"""read_by_layer_on: a prompt that several cards read together, each of them two stripes of it."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, replace
from functools import lru_cache
from threading import Lock
from typing import Any, NamedTuple
from weakref import ref

from sp.arrays import Floats, Ints
from sp.errors import ConfigError
from sp.models.cache.striped import Stripe, StripedCache, Stripes
from sp.models.config import ModelConfig
from sp.models.layer.steps import dense_attention
from sp.models.network.cost import prefill_cost
from sp.models.network.model import Model
from sp.models.run.chunked import checked_prompt
from sp.models.run.hooks import Hooks, Pace, Progress, looked_at
from sp.models.run.layer_attention import ByEnergy, LayerAttention, Read, SparseAttention
from sp.models.run.layer_major import CHUNK_BY_LAYER, Walk, read_by_layer
from sp.models.run.replay import Asked, LayerParts, RepeatedLayers, Room, parts_of, room_for
from sp.ops.attention.key_blocks import BLOCK
from sp.ops.attention.kv_pages import PAGE_TOKENS
from sp.ops.sparse.expected_density import expected_density
from sp.parallel.group import Card, ParallelGroup

MOST_TOGETHER = 65536  # most tokens that a card of several projects together
TOGETHER_BYTES = 1 << 30  # what the widest product of that many may take


def tokens_together(model: Model) -> int:
    """Tokens that each of several cards projects together. The threads of all cards take turns at Python for every
    launch, so there are as few launches as memory allows: on the device twice as many tokens as one card takes and
    twice as many again, while the widest product fits `TOGETHER_BYTES`. Experts sort tokens, which takes more."""
    config, found = model.config, CHUNK_BY_LAYER[model.device]
    if model.device == "cuda" and config.experts is None:
        while found < MOST_TOGETHER and 2 * found * _widest(config) <= TOGETHER_BYTES:
            found *= 2
    return found


def alike(tokens: int, most: int) -> int:
    """Of how many tokens chunks of a stripe are, equally long ones of `most` or an eighth more. A few tokens that are
    left over would take all launches of a layer.

    >>> alike(67_584, 65_536), alike(133_000, 65_536), alike(150_000, 65_536), alike(1000, 65_536)
    (67584, 66560, 50048, 1024)
    """
    parts = -(-8 * tokens // (9 * most))
    return -(-tokens // (parts * PAGE_TOKENS)) * PAGE_TOKENS


def _widest(config: ModelConfig) -> int:
    """Bytes of a token in 16 bits: normed, and as queries, gates, keys and values or in a feed-forward."""
    heads = config.heads * (2 if config.gated else 1) + 2 * config.kv_heads
    return 2 * (config.hidden + max(*config.ffn, heads * config.head_dim))


LOOKED = 700
"""Operations for which a card has time while it looks at a byte of keys for the last queries: of 256K tokens 0.44 ms a
layer on an H200, which does 860 Tflop/s of a drafter's work (results/nvidia-h200/notes-cards.md)."""


def pages_less(config: ModelConfig, attend: LayerAttention, tokens: int) -> int:
    """Pages that the last stripe has less than others, so that all cards take as long. Besides its tokens the card that
    reads it looks at all keys of every layer for the last queries, and where a selector says so it attends for the last
    blocks of queries to all keys in place of a share of them. `config`: of the drafter. `attend`: the share of another
    selector than those of `sp.ops.sparse` that go by energies counts as everything."""
    selector = attend.selector if isinstance(attend, SparseAttention) else None
    known = selector if isinstance(selector, ByEnergy) else None
    return _pages_less(config, known, tokens)


@lru_cache(64)
def _pages_less(config: ModelConfig, selector: ByEnergy | None, tokens: int) -> int:
    share = 1.0 if selector is None else expected_density(selector, tokens)
    cost, whole = prefill_cost(config, tokens, share), prefill_cost(config, tokens).attention
    at_end = (cost.weights + 2 * cost.attention) / tokens  # of a token there; a token in the middle sees half as much
    dense = 0.0 if selector is None else selector.last_n * BLOCK * (1 - share) * 2 * whole / tokens
    keys = 2.0 * len(config.attention_layers) * config.kv_heads * config.head_dim * tokens
    return int((dense + LOOKED * keys) / at_end / BLOCK)


class Cards(NamedTuple):
    """Where several cards can read a prompt together: see `read_by_layer_on`."""

    group: ParallelGroup
    models: Sequence[Model]


def read_by_layer_on(
    group: ParallelGroup,
    models: Sequence[Model],
    ids: Ints,
    positions: Ints,
    hooks: Hooks,
    *,
    attend: LayerAttention = dense_attention,
    rows: int = 1,
    depth: int | None = None,
    kv: str = "f16",
    rotate: bool | None = None,
    chunk: int | None = None,
) -> None:
    """Read a prompt as `read_by_layer` does, on all cards of a group.

    Every card reads the stripes that `Stripes` gives it. In each layer it computes and stores their keys and values,
    gathers those of the others, and attends for its own queries. Cards meet twice a layer, once for each stripe. What
    a hook sees and what `attend` counts is what one card would show and count, within rounding; where attention is
    made in 8 bits, stripes of less than `BYTE_QUERIES` are not. A prompt with less than a page a stripe is read by
    the first card alone.

    Parameters
    ----------
    models : sequence of Model
        The same one on each card, in the group's order; only layers with attention.
    ids, positions, attend, rows, depth
        See `read_by_layer`.
    chunk : int, optional
        Tokens that a card projects together; see `tokens_together`.
    hooks : Hooks
        `on_attention` is called in the thread of card 0, with queries of the last stripe or of `rows`, and all keys.
        A reading of the same kind, by what it `queues`, that all cards have done to its end before waits for nothing at
        its first steps, see `Card.set_warm`; by default each is the first of its kind. `progress` is told layer by
        layer, from any thread of the group, from one at a time.
    kv, rotate
        See `Cache`.

    Raises
    ------
    ConfigError
        For recurrent layers, experts in host memory, or another number of models than of cards.
    PromptError
        As `read_by_layer`.
    SpError
        What stopped a card; see `ParallelGroup.run`.

    References
    ----------
    Stripes in pairs as in "zig-zag" ring attention; all-gather of keys and values as in Dubey et al., "The Llama 3
    Herd of Models", 2024, section 3.3.2.

    Examples
    --------
    >>> import numpy as np
    >>> from sp.models import Hooks, load_model
    >>> from sp.parallel.host import HostGroup
    >>> from sp.session.loaded import embedded
    >>> model, ids, seen = load_model(embedded("drafter")), np.arange(600), []
    >>> hooks = Hooks(on_attention=lambda layer, q, cache: seen.append((layer, cache.stored(layer).tokens)))
    >>> read_by_layer_on(HostGroup(2), [model] * 2, ids, ids, hooks, depth=2)
    >>> seen
    [(0, 600), (1, 600)]
    """
    model = _checked(group, models)
    depth = model.config.layers if depth is None else depth
    model.check_loaded(depth)
    alone = CHUNK_BY_LAYER[model.device] if chunk is None else chunk
    ids, positions = checked_prompt(model, ids, positions, alone, rows)
    tail = max(rows, BLOCK)  # of a block of queries no part is left to attend densely where the whole would not
    if group.size == 1 or not Stripes.fits(len(ids), group.size, tail):
        cache = model.new_cache(len(ids), kv, rotate=rotate, layers=1)
        how = {"attend": attend, "rows": rows, "depth": depth, "chunk": alone}
        return read_by_layer(model, ids, positions, cache, hooks, **how)  # type: ignore[arg-type]
    stripes = Stripes(len(ids), group.size, tail, pages_less(model.config, attend, len(ids)))
    chunk = tokens_together(model) if chunk is None else chunk
    # Of lengths alike, for another may take other kernels, and NCCL another way.
    of_attention = type(attend), type(getattr(attend, "selector", None)), kv, rotate
    of_model = ref(model.placement), model.config.rope
    kind = None if hooks.queues is None else (*of_model, *of_attention, len(ids).bit_length(), rows, hooks.queues)
    known, told = kind in group.completed, replace(hooks, progress=_in_turn(hooks.progress))
    reading = _Reading(models, ids, positions, stripes, told, attend, rows, depth, kv, rotate, chunk, known)
    for counted in group.run(reading.on):
        for layer, reads in counted.items():
            attend.reads.setdefault(layer, []).extend(reads)  # type: ignore[attr-defined]
    if kind is not None:
        group.completed.add(kind)
    if hooks.progress is not None and depth < model.config.layers:
        hooks.progress(len(ids) * (model.config.layers - depth))
    return None


@dataclass(frozen=True)
class _Reading:
    """What the cards of one reading share; see `read_by_layer_on`."""

    models: Sequence[Model]
    ids: Ints
    positions: Ints
    stripes: Stripes
    hooks: Hooks
    attend: LayerAttention
    rows: int
    depth: int
    kv: str
    rotate: bool | None
    chunk: int
    known: bool

    def on(self, card: Card) -> dict[int, list[Read]]:
        """One card's part; what its attention counted, on the host. While one stripe passes what is left of a layer and
        begins the next, the other stripe's keys and values of the next layer are on their way."""
        card.set_warm(self.known)
        parts = parts_of(self.models[card.rank])
        with card.on_shared_cpu(), room_for(parts) as room:
            return self._read(card, parts, room)

    def _read(self, card: Card, parts: list[LayerParts], room: Room | None) -> dict[int, list[Read]]:
        """See `on`; nothing is left in the room."""
        with card.launch_lock():
            cache, halves = self._begun(card.rank, parts, room)
        pace = Pace(self.models[card.rank], self.hooks.progress)  # which waits: not in a turn
        for half in halves:
            with card.launch_lock():
                self._enter(half, card, 0)
            half.gathered = cache.begin_stripe(0, half.which, card.begin_gather)
        for layer in range(self.depth):
            for half in halves:
                self._pass(half, card, layer)
            cache.release(layer)
            pace.done(sum(len(half.x) for half in halves))
        card.wait()
        pace.done(0, ahead=0)
        return _counted([half.walk.attend for half in halves])

    def _begun(self, rank: int, parts: list[LayerParts], room: Room | None) -> tuple[StripedCache, list[_Half]]:
        """A card's cache, and both of its stripes before the first layer."""
        model, halves, repeated = self.models[rank], list[_Half](), None
        made: dict[str, Any] = {"rotate": self.rotate, "device": model.device, "precision": model.arithmetic.attention}
        cache = StripedCache(model.config, self.stripes, rank, self.kv, bases=model.bases_for(self.kv), **made)
        if len(cache.places):  # a window of the second stripe may begin on another card
            cache.places[: len(self.positions)] = model.place(self.positions)
        for which, stripe in enumerate(self.stripes.of(rank)):
            places, attend, behind = slice(*stripe), self.attend, self.stripes.tokens - stripe.stop
            if isinstance(attend, SparseAttention):  # with nothing counted yet
                attend = attend.before_end(-(-behind // BLOCK))
            chunk, positions = alike(stripe.stop - stripe.start, self.chunk), model.place(self.positions[places])
            walk = Walk(model, positions, cache, attend, chunk, Pace(model, None), self.hooks)
            x = model.embed(self.ids[places])
            repeated = RepeatedLayers(walk, x, which, parts, room, repeated)
            halves.append(_Half(which, stripe, walk, repeated, cache, x))
        return cache, halves

    def _enter(self, half: _Half, card: Card, layer: int) -> None:
        """What comes before attention in a layer."""
        wanted = self.rows if half.which == 1 and card.rank == 0 else 0
        rows = len(half.x) if layer < self.depth - 1 or half.repeated.able else wanted
        if rows == len(half.x):
            half.asked = half.repeated.enter(layer)
        else:
            half.asked = half.walk.enter(layer, half.x, rows, tell=False)

    def _pass(self, half: _Half, card: Card, layer: int) -> None:
        """Attention and what comes after it in a layer, and what comes before it in the next one, with its gather."""
        half.gathered()
        half.cache.look(half.stripe)
        show, waits = self.hooks.on_attention if half.which == 1 and card.rank == 0 else None, self.hooks.queues is None
        if show is not None and waits:
            show(layer, half.asked[0], half.cache)
        with card.launch_lock():
            if show is not None and not waits:
                show(layer, half.asked[0], half.cache)
            if layer == self.depth - 1:
                return
            attended = half.repeated.attend(layer, half.asked)
            del half.asked  # queries, as large as the stripe, are gone before the feed-forward needs room
            half.repeated.leave(layer, attended)
            self._enter(half, card, layer + 1)
        half.gathered = half.cache.begin_stripe(layer + 1, half.which, card.begin_gather)


@dataclass
class _Half:
    """One of a card's two stripes on its way through the layers."""

    which: int  # 0 for the first, 1 for the second
    stripe: Stripe
    walk: Walk
    repeated: RepeatedLayers
    cache: StripedCache
    x: Floats  # float32 (tokens, hidden)
    asked: Asked = field(init=False)  # queries and gates of the layer that is next to attend
    gathered: Callable[[], None] = field(init=False)  # makes what is queued wait for the keys and values of that layer


def _checked(group: ParallelGroup, models: Sequence[Model]) -> Model:
    """The first of the models, once they and the group make sense together."""
    model = models[0]
    if len(models) != group.size or any(other.config != model.config for other in models):
        raise ConfigError(f"{group.size} cards need the same model each, not {len(models)}, or several kinds")
    if len(model.config.attention_layers) < model.config.layers:
        raise ConfigError("several cards read with attention layers alone; a recurrent state would go from one to one")
    if len(model.config.head_sizes) > 1:
        raise ConfigError("several cards read models whose layers all have heads of one size; use one card")
    if model.cold is not None:
        raise ConfigError("several cards read only models that lie wholly on each; here experts wait in host memory")
    return model


def _in_turn(progress: Progress | None) -> Progress | None:
    """The same for several threads."""
    if progress is None:
        return None
    lock = Lock()

    def tell(amount: int) -> None:
        with lock:
            progress(amount)

    return tell


def _counted(attends: Sequence[LayerAttention]) -> dict[int, list[Read]]:
    """All that was counted, on the host: another card may not read it where it is."""
    sparse = [attend for attend in attends if isinstance(attend, SparseAttention)]
    reads = [(layer, read) for attend in sparse for layer, some in attend.reads.items() for read in some]
    found: dict[int, list[Read]] = {}
    for (layer, read), counts in zip(reads, looked_at([read.counts for _, read in reads]), strict=True):
        found.setdefault(layer, []).append(read._replace(counts=counts.copy()))
    return found
