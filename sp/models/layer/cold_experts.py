"""ColdExperts: layers whose experts wait in host memory, and StackRing, which prefetches the experts of a layer to the
device. PinnedWeight: a packed weight in host memory that kernels of the device can read in place.

The device has two slots, one layer each. While one layer is computed, the next one is copied on a stream of its own:
the copy waits until the products that read its slot are done, and the consumer waits for the copy. Layers repeat in a
cycle, so the last layer of one chunk of a prompt prefetches the first layer of the next chunk.
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


def count_choices(counts: Any, experts: Any, increment: Any) -> None:
    """Add to `counts` how often each expert was chosen; on the device nothing waits, and a CUDA graph can capture it.
    `counts`, uint32 (count,): changed in place. `experts`, int32 (tokens, used): see `Routing`. `increment`, uint32
    (1,): the number 1, where `counts` are, because a graph cannot send it from the host again."""
    if experts.size:
        array_module(counts).add.at(counts, experts.reshape(-1), increment)


def hottest(counts: Ints, most: int) -> Ints:
    """Return the most frequently chosen experts, `most` of them at most, ascending; int64. Ties go to the smaller
    index."""
    top: Ints = np.sort(np.argsort(-counts.astype(np.int64), kind="stable")[:most])
    return top


def hit_rate(prompt: Ints, decoded: Ints, share: float) -> float:
    """Return the share of the choices while decoding that go to experts which the prompt made hot, over all layers.
    `prompt`, `decoded`: how often each expert was chosen by tokens of the prompt and by the tokens after it. `share`:
    share of a layer's experts that counts as hot. NaN if nothing was decoded."""
    most, total = int(share * prompt.shape[1]), int(decoded.sum())
    hits = sum(int(after[hottest(before, most)].sum()) for before, after in zip(prompt, decoded, strict=True))
    return hits / total if total else float("nan")


ALIGN = 512  # bytes, of every stack in a slot, as for the device's own allocations
SLOTS = 2


@dataclass(eq=False)  # compared by identity: arrays have no truth value
class _Slot:
    """Device memory for the stacks of one layer."""

    buffer: Any  # cupy uint8 (nbytes,)
    last_use: Any  # event after the last read of the contents; at first, after the last use of the memory
    layer: int | None = None  # whose stacks are here or being copied
    copied: Any = None  # event after the copy


