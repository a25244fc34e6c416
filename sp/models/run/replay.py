"""Launches of a layer, recorded once in parts and queued again for the others, by one card or by each of several."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any, NamedTuple

from sp.arrays import Floats, Ints
from sp.kernels import debugging, import_cupy
from sp.kernels.repeats import Recording, Repeat, watched
from sp.kernels.scratch import Scratch
from sp.models.cache.carry import copy_over
from sp.models.cache.striped import StripedCache, Stripes
from sp.models.config import ModelConfig
from sp.models.layer.steps import Attend, Qkv, Step, dense_attention
from sp.models.network.model import Model
from sp.models.network.trunk import Trunk
from sp.models.run.chunked import checked_prompt
from sp.models.run.hooks import Hooks, Pace
from sp.models.run.layer_attention import ByEnergy, LayerAttention, Read, SparseAttention
from sp.models.run.layer_major import NARROW, Walk, chunk_on_device
from sp.ops.matmul.packed import PackedWeight
from sp.quant import Math


class Part(NamedTuple):
    """What comes before attention in a layer, or what comes after it."""

    kind: Any  # what parts have in common that can be repeated with each other's arrays; None of one that cannot
    arrays: list[Any]  # where its weights lie


class LayerParts(NamedTuple):
    """What a layer reads of its weights, before attention and after it."""

    enter: Part
    leave: Part


def parts_of(model: Model) -> list[LayerParts]:
    """All layers of a model; none where nothing can be repeated."""
    if model.device != "cuda" or model.cold is not None or debugging() or watched.get():
        return []
    return model.trunk.found(_parts_of)


def refusal(model: Model) -> str | None:
    """Which step of which layer cannot be repeated, so that each layer's is launched anew; None if all can be."""
    return "experts of some layers wait in host memory" if model.cold is not None else model.trunk.found(_refusal_of)


def _refusal_of(trunk: Trunk) -> str | None:
    for index, (mix, feed) in enumerate(trunk.layers):
        for step in (*mix, *feed):
            reads = step.reads()
            if reads is None:
                half = getattr(step, "mixer", None) or getattr(step, "ffn", step)
                return f"layer {index}: {type(half).__name__} does not say what it reads"
            if not all(isinstance(one, PackedWeight) for one in reads if hasattr(one, "format")):
                return f"layer {index}: its weights are not packed, as on the CPU"
            if isinstance(step, Attend) and step.mixer.spec.window is not None:
                return f"layer {index} attends in a window, others may not"
            if isinstance(step, Attend) and step.mixer.config.gated:
                return f"layer {index}: attention passes a gate"
    return None


def _parts_of(trunk: Trunk) -> list[LayerParts]:
    if any(block.spec.window is not None for block in trunk.blocks):
        return []  # attention is recorded in one layer for all
    found = []
    for block, ((first, *rest), feed) in zip(trunk.blocks, trunk.layers, strict=True):
        kind, attends = (block.spec.rope, block.spec.activation), isinstance(first, Qkv)
        enter, leave = ([first], [*rest[1:], *feed]) if attends else ([], [])
        found.append(LayerParts(_part(enter, "enter", *kind), _part(leave, "leave", *kind)))
    return found


def _part(steps: Sequence[Step], *side: Any) -> Part:
    """The part of some steps, on that side of attention of such a layer; where it is not known what they read, or
    there are none, it cannot be repeated."""
    reads = [step.reads() for step in steps]
    every = sorted((one for some in reads for one in some or ()), key=lambda one: not hasattr(one, "format"))
    packed = all(isinstance(one, PackedWeight) for one in every if hasattr(one, "format"))
    if not packed or not every or any(some is None for some in reads):
        return Part(None, [])
    kinds, arrays, together = list(side), list[Any](), dict[int, Any]()
    for one in every:
        made, kept = (one.format.name, one.math) if isinstance(one, PackedWeight) else (), getattr(one, "kept", None)
        kinds.append((*made, one.shape, kept and (kept.first, kept.rows.codes.shape)))
        arrays.append(one.data if isinstance(one, PackedWeight) else one)
        if kept:
            together[id(kept.rows)] = kept.rows
    return Part(tuple(kinds), arrays + [each for rows in together.values() for each in (rows.codes, rows.scales)])


Asked = tuple[Floats, Floats | None]  # queries and gates of the layer that is next to attend

MOST_VALUES = 36864 * 1024
"""Of the residual stream of the largest stripe whose launches are recorded: for larger ones the device takes longer
than the host. Of 32,768 tokens an eighth more: by so much stripes may be longer than equal parts of a prompt."""
WORTH = 3
"""Times that something must come to be recorded: that takes as long as planning it twice, and a repeat a fifth."""


@dataclass(frozen=True)
class _Attention:
    """Recorded attention: what it wrote, and the blocks that it lists, if it does: where they lie when repeated."""

    repeat: Repeat
    output: Floats
    read: Read | None

    def listed(self) -> list[Read]:
        """What was listed last, kept for later: the next layer's takes its place."""
        return [] if self.read is None else [self.read._replace(counts=_apart(self.read.counts))]


