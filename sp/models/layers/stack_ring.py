"""StackRing: experts of layers that wait in host memory come to the device ahead of the layer that needs all of them.

Two layers have room. While one is read the next one is copied, on a stream of its own: it waits until the products that
read its place before are done, and whoever reads it waits for the copy. Layers come round, so the last of a prompt's
chunk brings the first of the next one.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

import numpy as np

from sp.kernels import import_cupy
from sp.models.layers.pinned_weight import PinnedWeight
from sp.ops.matmul.packed import PackedWeight

ALIGN = 512
"""Of every stack in a place, as the device's own allocations are."""
PLACES = 2


@dataclass(eq=False)  # told apart by which it is: arrays have no truth
class _Place:
    """Room of one layer.

    Attributes
    ----------
    buffer : cupy uint8 (nbytes,)
    read : event
        All that was read of what lies here is read; at first the last use of the memory.
    layer : int or None
        Whose stacks lie here, or come.
    arrived : event or None
        They are here.
    """

    buffer: Any
    read: Any
    layer: int | None = None
    arrived: Any = None


class StackRing:
    """Room on the device for the stacks of two layers, taken by `open` or at the first use.

    Parameters
    ----------
    stacks : mapping of int to sequence of PinnedWeight
        By layer.
    ahead : sequence of int
        Layers that are copied before they are asked for, in the order in which a prompt meets them. Not the last one of
        a model, of which a prompt needs one row.
    """

    def __init__(self, stacks: Mapping[int, Sequence[PinnedWeight]], ahead: Sequence[int]) -> None:
        self._stacks = {layer: tuple(weights) for layer, weights in stacks.items()}
        self._ahead = tuple(ahead)
        self._places: list[_Place] = []  # the one lent last stands last
        self._stream: Any = None

    @property
    def layers(self) -> tuple[int, ...]:
        """Those that wait."""
        return tuple(self._stacks)

    @property
    def host_bytes(self) -> int:
        """Of all stacks, in pinned memory."""
        return sum(weight.nbytes for weights in self._stacks.values() for weight in weights)

    @property
    def room(self) -> int:
        """Bytes of both places, whether they are taken or not."""
        return ring_bytes([[weight.nbytes for weight in weights] for weights in self._stacks.values()])

    @contextmanager
    def lent(self, layer: int) -> Iterator[tuple[Any, ...]]:
        """The stacks of a layer as `PackedWeight` on the device, for work given to the current stream inside.

        Called again for the same layer it copies nothing. The layer after it is on its way when this is entered.
        """
        self.open()
        place = self._fetched(layer)
        self._places.remove(place)
        self._places.append(place)
        if (following := self._following(layer)) != layer:
            self._fetched(following)
        current = import_cupy().cuda.get_current_stream()
        current.wait_event(place.arrived)
        try:
            yield self._over(layer, place.buffer)
        finally:
            place.read = current.record()

    def drop(self) -> bool:
        """Let go of the device memory once nothing reads it; whether there was any."""
        if not self._places:
            return False
        import_cupy().cuda.get_current_stream().wait_event(self._stream.record())
        self._places.clear()
        return True

    def open(self) -> None:
        """Take the room, if it is not there; early, for then it lies in one piece beside the weights."""
        if self._places:
            return
        cupy = import_cupy()
        if self._stream is None:
            self._stream = cupy.cuda.Stream(non_blocking=True)
        count = min(PLACES, len(self._stacks))
        buffers = [cupy.empty(self.room // count, np.uint8) for _ in range(count)]
        before = cupy.cuda.get_current_stream().record()  # the memory may be in use by what was launched before
        self._places = [_Place(buffer, before) for buffer in buffers]

    def _following(self, layer: int) -> int:
        """Who is met next: the layer itself if there is no other."""
        at = self._ahead.index(layer) + 1 if layer in self._ahead else 0
        return self._ahead[at % len(self._ahead)] if self._ahead else layer

    def _fetched(self, layer: int) -> _Place:
        """Where a layer's stacks are or, from now on, come: the place lent longest ago."""
        for place in self._places:
            if place.layer == layer:
                return place
        place, runtime = self._places[0], import_cupy().cuda.runtime
        self._stream.wait_event(place.read)
        for source, to in zip(self._stacks[layer], self._over(layer, place.buffer), strict=True):
            pointers = to.data.data.ptr, source.data.data.ptr
            runtime.memcpyAsync(*pointers, source.nbytes, runtime.memcpyHostToDevice, self._stream.ptr)
        place.layer, place.arrived = layer, self._stream.record()
        return place

    def _over(self, layer: int, buffer: Any) -> tuple[PackedWeight, ...]:
        """The stacks of a layer as weights over a buffer."""
        found, at = [], 0
        for w in self._stacks[layer]:
            found.append(PackedWeight(w.name, w.format, w.shape, buffer[at : at + w.nbytes]))
            at += rounded(w.nbytes)
        return tuple(found)


def ring_bytes(layers: Sequence[Sequence[int]]) -> int:
    """Bytes of a ring for layers of stacks of such sizes: two of the largest, one if there is but one.

    >>> ring_bytes([[512, 100], [512, 600]]), ring_bytes([[512, 100]]), ring_bytes([])
    (3072, 1024, 0)
    """
    places = min(PLACES, len(layers))
    return places * max((sum(rounded(nbytes) for nbytes in sizes) for sizes in layers), default=0)


def rounded(nbytes: int) -> int:
    """Up to a multiple of `ALIGN`."""
    return -(-nbytes // ALIGN) * ALIGN