class StackRing:
    """Device memory for the stacks of two layers, allocated by `open` or at the first use. `stacks`: by layer.
    `prefetch`: layers to copy before they are requested, in the order in which a prompt reaches them. The last layer of
    a model is left out: a prompt needs one row of it."""

    def __init__(self, stacks: Mapping[int, Sequence[PinnedWeight]], prefetch: Sequence[int]) -> None:
        self._stacks = {layer: tuple(weights) for layer, weights in stacks.items()}
        self._prefetch = tuple(prefetch)
        self._slots: list[_Slot] = []  # ordered by use, the most recent one last
        self._stream: Any = None

    @property
    def layers(self) -> tuple[int, ...]:
        """Indices of the cold layers."""
        return tuple(self._stacks)

    @property
    def host_bytes(self) -> int:
        """Bytes of all stacks, in pinned memory."""
        return sum(weight.nbytes for weights in self._stacks.values() for weight in weights)

    @property
    def room(self) -> int:
        """Bytes of both slots, allocated or not."""
        return ring_bytes([[weight.nbytes for weight in weights] for weights in self._stacks.values()])

    @contextmanager
    def stacks_on_device(self, layer: int) -> Iterator[tuple[Any, ...]]:
        """Yield the stacks of a layer as `PackedWeight` on the device, for work launched on the current stream inside
        the context. A second call for the same layer copies nothing. On entry the copy of the next layer has been
        started."""
        self.open()
        slot = self._fetched(layer)
        self._slots.remove(slot)
        # Moved to the end: the first slot is the one to overwrite next.
        self._slots.append(slot)
        if (following := self._following(layer)) != layer:
            self._fetched(following)
        current = import_cupy().cuda.get_current_stream()
        current.wait_event(slot.copied)
        try:
            yield self._over(layer, slot.buffer)
        finally:
            slot.last_use = current.record()

    def drop(self) -> bool:
        """Release the device memory once nothing reads it; True if there was any."""
        if not self._slots:
            return False
        # Memory is freed on the current stream, and the copies run on another one.
        import_cupy().cuda.get_current_stream().wait_event(self._stream.record())
        self._slots.clear()
        return True

    def open(self) -> None:
        """Allocate the slots if they are not there. Called early, so that they lie next to the weights and do not
        fragment memory."""
        if self._slots:
            return
        cupy = import_cupy()
        if self._stream is None:
            self._stream = cupy.cuda.Stream(non_blocking=True)
        count = min(SLOTS, len(self._stacks))
        buffers = [cupy.empty(self.room // count, np.uint8) for _ in range(count)]
        before = cupy.cuda.get_current_stream().record()  # the memory may be in use by what was launched before
        self._slots = [_Slot(buffer, before) for buffer in buffers]

    def _following(self, layer: int) -> int:
        """Return the next layer of the cycle: the layer itself if there is no other."""
        following = self._prefetch.index(layer) + 1 if layer in self._prefetch else 0
        return self._prefetch[following % len(self._prefetch)] if self._prefetch else layer

    def _fetched(self, layer: int) -> _Slot:
        """Return the slot that holds a layer's stacks, after starting a copy into the least recently used slot if none
        does."""
        for slot in self._slots:
            if slot.layer == layer:
                return slot
        slot, runtime = self._slots[0], import_cupy().cuda.runtime
        # The copy may overwrite the slot only after its last reader.
        self._stream.wait_event(slot.last_use)
        for source, target in zip(self._stacks[layer], self._over(layer, slot.buffer), strict=True):
            pointers = target.data.data.ptr, source.data.data.ptr
            runtime.memcpyAsync(*pointers, source.nbytes, runtime.memcpyHostToDevice, self._stream.ptr)
        slot.layer, slot.copied = layer, self._stream.record()
        return slot

    def _over(self, layer: int, buffer: Any) -> tuple[PackedWeight, ...]:
        """View a buffer as the stacks of a layer."""
        weights, offset = [], 0
        for w in self._stacks[layer]:
            weights.append(PackedWeight(w.name, w.format, w.shape, buffer[offset : offset + w.nbytes]))
            offset += rounded(w.nbytes)
        return tuple(weights)


def ring_bytes(layers: Sequence[Sequence[int]]) -> int:
    """Return the bytes of a ring for layers with stacks of these sizes: two slots of the largest layer, one if there is
    only one layer.

    >>> ring_bytes([[512, 100], [512, 600]]), ring_bytes([[512, 100]]), ring_bytes([])
    (3072, 1024, 0)
    """
    slots = min(SLOTS, len(layers))
    return slots * max((sum(rounded(nbytes) for nbytes in sizes) for sizes in layers), default=0)


def rounded(nbytes: int) -> int:
    """Round up to a multiple of `ALIGN`."""
    return -(-nbytes // ALIGN) * ALIGN


BY_NEED = MOST_NODES
"""Number of tokens up to which kernels read the chosen experts directly from host memory, and no layer is copied: the
nodes of the largest tree, because a CUDA graph cannot contain copies that start before it."""
SHARES = (0.125, 0.25, 0.5)  # shares of a layer's experts for which hit rates are reported


class ColdExperts:
    """State shared by the cold layers of a model.

    Parameters
    ----------
    ring : StackRing
        Device slots for their stacks.
    layers : int
        Layers of the model, cold or not.
    count : int
        Experts per layer.
    """

    def __init__(self, ring: StackRing, layers: int, count: int) -> None:
        self.ring, self._layers = ring, layers
        cupy, shape = import_cupy(), (len(ring.layers), count)
        self._chosen, self._by_prompt = cupy.zeros(shape, "uint32"), cupy.zeros(shape, "uint32")
        self._increment = cupy.ones(1, "uint32")

    def layer(self, index: int) -> ColdLayer:
        """Return the handle that the experts of one cold layer keep."""
        return ColdLayer(index, self.ring, self._chosen[self.ring.layers.index(index)], self._increment)

    def restart(self) -> None:
        """Reset the counts before a prompt is read."""
        self._chosen.fill(0)

    def end_of_prompt(self) -> None:
        """Count what follows as choices while decoding."""
        self._by_prompt[...] = self._chosen
        self._chosen.fill(0)

    def choices(self) -> ExpertChoices:
        """Return the choices since `restart`; waits for the device."""
        prompt, decoded = self._by_prompt.get(), self._chosen.get()
        # Nothing was decoded after a prefill alone, and a rate would be 0/0.
        rates = {f"{share:g}": hit_rate(prompt, decoded, share) for share in SHARES} if decoded.any() else {}
        return ExpertChoices(int(prompt.sum()), int(decoded.sum()), rates)

    def lines(self, choices: ExpertChoices) -> list[str]:
        """Describe the choices in lines for the report."""
        lines = [describe_cold(self.ring.layers, self._layers, self.ring.host_bytes)]
        if choices.hit_rates:
            rates = ", ".join(f"{rate:.0%} to the top {float(top):.1%}" for top, rate in choices.hit_rates.items())
            lines.append(
                f"decoding went to {choices.decoded:,} experts of those layers and read all of them there; "
                f"by how often the prompt chose them, {rates}"
            )
        return lines


@dataclass(frozen=True)
class ExpertChoices:
    """How often experts of cold layers were chosen.

    `prompt`, `decoded`: choices by tokens of the prompt, and by the tokens after it, rejected draft tokens included.
    `hit_rates`: by the share of a layer's experts that would count as hot (those the prompt chose most), the share of
    `decoded` that went to one of them. No expert is kept on the device for that yet.
    """

    prompt: int
    decoded: int
    hit_rates: dict[str, float]


class ColdLayer:
    """Handle of a cold layer. Not a dataclass, because none of it moves when a model's parts do. `chosen`, uint32
    (count,): how often tokens were routed to each of its experts. `one`, uint32 (1,): see `count_choices`."""

    def __init__(self, index: int, ring: StackRing, chosen: Any, increment: Any) -> None:
        self.index, self.ring, self._chosen, self._increment = index, ring, chosen, increment

    def count(self, experts: Any) -> None:
        """Count the experts that tokens are routed to; int32 (tokens, used)."""
        count_choices(self._chosen, experts, self._increment)


def describe_cold(layers: Sequence[int], total: int, nbytes: int) -> str:
    """Describe cold layers in one line.

    >>> describe_cold(range(14), 40, 7_400_000_000)
    'experts of 14 of 40 layers wait in host memory, 7.4 GB'
    """
    size = f"{nbytes / 1e9:.1f} GB" if nbytes >= 1e8 else f"{nbytes / 1e6:.1f} MB"
    return f"experts of {len(layers)} of {total} layers wait in host memory, {size}"


PLANES = ("low", "high", "scales", "deltas")


class PinnedWeight(PackedWeight):
    """A `PackedWeight` whose bytes are in pinned host memory, at an address that is valid on the device too.

    `data` is a CuPy array over them: launches take it like any other, and read what they touch over the bus. It is not
    one of the arrays that move with a model's parts.
    """


def allocate_pinned(name: str, fmt: BlockFormat, shape: tuple[int, ...]) -> PinnedWeight:
    """Allocate an unfilled weight in pinned host memory. ModelError if `fmt` and `shape` have no fragment order;
    DeviceError if the host cannot pin so much memory."""
    cupy, nbytes = import_cupy(), plane_offsets(name, fmt, shape).end
    try:
        # Not from CuPy's pool of pinned memory, which rounds up to powers of two.
        memory = cupy.cuda.PinnedMemory(nbytes)
    except Exception as error:
        if "MemoryAllocation" not in str(error) and not isinstance(error, MemoryError):
            raise
        raise DeviceError(
            f"{name}: the host cannot pin {nbytes / 2**20:.0f} MiB for experts that wait in host memory; free host "
            "memory or pass a larger --vram"
        ) from error
    mapped_memory = cupy.cuda.UnownedMemory(memory.ptr, nbytes, memory, current_device())
    data = cupy.ndarray((nbytes,), np.uint8, cupy.cuda.MemoryPointer(mapped_memory, 0))
    return PinnedWeight(name, fmt, (int(shape[0]), int(shape[1])), data)


def pack_rows_pinned(w: PinnedWeight, start: int, rows: Any) -> None:
    """Pack rows as `pack_rows` does, on the device, which holds them meanwhile, and copy them to the host; the copy may
    still be under way on return. `start`: a multiple of 64. `rows`, cupy uint8 (n, row_bytes): as in the file."""
    cupy = import_cupy()
    piece = allocate(w.name, w.format, (len(rows), w.shape[1]))
    pack_rows(piece, 0, rows)
    runtime, stream = cupy.cuda.runtime, cupy.cuda.get_current_stream()
    for name in PLANES:
        part, whole = piece.plane(name), w.plane(name)
        if part is not None:
            # fragment order stores whole tiles of rows one after the other, so `start` is an offset in every plane
            to = whole[start // TILE * (len(whole) // w.row_tiles) :]
            runtime.memcpyAsync(to.data.ptr, part.data.ptr, part.nbytes, runtime.memcpyDeviceToHost, stream.ptr)
