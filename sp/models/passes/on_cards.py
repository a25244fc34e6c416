"""read_by_layer_on: a prompt that several cards read together, each of them two stripes of it."""

from __future__ import annotations

from collections.abc import Callable, Hashable, Sequence
from dataclasses import dataclass, field
from threading import Lock
from typing import NamedTuple
from weakref import ref

from sp.arrays import Floats, Ints
from sp.errors import ConfigError
from sp.models.cache.host_room import looked_at
from sp.models.cache.striped import Stripe, StripedCache, Stripes
from sp.models.model import Model
from sp.models.passes.chunk_on_cards import alike, tokens_together
from sp.models.passes.forward import Pace, Progress, checked_prompt
from sp.models.passes.last_stripe import pages_less
from sp.models.passes.layer_attention import LayerAttention, Read, SparseAttention, dense_attention
from sp.models.passes.layer_parts import LayerParts, parts_of
from sp.models.passes.layerwise import CHUNK_BY_LAYER, checked_depth, read_by_layer
from sp.models.passes.repeated_layers import Asked, RepeatedLayers, Room, room_for
from sp.models.passes.walk import Walk, Watch
from sp.ops.attention.key_blocks import BLOCK
from sp.parallel.group import Card, Group


class Cards(NamedTuple):
    """Where several cards can read a prompt together: see `read_by_layer_on`."""

    group: Group
    models: Sequence[Model]


def read_by_layer_on(
    group: Group,
    models: Sequence[Model],
    ids: Ints,
    positions: Ints,
    watch: Watch,
    *,
    attend: LayerAttention = dense_attention,
    rows: int = 1,
    depth: int | None = None,
    kv: str = "f16",
    rotate: bool | None = None,
    chunk: int | None = None,
    progress: Progress | None = None,
    like: Hashable | None = None,
) -> None:
    """Read a prompt as `read_by_layer` does, on all cards of a group.

    Every card reads the stripes that `Stripes` gives it. In each layer it computes and stores their keys and values,
    gathers those of the others, and attends for its own queries. Cards meet twice a layer, once for each stripe. What
    `watch` sees and what `attend` counts is what one card would show and count, within rounding; where attention is
    made in eight bits, stripes of less than `BYTE_QUERIES` are not. A prompt with less than a page a stripe is read by
    the first card alone.

    Parameters
    ----------
    group : Group
    models : sequence of Model
        The same one on each card, in the group's order; only layers with attention.
    ids, positions, attend, rows, depth, progress
        See `read_by_layer`. `progress` is told layer by layer, from any thread of the group, from one at a time.
    chunk : int, optional
        Tokens that a card projects together; see `tokens_together`.
    watch : Watch
        Called in the thread of card 0, with the queries of the last stripe or of `rows`, and all keys.
    kv, rotate
        See `Cache`.
    like : hashable, optional
        Names what `watch` does, if on the device it launches kernels of `sp` alone. A reading of the same kind that all
        cards have done to its end before waits for nothing at its first steps, see `Card.done_before`; by default each
        is the first of its kind.

    Raises
    ------
    ConfigError
        For recurrent layers, experts in host memory, or another number of models than of cards.
    PromptError
        As `read_by_layer`.
    SpError
        What stopped a card; see `Group.run`.

    References
    ----------
    Stripes in pairs as in "zig-zag" ring attention; all-gather of keys and values as in Dubey et al., "The Llama 3
    Herd of Models", 2024, section 3.3.2.

    Examples
    --------
    >>> import numpy as np
    >>> from sp.models import load_model
    >>> from sp.parallel.host import HostGroup
    >>> from sp.session.loaded import embedded
    >>> model, ids, seen = load_model(embedded("drafter")), np.arange(600), []
    >>> watch = lambda layer, q, cache: seen.append((layer, cache.stored(layer).tokens))
    >>> read_by_layer_on(HostGroup(2), [model] * 2, ids, ids, watch, depth=2)
    >>> seen
    [(0, 600), (1, 600)]
    """
    model = _checked(group, models)
    depth, alone = checked_depth(model, depth), CHUNK_BY_LAYER[model.device] if chunk is None else chunk
    ids, positions = checked_prompt(model, ids, positions, alone, rows)
    tail = max(rows, BLOCK)  # of a block of queries no part is left to attend densely where the whole would not
    if group.size == 1 or not Stripes.fits(len(ids), group.size, tail):
        cache = model.new_cache(len(ids), kv, rotate=rotate, layers=1)
        how = {"attend": attend, "rows": rows, "depth": depth, "chunk": alone, "progress": progress}
        return read_by_layer(model, ids, positions, cache, watch, **how)  # type: ignore[arg-type]
    stripes = Stripes(len(ids), group.size, tail, pages_less(model.config, attend, len(ids)))
    chunk = tokens_together(model) if chunk is None else chunk
    # Of lengths alike, for another may take other kernels, and NCCL another way.
    of_attention = type(attend), type(getattr(attend, "selector", None)), kv, rotate
    of_model = ref(model.placement), model.config.rope
    kind = None if like is None else (*of_model, *of_attention, len(ids).bit_length(), rows, like)
    known, tell = kind in group.done, _in_turn(progress)
    said = rows, depth, kv, rotate, chunk, tell, known, like is not None
    reading = _Reading(models, ids, positions, stripes, watch, attend, *said)
    for counted in group.run(reading.on):
        for layer, reads in counted.items():
            attend.reads.setdefault(layer, []).extend(reads)  # type: ignore[attr-defined]
    if kind is not None:
        group.done.add(kind)
    if progress is not None and depth < model.config.layers:
        progress(len(ids) * (model.config.layers - depth))
    return None


