"""Parts of a model on the device, which may leave it for pinned host memory and come back: blocks, head, embedding."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import Any

import numpy as np

from sp.kernels import import_cupy
from sp.models.device.kept import let_go
from sp.models.layer.cold_experts import PinnedWeight
from sp.models.network.model import Model
from sp.models.network.trunk import mapped
from sp.ops.matmul.packed import PackedWeight
from sp.quant import Weight

ALIGN = 512  # of every array of a part in its one buffer, as the device's own allocations are

Places = tuple[tuple[int, tuple[int, ...], Any], ...]


@dataclass(frozen=True)
class HostCopy:
    """A part in pinned memory, once made kept: weights never change."""

    memory: Any  # uint8 (nbytes,)
    tree: Any
    places: Places  # tuple of (offset, shape, dtype): of every array, in the order `mapped` meets them


class Offloaded:
    """Stands where a part was; whoever needs one brings it back first."""

    def __init__(self, what: str) -> None:
        self._what = what

    def __getattr__(self, name: str) -> Any:
        raise AssertionError(f"{self._what} is in host memory; bring it back before the model runs")


class Parts:
    """The parts of one model.

    Parameters
    ----------
    model : Model
        On the device; its trunk is replaced as parts leave and come.

    Attributes
    ----------
    sizes : dict of str to int
        Bytes of each part, in the order they had best leave: the last blocks first, for they are needed last.
    """

    def __init__(self, model: Model) -> None:
        self.model = model
        self._copies: dict[str, HostCopy] = {}
        self._away: dict[str, None] = {}
        trunk = model.trunk
        trees: dict[str, Any] = {f"block {i}": trunk.blocks[i] for i in reversed(range(len(trunk.blocks)))}
        trees |= {"output": trunk.output} if trunk.output is not None else {}
        trees |= {"embed": trunk.embed}
        self.sizes = {name: sum(_rounded(array.nbytes) for array in arrays_of(tree)) for name, tree in trees.items()}

    @property
    def here(self) -> list[str]:
        """Parts on the device."""
        return [name for name in self.sizes if name not in self._away]

    @property
    def returned(self) -> list[str]:
        """Parts on the device that had left before."""
        return [name for name in self._copies if name not in self._away]

    @property
    def away(self) -> list[str]:
        """Parts that have left."""
        return list(self._away)

    def next_to_offload(self) -> list[str]:
        """Parts that had best leave next: those in the buffer they came back in, else one; none if all have left."""
        back = self.returned
        return back or self.here[:1]

    def offload(self, names: list[str]) -> None:
        """Let go of the device memory of parts; what leaves for the first time is copied, and waited for. Weights are
        no longer kept rounded then: memory is too short for that."""
        self.drop_kept()
        for name in names:
            if name not in self._copies:
                self._copies[name] = _to_host(self._tree(name))
            self._away[name] = None
            self._put(name, Offloaded(f"{name} of a {self.model.config.architecture}"))

    def onload(self, names: list[str], stream: Any) -> None:
        """Bring parts back by copies on `stream`; work given to the current stream afterwards waits for them. They
        share one buffer, so that memory they leave again is in one piece."""
        cupy, copies = import_cupy(), [self._copies[name] for name in names]
        buffer = cupy.empty(sum(len(copy.memory) for copy in copies), np.uint8)
        current, runtime = cupy.cuda.get_current_stream(), cupy.cuda.runtime
        stream.wait_event(current.record())  # the memory may be in use by what was launched before
        at, places = 0, []
        try:
            for copy in copies:
                place = buffer[at : at + len(copy.memory)]
                source, size = copy.memory.ctypes.data, len(copy.memory)
                runtime.memcpyAsync(place.data.ptr, source, size, runtime.memcpyHostToDevice, stream.ptr)
                places.append(place)
                at += size
        finally:
            current.wait_event(stream.record())
        for name, copy, place in zip(names, copies, places, strict=True):
            self._put(name, _over(copy, place))
            self._away.pop(name, None)

    def drop_ring(self) -> bool:
        """Let go of the room that experts of cold layers are brought to, which is taken anew; whether there was any."""
        return self.model.cold is not None and self.model.cold.ring.drop()

    def drop_kept(self) -> bool:
        """Let go of weights that are kept rounded, for good: products round them anew; whether there were any."""
        model = self.model
        if not model.arithmetic.kept:
            return False
        model.trunk, model.arithmetic = let_go(model.trunk), replace(model.arithmetic, kept=0)
        return True

    def _tree(self, name: str) -> Any:
        trunk = self.model.trunk
        return trunk.blocks[int(name.split()[1])] if name.startswith("block") else getattr(trunk, name)

    def _put(self, name: str, tree: Any) -> None:
        trunk = self.model.trunk
        if not name.startswith("block"):
            self.model.trunk = replace(trunk, **{name: tree})
            return
        at = int(name.split()[1])
        self.model.trunk = replace(trunk, blocks=(*trunk.blocks[:at], tree, *trunk.blocks[at + 1 :]))


def arrays_of(tree: Any) -> list[Any]:
    """The device arrays of a tree of dataclasses, in the order `mapped` meets them; not what waits in host memory."""
    found: list[Any] = []
    _moved(tree, lambda leaf: found.append(array_of(leaf)))
    return found


def _moved(tree: Any, leaf: Callable[[Any], Any]) -> Any:
    """`mapped`, but for what lies in host memory and stays there."""
    return mapped(tree, lambda each: each if isinstance(each, PinnedWeight) else leaf(each))


def array_of(leaf: Any) -> Any:
    """The array of a weight, or the leaf itself."""
    return leaf.data if isinstance(leaf, Weight | PackedWeight) else leaf


def with_array(leaf: Any, array: Any) -> Any:
    """The same leaf with another array."""
    return replace(leaf, data=array) if isinstance(leaf, Weight | PackedWeight) else array


def _over(copy: HostCopy, buffer: Any) -> Any:
    """The part over the same bytes elsewhere."""
    arrays = iter(views(buffer, copy.places))
    return _moved(copy.tree, lambda leaf: with_array(leaf, next(arrays)))


def _to_host(tree: Any) -> HostCopy:
    """Copy a part into one pinned buffer and wait for it."""
    cupy, arrays = import_cupy(), arrays_of(tree)
    sizes = [_rounded(array.nbytes) for array in arrays]
    starts = [sum(sizes[:i]) for i in range(len(sizes))]
    # Not from CuPy's pool of pinned memory, which rounds up to powers of two.
    pinned = cupy.cuda.PinnedMemoryPointer(cupy.cuda.PinnedMemory(sum(sizes)), 0)
    memory = np.frombuffer(pinned, np.uint8, sum(sizes))
    stream, runtime = cupy.cuda.get_current_stream(), cupy.cuda.runtime
    try:
        for array, at in zip(arrays, starts, strict=True):
            target = memory[at:].ctypes.data
            runtime.memcpyAsync(target, array.data.ptr, array.nbytes, runtime.memcpyDeviceToHost, stream.ptr)
    finally:
        stream.synchronize()
    places = tuple((at, array.shape, np.dtype(array.dtype)) for at, array in zip(starts, arrays, strict=True))
    held = iter(views(memory, places))
    return HostCopy(memory, _moved(tree, lambda leaf: with_array(leaf, next(held))), places)


def views(buffer: Any, places: Places) -> list[Any]:
    """The arrays that lie in a buffer of bytes."""
    return [
        buffer[at : at + int(np.prod(shape)) * dtype.itemsize].view(dtype).reshape(shape) for at, shape, dtype in places
    ]


def _rounded(nbytes: int) -> int:
    return -(-int(nbytes) // ALIGN) * ALIGN
