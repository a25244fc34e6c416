"""Copies of cache contents: into another cache (a larger one, or that of a fork), or to host memory and back."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any, Literal, NamedTuple

import numpy as np

from sp.arrays import Bytes, Floats, Ints
from sp.errors import DeviceError
from sp.kernels import import_cupy, is_device
from sp.models.cache.cache import Cache
from sp.models.cache.kv_type import KVType
from sp.models.config import ModelConfig
from sp.ops.array_module import array_module
from sp.ops.attention.kv_pages import PAGE_TOKENS

ALIGN = 256  # bytes between arrays in a host buffer
STEPS = 8  # pinned buffers grow in steps of at most 1/8 of their size, because pinning memory is slow


class HostBuffer:
    """A reusable host buffer, pinned if it takes data from the device.

    >>> room = HostBuffer("cpu")
    >>> places = room.places([3, 5])
    >>> [(len(place), place.dtype.name) for place in places], room.nbytes
    ([(3, 'uint8'), (5, 'uint8')], 512)
    """

    def __init__(self, device: Literal["cpu", "cuda"]) -> None:
        self._pinned = device == "cuda"
        self._memory: Bytes = np.empty(0, np.uint8)

    def places(self, sizes: list[int]) -> list[Bytes]:
        """Return one part of the buffer per size in bytes; the previous contents are lost."""
        # Aligned starts, so that every part can be viewed as float32.
        starts = np.cumsum([0, *(-(-size // ALIGN) * ALIGN for size in sizes)]).tolist()
        if starts[-1] > len(self._memory):
            self._memory = np.empty(0, np.uint8)  # free the old buffer before allocating a larger one
            self._memory = self._allocate(starts[-1])
        return [self._memory[start : start + size] for start, size in zip(starts, sizes, strict=False)]

    def release(self) -> None:
        """Free memory that is not pinned, once its contents are no longer needed."""
        if not self._pinned:
            self.clear()

    def clear(self) -> None:
        """Free all memory."""
        self._memory = np.empty(0, np.uint8)

    @property
    def nbytes(self) -> int:
        """Bytes of host memory."""
        return len(self._memory)

    def _allocate(self, size: int) -> Bytes:
        if not self._pinned:
            return np.empty(size, np.uint8)
        step = max(1 << 20, (1 << size.bit_length()) // (2 * STEPS))
        # Rounded up, because every growth pins new memory and unpins the old.
        size = -(-size // step) * step
        cuda = import_cupy().cuda
        # Not from CuPy's pool of pinned memory, which rounds up to powers of two.
        return np.frombuffer(cuda.PinnedMemoryPointer(cuda.PinnedMemory(size), 0), np.uint8, size)


def copy_out(source: Any, to: Any) -> None:
    """Copy an array to a host array of the same size; from the device on the current stream, without waiting on the
    host."""
    if not is_device(source):
        to[...] = source
        return
    runtime, stream = import_cupy().cuda.runtime, import_cupy().cuda.get_current_stream()
    runtime.memcpyAsync(to.ctypes.data, source.data.ptr, to.nbytes, runtime.memcpyDeviceToHost, stream.ptr)


def copy_over(source: Any, to: Any) -> None:
    """Copy an array to one of the same size in the same place. CuPy's own copies launch a kernel on the device, which
    costs the host more."""
    if not is_device(source):
        to[...] = source
        return
    assert source.nbytes == to.nbytes, f"{source.shape} into {to.shape}"
    runtime, stream = import_cupy().cuda.runtime, import_cupy().cuda.get_current_stream()
    runtime.memcpyAsync(to.data.ptr, source.data.ptr, to.nbytes, runtime.memcpyDeviceToDevice, stream.ptr)


def copy_in(to: Any, source: Any) -> None:
    """Copy a host array to one of the same size, on the device on the current stream."""
    if not is_device(to):
        to[...] = source
        return
    runtime, stream = import_cupy().cuda.runtime, import_cupy().cuda.get_current_stream()
    runtime.memcpyAsync(to.data.ptr, source.ctypes.data, source.nbytes, runtime.memcpyHostToDevice, stream.ptr)


def wait() -> None:
    """Block until all copies from and to the device are done."""
    import_cupy().cuda.get_current_stream().synchronize()


States = Mapping[int, tuple[Floats, Floats]]  # inputs of the convolution and recurrent state, by recurrent layer


def take_states(cache: Cache) -> States:
    """Copy the recurrent states, in device memory if there is room and in host memory otherwise."""
    try:
        return _states_of(cache, _copy)
    except (DeviceError, MemoryError):
        return _states_of(cache, _on_host)


def states_on_host(states: States) -> States:
    """Return the same states in host memory; waits for the device."""
    return {layer: (_on_host(conv), _on_host(recurrent)) for layer, (conv, recurrent) in states.items()}


def put_states(cache: Cache, states: States) -> None:
    """Write states into a cache of the same model, in its existing arrays."""
    for layer, (conv, recurrent) in states.items():
        state = cache.state(layer)
        _fill(state.conv, conv)
        _fill(state.recurrent, recurrent)


def clear_states(cache: Cache) -> None:
    """Reset the recurrent states of a cache to zero."""
    for layer in cache.config.delta_layers:
        cache.state(layer).clear()


def states_nbytes(states: States) -> int:
    """Return the bytes of states."""
    return sum(conv.nbytes + recurrent.nbytes for conv, recurrent in states.values())


def states_fit(states: States, config: ModelConfig) -> bool:
    """Return True if the sizes of states are those of a model's recurrent layers."""
    sizes = config.delta
    if sizes is None or tuple(states) != tuple(config.delta_layers):
        return sizes is None and not states
    shapes = (sizes.conv_kernel - 1, sizes.conv_dim), (sizes.value_heads, sizes.head_dim, sizes.head_dim)
    return all((conv.shape, recurrent.shape) == shapes for conv, recurrent in states.values())


