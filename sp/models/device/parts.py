"""Parts of a model on the device, which can be offloaded to pinned host memory and onloaded again: blocks, head,
embedding."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import Any

import numpy as np

from sp.kernels import import_cupy
from sp.models.device.prequantized import drop_prequantized
from sp.models.layer.cold_experts import PinnedWeight
from sp.models.network.model import Model
from sp.models.network.weights import map_leaves
from sp.ops.matmul.packed import PackedWeight
from sp.quant import Weight

ALIGN = 512  # bytes, of every array in the buffer of a part, as for the device's own allocations

Places = tuple[tuple[int, tuple[int, ...], Any], ...]


@dataclass(frozen=True)
class HostCopy:
    """Copy of a part in pinned memory. Once made it is kept, because weights never change."""

    memory: Any  # uint8 (nbytes,)
    tree: Any
    places: Places  # (offset, shape, dtype) of every array, in the order of `map_leaves`


class Offloaded:
    """Placeholder of an offloaded part; any use before it is onloaded is an error."""

    def __init__(self, name: str) -> None:
        self._name = name

    def __getattr__(self, name: str) -> Any:
        raise AssertionError(f"{self._name} is offloaded to host memory; onload it before the model runs")


class Parts:
    """The parts of one model.

    Parameters
    ----------
    model : Model
        On the device; its weights are replaced as parts are offloaded and onloaded.

    Attributes
    ----------
    sizes : dict of str to int
        Bytes of each part, in the preferred order of offloading: the last blocks first, because a prompt needs them
        last.
    """

    def __init__(self, model: Model) -> None:
        self.model = model
        self._copies: dict[str, HostCopy] = {}
        self._offloaded: dict[str, None] = {}
        weights = model.weights
        trees: dict[str, Any] = {f"block {i}": weights.blocks[i] for i in reversed(range(len(weights.blocks)))}
        trees |= {"output": weights.output} if weights.output is not None else {}
        trees |= {"embed": weights.embed}
        self.sizes = {name: sum(_rounded(array.nbytes) for array in arrays_of(tree)) for name, tree in trees.items()}

    @property
    def resident(self) -> list[str]:
        """Names of the parts on the device."""
        return [name for name in self.sizes if name not in self._offloaded]

    @property
    def onloaded(self) -> list[str]:
        """Names of the parts on the device that were offloaded before."""
        return [name for name in self._copies if name not in self._offloaded]

    @property
    def offloaded(self) -> list[str]:
        """Names of the parts in host memory."""
        return list(self._offloaded)

    def next_to_offload(self) -> list[str]:
        """Return the parts to offload next: all that were onloaded, because they share one buffer, else a single one;
        none if all are offloaded."""
        return self.onloaded or self.resident[:1]

    def offload(self, names: list[str]) -> None:
        """Free the device memory of parts. The first time a part is offloaded it is copied, and the copy is waited for.
        Prequantized copies are dropped too, because memory is short."""
        self.drop_prequantized_rows()
        for name in names:
            if name not in self._copies:
                self._copies[name] = _to_host(self._tree(name))
            self._offloaded[name] = None
            self._put(name, Offloaded(f"{name} of a {self.model.config.architecture}"))

    def onload(self, names: list[str], stream: Any) -> None:
        """Copy parts back to the device on `stream`; later work of the current stream waits for them. They share one
        buffer, so that the memory they free again is in one piece."""
        cupy, copies = import_cupy(), [self._copies[name] for name in names]
        buffer = cupy.empty(sum(len(copy.memory) for copy in copies), np.uint8)
        current, runtime = cupy.cuda.get_current_stream(), cupy.cuda.runtime
        stream.wait_event(current.record())  # the memory may be in use by what was launched before
        offset, places = 0, []
        try:
            for copy in copies:
                place = buffer[offset : offset + len(copy.memory)]
                source, size = copy.memory.ctypes.data, len(copy.memory)
                runtime.memcpyAsync(place.data.ptr, source, size, runtime.memcpyHostToDevice, stream.ptr)
                places.append(place)
                offset += size
        finally:
            current.wait_event(stream.record())
        for name, copy, place in zip(names, copies, places, strict=True):
            self._put(name, _over(copy, place))
            self._offloaded.pop(name, None)

    def drop_ring(self) -> bool:
        """Free the device memory for experts of cold layers, which is allocated again when needed; True if there was
        any."""
        return self.model.cold is not None and self.model.cold.ring.drop()

    def drop_prequantized_rows(self) -> bool:
        """Drop prequantized weights for good, so that products quantise them again; True if there were any."""
        model = self.model
        if not model.arithmetic.kept:
            return False
        model.weights, model.arithmetic = drop_prequantized(model.weights), replace(model.arithmetic, kept=0)
        return True

    def _tree(self, name: str) -> Any:
        weights = self.model.weights
        return weights.blocks[int(name.split()[1])] if name.startswith("block") else getattr(weights, name)

    def _put(self, name: str, tree: Any) -> None:
        weights = self.model.weights
        if not name.startswith("block"):
            self.model.weights = replace(weights, **{name: tree})
            return
        index = int(name.split()[1])
        self.model.weights = replace(weights, blocks=(*weights.blocks[:index], tree, *weights.blocks[index + 1 :]))


def arrays_of(tree: Any) -> list[Any]:
    """Return the device arrays of a tree of dataclasses, in the order of `map_leaves`, without those in host memory."""
    arrays: list[Any] = []
    _moved(tree, lambda leaf: arrays.append(array_of(leaf)))
    return arrays


def _moved(tree: Any, leaf: Callable[[Any], Any]) -> Any:
    """Apply `map_leaves`, except to weights that stay in host memory."""
    return map_leaves(tree, lambda weight: weight if isinstance(weight, PinnedWeight) else leaf(weight))


def array_of(leaf: Any) -> Any:
    """Return the array of a weight, or the leaf itself."""
    return leaf.data if isinstance(leaf, Weight | PackedWeight) else leaf


def with_array(leaf: Any, array: Any) -> Any:
    """Return the same leaf with another array."""
    return replace(leaf, data=array) if isinstance(leaf, Weight | PackedWeight) else array


def _over(copy: HostCopy, buffer: Any) -> Any:
    """View a buffer with the same bytes as the part."""
    arrays = iter(views(buffer, copy.places))
    return _moved(copy.tree, lambda leaf: with_array(leaf, next(arrays)))


def _to_host(tree: Any) -> HostCopy:
    """Copy a part into one pinned buffer and wait for it."""
    cupy, arrays = import_cupy(), arrays_of(tree)
    sizes = [_rounded(array.nbytes) for array in arrays]
    # One buffer per part: it comes back with a single copy.
    starts = [sum(sizes[:i]) for i in range(len(sizes))]
    # Not from CuPy's pool of pinned memory, which rounds up to powers of two.
    pinned = cupy.cuda.PinnedMemoryPointer(cupy.cuda.PinnedMemory(sum(sizes)), 0)
    memory = np.frombuffer(pinned, np.uint8, sum(sizes))
    stream, runtime = cupy.cuda.get_current_stream(), cupy.cuda.runtime
    try:
        for array, offset in zip(arrays, starts, strict=True):
            target = memory[offset:].ctypes.data
            runtime.memcpyAsync(target, array.data.ptr, array.nbytes, runtime.memcpyDeviceToHost, stream.ptr)
    finally:
        stream.synchronize()
    places = tuple((offset, array.shape, np.dtype(array.dtype)) for offset, array in zip(starts, arrays, strict=True))
    host_arrays = iter(views(memory, places))
    return HostCopy(memory, _moved(tree, lambda leaf: with_array(leaf, next(host_arrays))), places)


def views(buffer: Any, places: Places) -> list[Any]:
    """Return the arrays that are stored in a buffer of bytes."""
    return [
        buffer[offset : offset + int(np.prod(shape)) * dtype.itemsize].view(dtype).reshape(shape)
        for offset, shape, dtype in places
    ]


def _rounded(nbytes: int) -> int:
    return -(-int(nbytes) // ALIGN) * ALIGN