class Room(NamedTuple):
    """Memory for recorded attention, and for the rest of a layer. Apart, since a stripe's attention is recorded when
    the rest of another's is: what it wrote must not lie where that has its own arrays when it reads it."""

    attention: Scratch
    rest: Scratch


@contextmanager
def room_for(layers: list[LayerParts]) -> Iterator[Room | None]:
    """Room on the present stream, given back in the end, when its users are gone; none without layers."""
    if not layers:
        yield None
        return
    with Scratch() as attention, Scratch() as rest:
        yield Room(attention, rest)


class RepeatedLayers:
    """The launches of one stripe, layer by layer, each part of a layer recorded once and repeated in the others.

    Keys and values of two layers are held, in turn, and so are two arrays of queries. So attention is the same in every
    layer but for where these lie. What comes before it and what comes after it are so but for the weights, and also
    the same for every stripe of as many tokens but for where its stream, its queries and its pages lie.
    `walk`: with the cache of a reading in stripes. `stream`, float32 (tokens, hidden): of the stripe. `which`: of the
    cache's stripes. `layers`: of the model; see `parts_of`. `room`: memory for what launches make, see `room_for`; None
    only without `layers`. Stripes on one stream share it. `before`: of a stripe on the same stream that passes every
    layer before this one. `able`: whether launches are repeated. Among cards the last layer is then asked for as many
    queries as the others.
    """

    def __init__(
        self,
        walk: Walk,
        stream: Floats,
        which: int,
        layers: list[LayerParts],
        room: Room | None,
        before: RepeatedLayers | None = None,
    ) -> None:
        c, tokens = walk.model.config, len(stream)
        self.able = room is not None and may_repeat(c, walk.attend, tokens)
        self._walk, self._stream, self._which, self._layers, self._room = walk, stream, which, layers, room
        self._attention: _Attention | None = None
        self._parts, self._stripes = dict[Any, Repeat](), 1
        if before is not None and len(before._stream) == tokens:
            before._stripes = 2  # who find all that was recorded
            self._parts = before._parts
        shape = tokens, c.heads, c.head_dim
        self._queries = [import_cupy().empty(shape, "float16") for _ in range(2 if self.able else 0)]

    def queries(self, layer: int) -> Floats | None:
        """Where the queries of a layer go, if all layers are to find them there."""
        return self._queries[layer % 2] if self._queries else None

    def enter(self, layer: int) -> Asked:
        """What comes before attention in a layer, for all tokens of the stripe."""

        def make() -> Asked:
            return self._walk.enter(layer, self._stream, len(self._stream), tell=False, into=self.queries(layer))

        if not self.able:
            return make()
        cache: Any = self._walk.cache
        places = [self.queries(layer), cache.own_pages(layer, self._which), self._walk.positions]
        made: Asked | None = self._part(self._layers[layer].enter, layer, places, make)
        if made is not None:
            return made
        cache.appended(layer, len(self._stream))
        return self._queries[layer % 2], None

    def attend(self, layer: int, asked: Asked) -> list[Floats]:
        """Attention of a layer, alone in a list."""
        cache: Any = self._walk.cache
        known = self._attention
        if not self.able or (known is None and len(self._layers) - layer <= WORTH):
            return [self._walk.attention(layer, *asked)]
        assert self._room is not None
        arrays = [self.queries(layer), cache.all_pages(layer)]
        if known is not None:
            known.repeat([one.data.ptr for one in arrays])
            self._reads.setdefault(layer, []).extend(known.listed())
            return [known.output]
        output, repeat = self._recorded(self._room.attention, arrays, lambda: self._walk.attention(layer, *asked))
        if repeat is not None:
            reads = self._reads.get(layer, [])
            self._attention = _Attention(repeat, output, reads.pop() if reads else None)
            reads.extend(self._attention.listed())
        return [output]

    def leave(self, layer: int, attended: list[Floats]) -> None:
        """What comes after attention in a layer. `attended`: of `attend`; it is taken out where launches are made, so
        that nobody holds it for longer."""

        def make() -> None:
            self._walk.leave(layer, self._stream, attended)

        if self.able:
            self._part(self._layers[layer].leave, layer, attended, make)
        else:
            make()

    def _part(self, part: Part, layer: int, places: list[Any], make: Callable[[], Any]) -> Any:
        """What was made of a part of a layer; None where it was repeated."""
        known = self._parts.get(part.kind)
        if known is None and not self._comes_often(part.kind, layer):
            return make()
        arrays = [*part.arrays, self._stream, *places]
        if known is not None:
            known([one.data.ptr for one in arrays])
            return None
        assert self._room is not None
        made, repeat = self._recorded(self._room.rest, arrays, make)
        if repeat is not None:
            self._parts[part.kind] = repeat
        return made

    def _comes_often(self, kind: Any, layer: int) -> bool:
        """Whether it pays to record a part of such a kind in a layer."""
        coming = sum(kind in (one.enter.kind, one.leave.kind) for one in self._layers[layer:])
        return kind is not None and coming * self._stripes >= WORTH

    def _recorded(self, scratch: Scratch, arrays: list[Any], make: Callable[[], Any]) -> tuple[Any, Repeat | None]:
        """What is made, and what makes it again with other arrays; where that cannot be, nothing more is repeated."""
        recording = Recording(scratch)
        with recording.going_on():
            made = make()
        repeat = recording.repeat(arrays)
        self.able = repeat is not None
        return made, repeat

    @property
    def _reads(self) -> dict[int, list[Read]]:
        """What attention listed, layer by layer."""
        attend = self._walk.attend
        return attend.reads if isinstance(attend, SparseAttention) else {}