def copy_cache(source: Cache, target: Cache, tokens: int) -> None:
    """Copy the first `tokens` tokens of a cache into an empty one of the same model and format, on the same device.

    Exact rows of the newest tokens are copied for the layers that have read no more tokens than these, and unpacked for
    others. Recurrent states are copied as they are in `source`: the caller must know that they belong to `tokens`.
    """
    target.reserve(tokens)
    blocks = -(-tokens // PAGE_TOKENS)
    for layer in target.config.attention_layers:
        here, there = source.stored(layer), target.stored(layer)
        old, new = here.table[:blocks], there.table[:blocks]
        there.k[new], there.v[new] = here.k[old], here.v[old]
    if len(target.places):
        target.places[:tokens] = source.places[:tokens]
    target.crop(tokens, refill=False)
    for layer, ring in target.recent.items():
        copied = source.recent[layer]
        if source.length(layer) == tokens:
            copied.end()
            copy_over(copied.k[copied.page], ring.k[ring.page])
            copy_over(copied.v[copied.page], ring.v[ring.page])
            ring.take(copied.start, copied.stop, copied.low)
        else:
            ring.refill(target.stored(layer))
    put_states(target, _states_of(source, lambda array: array))


def copy_pages(source: Cache, target: Cache, layer: int, tokens: int) -> None:
    """Copy a layer's first `tokens` keys and values to a cache with pages for them, of the same format, on the same
    device; counts stay. On the device copies are queued, and nothing is loaded, allocated or waited for."""
    blocks, here, there = -(-tokens // PAGE_TOKENS), source.stored(layer), target.stored(layer)
    old, new = (np.array(cache.block_table(layer)[:blocks], np.int64) for cache in (source, target))
    cuts = np.flatnonzero((np.diff(old) != 1) | (np.diff(new) != 1)) + 1
    for run in np.split(np.arange(blocks), cuts):
        pages, places = (slice(int(table[run[0]]), int(table[run[-1]]) + 1) for table in (old, new))
        copy_over(here.k[pages], there.k[places])
        copy_over(here.v[pages], there.v[places])


class ParkedRing(NamedTuple):
    """A copy of a layer's `RecentRows`, in host memory: uint8 (128, kv_heads, 2 d) each, and its counts."""

    k: Bytes
    v: Bytes
    start: int
    stop: int
    low: int


@dataclass(frozen=True)
class ParkedCache:
    """The contents of a cache, in host memory."""

    tokens: int
    pages: Mapping[int, tuple[Bytes, Bytes]]  # uint8 (pages, 128, kv_heads, bytes of a row) by attention layer
    states: States  # see `States`
    places: Ints  # positions of all tokens, see `Cache.places`
    rings: Mapping[int, ParkedRing] = field(default_factory=dict)  # by attention layer, if the cache has any

    @classmethod
    def of(cls, cache: Cache, room: HostBuffer, first: int = 0, *, rings: bool = True) -> ParkedCache:
        """Copy the contents of a cache into a buffer that holds nothing else; pages only from block `first` on, and
        exact rows of the newest tokens only with `rings`. Waits for the device."""
        # One buffer takes all pages first, then all states and then all rings, in this order.
        blocks, config = -(-cache.tokens // PAGE_TOKENS), cache.config
        pools = [(stored.k, stored.v) for stored in map(cache.stored, config.attention_layers)]
        states = [(state.conv, state.recurrent) for state in map(cache.state, config.delta_layers)]
        sizes = [(blocks - first) * pool[0].nbytes for pair in pools for pool in pair]
        sizes += [array.nbytes for pair in states for array in pair]
        kept = cache.recent if rings else {}
        sizes += [ring[recent.page].nbytes for recent in kept.values() for ring in (recent.k, recent.v)]
        places = iter(room.places(sizes))
        pages, state_copies = {}, {}
        for layer, pair in zip(config.attention_layers, pools, strict=True):
            runs = _runs(cache.block_table(layer)[first:blocks])
            pages[layer] = _copy_pages(pair[0], runs, next(places)), _copy_pages(pair[1], runs, next(places))
        for layer, (conv, recurrent) in zip(config.delta_layers, states, strict=True):
            state_copies[layer] = _copy_array(conv, next(places)), _copy_array(recurrent, next(places))
        ring_copies = {}
        for layer, recent in kept.items():
            recent.end()
            page = recent.page
            k, v = (_copy_pages(ring, [(page, page + 1)], next(places))[0] for ring in (recent.k, recent.v))
            ring_copies[layer] = ParkedRing(k, v, recent.start, recent.stop, recent.low)
        if cache.device == "cuda":
            wait()
        positions = cache.places[: cache.tokens]
        return cls(cache.tokens, pages, state_copies, _on_host(positions), ring_copies)

    def first(self, tokens: int, states: States) -> ParkedCache:
        """Return the first `tokens` tokens, fewer than all, sharing memory, with the recurrent states after them."""
        blocks = -(-tokens // PAGE_TOKENS)
        pages = {layer: (keys[:blocks], values[:blocks]) for layer, (keys, values) in self.pages.items()}
        return ParkedCache(tokens, pages, states, self.places[:tokens])

    def fits(self, config: ModelConfig, kv: KVType) -> bool:
        """Return True if it can belong to a cache of this model and format; checks what comes from outside."""
        if not self.tokens:
            return not (self.pages or self.states)
        if tuple(self.pages) != tuple(config.attention_layers) or not states_fit(self.states, config):
            return False
        blocks = -(-self.tokens // PAGE_TOKENS)
        for layer, both in self.pages.items():
            sizes = config.heads_of(layer)
            for pages, fmt in zip(both, (kv.k, kv.v), strict=True):
                shape = blocks, PAGE_TOKENS, sizes.kv_heads, fmt.row_bytes(sizes.head_dim)
                if pages.shape != shape or pages.dtype != np.uint8:
                    return False
        return self.places.shape == (self.tokens if any(config.windows) else 0,)

    def copied(self, first: int = 0) -> ParkedCache:
        """Return a copy in memory of its own, with pages from block `first` on, without rings."""
        pages = {layer: (keys[first:].copy(), values[first:].copy()) for layer, (keys, values) in self.pages.items()}
        return ParkedCache(self.tokens, pages, states_on_host(self.states), self.places.copy())

    def put(self, cache: Cache) -> None:
        """Copy into an empty cache of the same model and format; waits for the device."""
        cache.reserve(self.tokens)
        for layer, (keys, values) in self.pages.items():
            stored, done = cache.stored(layer), 0
            # Stored pages are in token order; the runs name their pages in the pool.
            for first, last in _runs(cache.block_table(layer)[: len(keys)]):
                part = slice(done, done + last - first)
                copy_in(stored.k[first:last], keys[part])
                copy_in(stored.v[first:last], values[part])
                done = part.stop
        if len(self.places):
            copy_in(cache.places[: self.tokens], self.places)
        cache.crop(self.tokens, refill=not self.rings)
        for layer, ring in self.rings.items():
            recent = cache.recent[layer]
            copy_in(recent.k[recent.page], ring.k)
            copy_in(recent.v[recent.page], ring.v)
            recent.take(ring.start, ring.stop, ring.low)
        for layer, (conv, recurrent) in self.states.items():
            state = cache.state(layer)
            copy_in(state.conv, conv)
            copy_in(state.recurrent, recurrent)
        if cache.device == "cuda":
            wait()

    @property
    def nbytes(self) -> int:
        """Bytes of host memory."""
        pages = sum(keys.nbytes + values.nbytes for keys, values in self.pages.values())
        return pages + states_nbytes(self.states) + sum(ring.k.nbytes + ring.v.nbytes for ring in self.rings.values())


@dataclass(frozen=True)
class CacheChanges:
    """Additions to a session cache since its last export, in arrays that no one writes to. The pages of `contents`
    start at block `first`. Snapshots are named by the number of tokens they have read: `fresh` ones are new, `older`
    ones were exported before."""

    contents: ParkedCache
    first: int
    fresh: Mapping[int, States]
    older: tuple[int, ...]


def _states_of(cache: Cache, copied: Callable[[Any], Any]) -> States:
    states = ((layer, cache.state(layer)) for layer in cache.config.delta_layers)
    return {layer: (copied(state.conv), copied(state.recurrent)) for layer, state in states}


def _copy(array: Any) -> Any:
    copy = array_module(array).empty_like(array)
    copy_over(array, copy)
    return copy


def _on_host(array: Any) -> Any:
    return array.get() if is_device(array) else array.copy()


def _runs(table: tuple[int, ...]) -> list[tuple[int, int]]:
    """Return the pages of a table as ranges, which are copied without temporary memory on the device, where there may
    be none left.

    >>> _runs((4, 5, 6, 9, 1, 2))
    [(4, 7), (9, 10), (1, 3)]
    """
    pages = np.array(table, np.int64)
    cuts = np.flatnonzero(np.diff(pages) != 1) + 1
    return [(int(run[0]), int(run[-1]) + 1) for run in np.split(pages, cuts)] if len(pages) else []


def _copy_pages(pool: Any, runs: list[tuple[int, int]], place: Bytes) -> Bytes:
    """Copy pages of a pool, one after the other, to host memory."""
    pages, done = place.reshape(sum(last - first for first, last in runs), *pool.shape[1:]), 0
    for first, last in runs:
        copy_out(pool[first:last], pages[done : done + last - first])
        done += last - first
    return pages


def _copy_array(array: Any, place: Bytes) -> Floats:
    copy = place.view(np.float32).reshape(array.shape)
    copy_out(array, copy)
    return copy


def _fill(array: Any, values: Any) -> None:
    if is_device(array) and not is_device(values):
        array.set(values, import_cupy().cuda.get_current_stream())
    else:
        array[...] = values
