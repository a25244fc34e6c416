"""RepeatedLayers: launches of a layer, recorded once in three parts and queued again for the others."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any, NamedTuple

from sp.arrays import Floats
from sp.kernels import import_cupy
from sp.kernels.repeats import Recording, Repeat
from sp.kernels.scratch import Scratch
from sp.models.config import ModelConfig
from sp.models.passes.layer_attention import ByEnergy, LayerAttention, Read, SparseAttention, dense_attention
from sp.models.passes.layer_parts import LayerParts, Part
from sp.models.passes.walk import Walk

Asked = tuple[Floats, Floats | None]
"""Queries and gates of the layer that is next to attend."""

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
    """Memory for recorded attention, and for the rest of a layer.

    Apart, since a stripe's attention is recorded when the rest of another's is: what it wrote must not lie where that
    has its own arrays when it reads it.
    """

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

    Parameters
    ----------
    walk : Walk
        With the cache of a reading in stripes.
    stream : float32 (tokens, hidden)
        Of the stripe.
    which : int
        Of the cache's stripes.
    layers : list of LayerParts
        Of the model; see `parts_of`.
    room : Room or None
        Memory for what launches make, see `room_for`; None only without `layers`. Stripes on one stream share it.
    before : RepeatedLayers, optional
        Of a stripe on the same stream that passes every layer before this one.

    Attributes
    ----------
    able : bool
        Whether launches are repeated. Among cards the last layer is then asked for as many queries as the others.
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
            return [self._walk.attend(cache, layer, *asked)]
        assert self._room is not None
        arrays = [self.queries(layer), cache.all_pages(layer)]
        if known is not None:
            known.repeat([one.data.ptr for one in arrays])
            self._reads.setdefault(layer, []).extend(known.listed())
            return [known.output]
        output, repeat = self._recorded(self._room.attention, arrays, lambda: self._walk.attend(cache, layer, *asked))
        if repeat is not None:
            reads = self._reads.get(layer, [])
            self._attention = _Attention(repeat, output, reads.pop() if reads else None)
            reads.extend(self._attention.listed())
        return [output]

    def leave(self, layer: int, attended: list[Floats]) -> None:
        """What comes after attention in a layer.

        Parameters
        ----------
        layer : int
        attended : list
            Of `attend`; it is taken out where launches are made, so that nobody holds it for longer.
        """

        def make() -> None:
            self._walk.leave(layer, self._stream, attended.pop())

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
    """A copy by the present stream; CuPy's `copy` launches a kernel for it, which takes the host longer."""
    cupy = import_cupy()
    copy, runtime = cupy.empty(array.shape, array.dtype), cupy.cuda.runtime
    stream = cupy.cuda.get_current_stream().ptr
    runtime.memcpyAsync(copy.data.ptr, array.data.ptr, array.nbytes, runtime.memcpyDeviceToDevice, stream)
    return copy


def may_repeat(config: ModelConfig, attend: LayerAttention, tokens: int, most: int = MOST_VALUES) -> bool:
    """Whether it pays to repeat launches for so many tokens, and all that is done is known to be launches."""
    return pays(config, tokens, most) and _is_known(attend)


def pays(config: ModelConfig, tokens: float, most: int = MOST_VALUES) -> bool:
    """Whether all layers attend, without gates, and the stream of so many tokens has no more values than `most`."""
    attends = len(config.attention_layers) == config.layers and not config.gated
    return attends and tokens * config.hidden <= most


def _is_known(attend: Any) -> bool:
    """Whether it launches kernels of `sp` and does nothing else on the device, and the same in every layer."""
    return attend is dense_attention or (type(attend) is SparseAttention and isinstance(attend.selector, ByEnergy))