def _apart(array: Any) -> Any:
    """A copy by the present stream."""
    copy = import_cupy().empty(array.shape, array.dtype)
    copy_over(array, copy)
    return copy


def may_repeat(config: ModelConfig, attend: LayerAttention, tokens: int, most: int = MOST_VALUES) -> bool:
    """Whether it pays to repeat launches for so many tokens, and `attend` is known to launch kernels of `sp` and to do
    nothing else on the device, and the same in every layer."""
    known = type(attend) is SparseAttention and isinstance(attend.selector, ByEnergy)
    return pays(config, tokens, most) and (known or attend is dense_attention)


def pays(config: ModelConfig, tokens: float, most: int = MOST_VALUES) -> bool:
    """Whether all layers attend alike, without gates, and so many tokens are `short`."""
    alike = len(config.attention_layers) == config.layers and not config.gated and not any(config.windows)
    return alike and short(config, tokens, most)


def short(config: ModelConfig, tokens: float, most: int = MOST_VALUES) -> bool:
    """Whether the stream of so many tokens has at most `most` values, or is `NARROW`."""
    return tokens * config.hidden <= most or config.hidden <= NARROW


MOST_ALONE = {Math.BF16: 12288 * 1024, Math.FP8: 12288 * 1024, Math.INT8: 16384 * 1024}
"""Values of the residual stream of the longest prompt that is read so, by what products are made in: what is recorded
is planned before the device begins, which otherwise goes on beside. By a drafter of 0.6B an H100 with a slow host took
34, 49 and 60 ms for 2,048, 8,192 and 16,384 tokens in int8, and so takes 21, 27 and 43; in BF16 27, 40 and 43, and so
16, 26 and 45. An H200 took 43, 32 and 39 ms for 10,240, 12,288 and 16,384 in BF16, and so 29, 31 and 40."""


def read_repeated(
    model: Model,
    ids: Ints,
    positions: Ints,
    hooks: Hooks,
    *,
    attend: LayerAttention = dense_attention,
    rows: int = 1,
    depth: int | None = None,
) -> bool:
    """Read a prompt as `read_by_layer` does into a cache that goes away, if that pays and can be done.

    It pays where a host takes longer to plan the launches of a layer than the device takes for it: see `MOST_ALONE`.
    Keys, values and queries of two layers are held, and what a layer makes on its way: not under a limit of memory.
    What is read is the same to the bit.

    Parameters
    ----------
    model, ids, positions, hooks, attend, rows, depth
        See `read_by_layer`.

    Returns
    -------
    bool
        Whether it was read. If not, nothing was done.

    Examples
    --------
    >>> import numpy as np
    >>> from sp.models import Hooks, load_model
    >>> from sp.session.loaded import embedded
    >>> read_repeated(load_model(embedded("drafter")), np.arange(600), np.arange(600), Hooks())  # on the CPU
    False
    """
    if model.device != "cuda":
        return False
    n, layers = len(ids), model.config.layers
    depth = layers if depth is None else depth
    model.check_loaded(depth)
    most = MOST_ALONE[model.arithmetic.precision]
    if not (may_repeat(model.config, attend, n, most) and Stripes.fits(n, 1, 1) and (parts := parts_of(model))):
        return False
    if import_cupy().get_default_memory_pool().get_limit():
        return False
    chunk = chunk_on_device(model.config)
    ids, positions = checked_prompt(model, ids, positions, chunk, rows)
    made = {"device": model.device, "precision": model.arithmetic.attention}
    cache = StripedCache(model.config, Stripes(n, 1, 1), 0, **made)  # type: ignore[arg-type]
    how = model, model.place(positions), cache, attend, chunk, Pace(model, None)
    with room_for(parts) as room:
        x, walk, pace = model.embed(ids), Walk(*how), Pace(model, hooks.progress)
        repeated = RepeatedLayers(walk, x, 0, parts, room)
        for layer in range(depth):
            last = layer == depth - 1  # of it only what a hook is to see
            asked = walk.enter(layer, x, min(rows, n), tell=False) if last else repeated.enter(layer)
            if hooks.on_attention is not None:
                hooks.on_attention(layer, asked[0], cache)
            if not last:
                repeated.leave(layer, repeated.attend(layer, asked))
            cache.release(layer)
            pace.done(n)
        pace.done(n * (layers - depth), ahead=0)
        del repeated, asked  # nothing is left in the room
    return True