@dataclass(frozen=True)
class _Reading:
    """What the cards of one reading share; see `read_by_layer_on`."""

    models: Sequence[Model]
    ids: Ints
    positions: Ints
    stripes: Stripes
    watch: Watch
    attend: LayerAttention
    rows: int
    depth: int
    kv: str
    rotate: bool | None
    chunk: int
    progress: Progress | None
    known: bool
    queues: bool
    """Whether to watch is to queue launches, and to wait for nothing."""

    def on(self, card: Card) -> dict[int, list[Read]]:
        """One card's part; what its attention counted, on the host.

        While one stripe passes what is left of a layer and begins the next, the other stripe's keys and values of the
        next layer are on their way.
        """
        card.done_before(self.known)
        parts = parts_of(self.models[card.rank])
        with card.one_core(), room_for(parts) as room:
            return self._read(card, parts, room)

    def _read(self, card: Card, parts: list[LayerParts], room: Room | None) -> dict[int, list[Read]]:
        """See `on`; nothing is left in the room."""
        with card.turn():
            cache, halves = self._begun(card.rank, parts, room)
        pace = Pace(self.models[card.rank], self.progress)  # waits for the device, which nobody does whose turn it is
        for half in halves:
            with card.turn():
                self._enter(half, card, 0)
            half.gathered = cache.begin_stripe(0, half.which, card.begin_gather)
        for layer in range(self.depth):
            for half in halves:
                self._pass(half, card, layer)
            cache.release(layer)
            pace.done(sum(len(half.x) for half in halves))
        card.wait()
        pace.finish()
        return _counted([half.walk.attend for half in halves])

    def _begun(self, rank: int, parts: list[LayerParts], room: Room | None) -> tuple[StripedCache, list[_Half]]:
        """A card's cache, and both of its stripes before the first layer."""
        model, halves, repeated = self.models[rank], list[_Half](), None
        made = {"rotate": self.rotate, "device": model.device, "math": model.arithmetic.attention}
        cache = StripedCache(model.config, self.stripes, rank, self.kv, **made)  # type: ignore[arg-type]
        for which, stripe in enumerate(self.stripes.of(rank)):
            places, attend = slice(*stripe), _before_end(self.attend, self.stripes.tokens - stripe.stop)
            chunk, positions = alike(stripe.stop - stripe.start, self.chunk), model.place(self.positions[places])
            walk = Walk(model, positions, cache, attend, chunk, Pace(model, None))
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
        watched = half.which == 1 and card.rank == 0
        if watched and not self.queues:
            self.watch(layer, half.asked[0], half.cache)
        with card.turn():
            if watched and self.queues:
                self.watch(layer, half.asked[0], half.cache)
            if layer == self.depth - 1:
                return
            attended = half.repeated.attend(layer, half.asked)
            del half.asked  # queries, as large as the stripe, are gone before the feed-forward needs room
            half.repeated.leave(layer, attended)
            self._enter(half, card, layer + 1)
        half.gathered = half.cache.begin_stripe(layer + 1, half.which, card.begin_gather)


@dataclass
class _Half:
    """One of a card's two stripes on its way through the layers.

    Attributes
    ----------
    which : int
        0 for the first, 1 for the second.
    stripe, walk, repeated, cache
    x : float32 (tokens, hidden)
    asked : tuple
        Queries and gates of the layer that is next to attend.
    gathered : callable
        Makes what is queued wait for the keys and values of that layer.
    """

    which: int
    stripe: Stripe
    walk: Walk
    repeated: RepeatedLayers
    cache: StripedCache
    x: Floats
    asked: Asked = field(init=False)
    gathered: Callable[[], None] = field(init=False)


def _checked(group: Group, models: Sequence[Model]) -> Model:
    """The first of the models, once they and the group make sense together."""
    model = models[0]
    if len(models) != group.size or any(other.config != model.config for other in models):
        raise ConfigError(f"{group.size} cards need the same model each, not {len(models)}, or several kinds")
    if len(model.config.attention_layers) < model.config.layers:
        raise ConfigError("several cards read with attention layers alone; a recurrent state would go from one to one")
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


def _before_end(attend: LayerAttention, tokens: int) -> LayerAttention:
    """What attends for queries with so many tokens of the prompt behind them; a sparse one with nothing counted."""
    return attend.before_end(-(-tokens // BLOCK)) if isinstance(attend, SparseAttention) else attend


def _counted(attends: Sequence[LayerAttention]) -> dict[int, list[Read]]:
    """All that was counted, on the host: another card may not read it where it is."""
    sparse = [attend for attend in attends if isinstance(attend, SparseAttention)]
    reads = [(layer, read) for attend in sparse for layer, some in attend.reads.items() for read in some]
    found: dict[int, list[Read]] = {}
    for (layer, read), counts in zip(reads, looked_at([read.counts for _, read in reads]), strict=True):
        found.setdefault(layer, []).append(read._replace(counts=counts.copy()))
    return found
