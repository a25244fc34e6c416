"""ColdExperts: layers whose experts wait in host memory, and StackRing, by which they come over ahead of the layer that
needs all of them. PinnedWeight: a packed weight there, which kernels of the device can read where it lies.

Two layers have room on the device. While one is read the next one is copied, on a stream of its own: it waits until the
products that read its place before are done, and whoever reads it waits for the copy. Layers come round, so the last of
a prompt's chunk brings the first of the next one.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

import numpy as np

from sp.arrays import Ints
from sp.errors import DeviceError
from sp.kernels import import_cupy
from sp.kernels.device import current_device
from sp.ops.array_module import array_module
from sp.ops.delta.delta_tree import MOST_NODES
from sp.ops.matmul.fragment_order import plane_offsets
from sp.ops.matmul.packed import PackedWeight, allocate, pack_rows
from sp.quant import BlockFormat
from sp.quant.packing import TILE


def count_choices(counts: Any, experts: Any, one: Any) -> None:
    """Add to `counts` how often each expert was chosen; on the device nothing waits, and a CUDA graph can capture it.
    `counts`, uint32 (count,): changed in place. `experts`, int32 (tokens, used): see `Routing`. `one`, uint32 (1,):
    that number, where `counts` are: a graph could not send it from the host anew."""
    if experts.size:
        array_module(counts).add.at(counts, experts.reshape(-1), one)


def hottest(counts: Ints, most: int) -> Ints:
    """The experts that were chosen most, `most` of them at most, ascending; int64, of equals the smaller index."""
    found: Ints = np.sort(np.argsort(-counts.astype(np.int64), kind="stable")[:most])
    return found


def hit_rate(prompt: Ints, decoded: Ints, share: float) -> float:
    """Share of the choices while decoding that fall on experts the prompt made hot, over all layers. `prompt`,
    `decoded`: how often each expert was chosen by the tokens of the prompt and by those after it. `share`: of a layer's
    experts that are hot. Returns NaN where nothing was decoded."""
    most, total = int(share * prompt.shape[1]), int(decoded.sum())
    hits = sum(int(after[hottest(before, most)].sum()) for before, after in zip(prompt, decoded, strict=True))
    return hits / total if total else float("nan")


ALIGN = 512  # of every stack in a place, as the device's own allocations are
PLACES = 2


@dataclass(eq=False)  # told apart by which it is: arrays have no truth
class _Place:
    """Room of one layer."""

    buffer: Any  # cupy uint8 (nbytes,)
    read: Any  # all that was read of what lies here is read; at first the last use of the memory
    layer: int | None = None  # whose stacks lie here, or come
    arrived: Any = None  # they are here


class StackRing:
    """Room on the device for the stacks of two layers, taken by `open` or at the first use. `stacks`: by layer.
    `ahead`: layers that are copied before they are asked for, in the order in which a prompt meets them. Not the last
    one of a model, of which a prompt needs one row."""

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
        """The stacks of a layer as `PackedWeight` on the device, for work given to the current stream inside. Called
        again for the same layer it copies nothing. The layer after it is on its way when this is entered."""
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


BY_NEED = MOST_NODES
"""Tokens up to which kernels read the experts that were chosen from host memory, and no layer is brought over: those of
the largest tree, for a CUDA graph cannot hold copies that are begun ahead of it."""
SHARES = (0.125, 0.25, 0.5)  # of a layer's experts that hit rates are told of


class ColdExperts:
    """What the cold layers of a model share.

    Parameters
    ----------
    ring : StackRing
        Of their stacks.
    layers : int
        Of the model, cold or not.
    count : int
        Experts of one.
    """

    def __init__(self, ring: StackRing, layers: int, count: int) -> None:
        self.ring, self._layers = ring, layers
        cupy, shape = import_cupy(), (len(ring.layers), count)
        self._chosen, self._by_prompt = cupy.zeros(shape, "uint32"), cupy.zeros(shape, "uint32")
        self._one = cupy.ones(1, "uint32")

    def layer(self, index: int) -> ColdLayer:
        """What the experts of one of them need to know."""
        return ColdLayer(index, self.ring, self._chosen[self.ring.layers.index(index)], self._one)

    def restart(self) -> None:
        """Forget what was chosen: a prompt is about to be read."""
        self._chosen.fill(0)

    def end_of_prompt(self) -> None:
        """What is chosen from now on is chosen while decoding."""
        self._by_prompt[...] = self._chosen
        self._chosen.fill(0)

    def choices(self) -> Choices:
        """What was chosen since `restart`; waits for the device."""
        prompt, decoded = self._by_prompt.get(), self._chosen.get()
        rates = {f"{share:g}": hit_rate(prompt, decoded, share) for share in SHARES} if decoded.any() else {}
        return Choices(int(prompt.sum()), int(decoded.sum()), rates)

    def lines(self, choices: Choices) -> list[str]:
        """What the report says."""
        found = [told(self.ring.layers, self._layers, self.ring.host_bytes)]
        if choices.hit_rates:
            rates = ", ".join(f"{rate:.0%} to the top {float(top):.1%}" for top, rate in choices.hit_rates.items())
            found.append(
                f"decoding went to {choices.decoded:,} experts of those layers and read all of them there; "
                f"by how often the prompt chose them, {rates}"
            )
        return found


@dataclass(frozen=True)
class Choices:
    """How often experts of cold layers were chosen.

    `prompt`, `decoded`: by tokens of the prompt, and by those after it, guesses that did not come true among them.
    `hit_rates`: by the share of a layer's experts that would be hot, those the prompt chose most: the share of
    `decoded` that went to one of them. Nothing of an expert is held on the device for that as yet.
    """

    prompt: int
    decoded: int
    hit_rates: dict[str, float]


class ColdLayer:
    """A cold layer. No dataclass, for nothing of it is to move when a model's parts do. `chosen`, uint32 (count,): how
    often tokens went to each of its experts. `one`, uint32 (1,): see `count_choices`."""

    def __init__(self, index: int, ring: StackRing, chosen: Any, one: Any) -> None:
        self.index, self.ring, self._chosen, self._one = index, ring, chosen, one

    def count(self, experts: Any) -> None:
        """Note where tokens go; int32 (tokens, used)."""
        count_choices(self._chosen, experts, self._one)


def told(layers: Sequence[int], of: int, nbytes: int) -> str:
    """What is said of cold layers.

    >>> told(range(14), 40, 7_400_000_000)
    'experts of 14 of 40 layers wait in host memory, 7.4 GB'
    """
    size = f"{nbytes / 1e9:.1f} GB" if nbytes >= 1e8 else f"{nbytes / 1e6:.1f} MB"
    return f"experts of {len(layers)} of {of} layers wait in host memory, {size}"


PLANES = ("low", "high", "scales", "deltas")


class PinnedWeight(PackedWeight):
    """A `PackedWeight` whose bytes lie on the host, at an address that is the device's too.

    `data` is an array of CuPy's over them: launches take it as any other, and read over the bus what they touch. It is
    none of the arrays that a model's parts take along when they move.
    """


def allocate_pinned(name: str, fmt: BlockFormat, shape: tuple[int, ...]) -> PinnedWeight:
    """An unfilled weight in pinned memory of the host. ModelError: `fmt` and `shape` have no fragment order;
    DeviceError: the host has not so much memory that can be pinned."""
    cupy, nbytes = import_cupy(), plane_offsets(name, fmt, shape).end
    try:
        # Not from CuPy's pool of pinned memory, which rounds up to powers of two.
        memory = cupy.cuda.PinnedMemory(nbytes)
    except Exception as error:
        if "MemoryAllocation" not in str(error) and not isinstance(error, MemoryError):
            raise
        raise DeviceError(
            f"{name}: {nbytes / 2**20:.0f} MiB of experts that wait in host memory cannot be pinned there; free memory "
            "of the host or give a larger --vram"
        ) from error
    lent = cupy.cuda.UnownedMemory(memory.ptr, nbytes, memory, current_device())
    data = cupy.ndarray((nbytes,), np.uint8, cupy.cuda.MemoryPointer(lent, 0))
    return PinnedWeight(name, fmt, (int(shape[0]), int(shape[1])), data)


def pack_rows_pinned(w: PinnedWeight, start: int, rows: Any) -> None:
    """`pack_rows` by way of the device, which holds those rows meanwhile; the copy may still be under way. `start`: a
    multiple of 64. `rows`, cupy uint8 (n, row_bytes): as in the file."""
    cupy = import_cupy()
    piece = allocate(w.name, w.format, (len(rows), w.shape[1]))
    pack_rows(piece, 0, rows)
    runtime, stream = cupy.cuda.runtime, cupy.cuda.get_current_stream()
    for name in PLANES:
        part, whole = piece.plane(name), w.plane(name)
        if part is not None:
            to = whole[start // TILE * (len(whole) // w.row_tiles) :]
            runtime.memcpyAsync(to.data.ptr, part.data.ptr, part.nbytes, runtime.memcpyDeviceToHost, stream.ptr)
