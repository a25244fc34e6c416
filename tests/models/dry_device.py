"""A device without a device: arrays have shapes, dtypes and addresses; launches are checked and counted, not run.

`install` puts a stand-in for CuPy in place, so it belongs in a process of its own. What the numbers are is not looked
at: this shows that models hand every kernel arguments that fit its declaration, on either path.
"""

from __future__ import annotations

import ctypes
import mmap
import struct
import sys
import threading
from collections import Counter
from collections.abc import Callable
from contextlib import nullcontext
from math import prod
from types import ModuleType, SimpleNamespace
from typing import Any

import dry_memory
import numpy as np
from dry_memory import address

launches: Counter[str] = Counter()
"""How often each kernel was launched with a grid that is not empty."""
entries: list[tuple[str, tuple[Any, ...]]] = []
"""Kernels that were recorded and their scalars; the driver is given their places, counted from 1."""
alone = threading.Lock()
"""Held by the GPU that adds to them."""
told: list[Callable[[str, list[Any]], None]] = []
"""Told of every launch, with addresses of arrays and of what tensor maps are of, and values of scalars; of "zeros"."""

MUCH = 1 << 16
"""Bytes of an array whose numbers nobody looks at: those of more than a few rows."""

H200 = {
    "major": 9,
    "minor": 0,
    "multiProcessorCount": 132,
    "l2CacheSize": 50 << 20,
    "regsPerMultiprocessor": 1 << 16,
    "sharedMemPerMultiprocessor": 228 << 10,
    "sharedMemPerBlockOptin": 227 << 10,
}


class Array:
    """Wraps a NumPy array, for only what is none counts as a device's."""

    def __init__(self, host: np.ndarray) -> None:
        self.host = host

    def __getattr__(self, name: str) -> Any:
        """Where it lies, or what NumPy says: shape, dtype, size, flags, ...; asked once, for launches ask often."""
        found = SimpleNamespace(ptr=address(self.host), device_id=0) if name == "data" else getattr(self.host, name)
        setattr(self, name, found)
        return found

    def __len__(self) -> int:
        return len(self.host)

    def __int__(self) -> int:
        return int(self.host)

    def __float__(self) -> float:
        return float(self.host)

    def __getitem__(self, key: Any) -> Array:
        return Array(self.host[key.host if isinstance(key, Array) else key])

    def __setitem__(self, key: Any, value: Any) -> None:
        self.host[key] = value.host if isinstance(value, Array) else value

    def __add__(self, other: Any) -> Array:
        return Array(self.host + (other.host if isinstance(other, Array) else other))

    def __sub__(self, other: Any) -> Array:
        return Array(self.host - (other.host if isinstance(other, Array) else other))

    def __mul__(self, other: Any) -> Array:
        return Array(self.host * other)

    def __iadd__(self, other: Any) -> Array:
        return self._in_place(np.add, other.host if isinstance(other, Array) else other)

    def __imul__(self, other: Any) -> Array:
        return self._in_place(np.multiply, other)

    def _in_place(self, function: np.ufunc, other: Any) -> Array:
        """Numbers that kernels would have left are zeros here: that the other one fits is enough, and far quicker."""
        if self.host.nbytes > MUCH and self.host.dtype.kind == "f":
            found = np.broadcast_shapes(self.host.shape, np.shape(other))
            assert found == self.host.shape, f"{found} into {self.host.shape}"
            assert np.can_cast(np.result_type(self.host, other), self.host.dtype, "same_kind")
        else:
            function(self.host, other, out=self.host)
        return self

    def __and__(self, other: Any) -> Array:
        return Array(self.host & other)

    def __rshift__(self, other: Any) -> Array:
        return Array(self.host >> other)

    def reshape(self, *shape: Any) -> Array:
        return Array(self.host.reshape(*shape))

    def transpose(self, *axes: int) -> Array:
        return Array(self.host.transpose(*axes))

    def view(self, dtype: Any) -> Array:
        return Array(self.host.view(dtype))

    def astype(self, dtype: Any, order: Any = "K") -> Array:
        return Array(self.host.astype(dtype, order))

    def __matmul__(self, other: Array) -> Array:
        return asarray(self.host @ other.host)

    def copy(self) -> Array:
        return asarray(self.host)

    def get(self) -> np.ndarray:
        return self.host.copy()

    def set(self, values: np.ndarray, stream: object) -> None:
        self.host[...] = values


def empty(shape: Any, dtype: Any = np.float32) -> Array:
    """Zeros that begin at a multiple of 256 bytes, as a device's memory does."""
    nbytes = int(prod(shape) if isinstance(shape, tuple | list) else shape) * np.dtype(dtype).itemsize
    return Array(dry_memory.lend(nbytes).view(dtype).reshape(shape))


def asarray(values: Any, dtype: Any = None) -> Array:
    host = np.asarray(values, dtype)
    made = empty(host.shape, host.dtype)
    made.host[...] = host
    return made


def over(shape: Any, dtype: Any, pointer: Any) -> Array:
    """An array over memory that is there already."""
    return Array(np.frombuffer(pointer.memory.bytes, np.uint8).view(dtype).reshape(shape))


def concatenate(arrays: Any) -> Array:
    """One after the other; of much that kernels would have filled the room alone."""
    first = arrays[0]
    if first.nbytes <= MUCH or first.dtype.kind != "f":
        return asarray(np.concatenate([array.host for array in arrays]))
    assert {(array.dtype, array.shape[1:]) for array in arrays} == {(first.dtype, first.shape[1:])}
    return empty((sum(map(len, arrays)), *first.shape[1:]), first.dtype)


class Stream:
    """Does everything at once; a captured graph does nothing. One made anew can be captured, the default one cannot."""

    def __init__(self, non_blocking: bool = False, ptr: int = 1) -> None:
        self.ptr, self.capturing = ptr, False

    def __enter__(self) -> None:
        streams.stack.append(self)

    def __exit__(self, *_: object) -> None:
        streams.stack.pop()

    def record(self, event: object = None) -> Event:
        return Event()

    def wait_event(self, event: object) -> None: ...
    def synchronize(self) -> None: ...
    def is_capturing(self) -> bool:
        return self.capturing

    def begin_capture(self) -> None:
        assert self.ptr, "the default stream cannot be captured"
        self.capturing = True

    def end_capture(self) -> SimpleNamespace:
        self.capturing = False
        return SimpleNamespace(launch=lambda stream: None, upload=lambda stream: None)


class Streams(threading.local):
    """Those a thread is inside of, the current one last."""

    def __init__(self) -> None:
        self.stack = [Stream(ptr=0)]


streams = Streams()


class Event:
    """Has always happened; of no capture."""

    origin = stream = None

    def __init__(self, **flags: bool) -> None: ...
    def record(self, stream: object = None) -> None: ...
    def synchronize(self) -> None: ...


class Device(nullcontext):
    """The only device."""

    def __init__(self, number: int = 0) -> None:
        super().__init__()

    def __int__(self) -> int:
        return 0


def map_of(address: int, *tile: Any) -> np.ndarray:
    """128 bytes, in the first of which stands where the array lies."""
    found = np.zeros(16, np.uint64)
    found[0] = address
    return found.view(np.dtype("V128", metadata={"made": (address, *tile)}))


def install() -> None:
    """Make `sp` use this device from now on."""
    runtime = SimpleNamespace(
        getDevice=lambda: 0,
        getDeviceProperties=lambda device: H200,
        memGetInfo=lambda: (140 << 30, 141 << 30),
        memcpyAsync=lambda target, source, nbytes, kind, stream: ctypes.memmove(target, source, nbytes),
        memcpyHostToDevice=1,
        memcpyDeviceToHost=2,
        memcpyDeviceToDevice=3,
    )
    cupy = ModuleType("cupy")
    vars(cupy).update(
        empty=empty,
        zeros=empty,
        ndarray=over,
        ones=lambda shape, dtype: asarray(np.ones(shape, dtype)),
        add=SimpleNamespace(at=lambda a, places, b: np.add.at(a.host, places.host, b.host)),
        empty_like=lambda like: empty(like.shape, like.dtype),
        asarray=asarray,
        full=lambda shape, value, dtype: asarray(np.full(shape, value, dtype)),
        arange=lambda *bounds, **dtype: asarray(np.arange(*bounds, **dtype)),
        ascontiguousarray=lambda array: asarray(array.host),
        concatenate=concatenate,
        get_default_memory_pool=lambda: dry_memory.pool,
        cuda=SimpleNamespace(
            runtime=runtime,
            Stream=Stream,
            Event=Event,
            Device=Device,
            get_current_stream=lambda: streams.stack[-1],
            alloc_pinned_memory=lambda size: mmap.mmap(-1, size),
            **dry_memory.NAMES,
        ),
        **{name: getattr(np, name) for name in ("uint8", "uint16", "uint32", "uint64", "int32", "int64")},
        **{name: getattr(np, name) for name in ("float16", "float32")},
    )
    sys.modules["cupy"] = cupy
    import sp.kernels.launch
    import sp.kernels.launch_replay
    import sp.kernels.tensor_map
    from sp.kernels.launch_replay import _recorder

    def launch(self: Any, grid: tuple[int, ...], *values: Any, defines: Any = None, **options: Any) -> None:
        assert len(values) == len(self._checkers), f"{self.entry}: {len(values)} values"
        checked = tuple(check(value, 0) for check, value in zip(self._checkers, values, strict=True))
        given = self.variants[0] if defines is None else defines
        assert 0 < self.block(given) <= 1024, f"{self.entry}: {given}"
        assert self.shared_bytes(given) <= H200["sharedMemPerBlockOptin"], f"{self.entry}: {given}"
        if min(grid) > 0:
            # A kernel that is given nothing to read but runs would read what lies behind it.
            assert all(value.size for value in values if isinstance(value, Array)), f"{self.entry}: an empty array"
            launches[self.entry] += 1
            if told:
                tell(self.entry, [value.item() if plain(value) else where(value) for value in checked])
            if (recorder := _recorder.get()) is not None:
                with alone:  # threads of several GPUs launch
                    entries.append((self.entry, tuple(value if plain(value) else None for value in checked)))
                    number = len(entries)
                block = (self.block(given),)
                recorder.add_launch(number, grid, block, checked, self.shared_bytes(given))

    def tell(entry: str, values: list[Any]) -> None:
        for one in told:
            one(entry, values)

    def plain(value: Any) -> bool:
        return isinstance(value, np.generic) and value.nbytes <= 8

    def where(value: Any) -> int:
        return int(value.view(np.uint64)[0] if isinstance(value, np.ndarray) else value.data.ptr)

    def again(kernel: Any, *given: Any) -> int:
        """What ``cuLaunchKernel`` is called with: the last but one says where each argument lies."""
        (entry, arguments), where = entries[kernel.value - 1], given[-2]
        launches[entry] += 1
        values: list[Any] = []
        for at, value in zip(where, arguments, strict=True):
            found = ctypes.string_at(at, 8)
            values += struct.unpack_from("P" if value is None else value.dtype.char, found)
        tell(entry, values)
        return 0

    def fill(address: Any, value: Any, nbytes: Any, stream: Any) -> int:
        tell("zeros", [nbytes.value])
        return 0

    sp.kernels.launch.KernelSpec.launch = launch  # type: ignore[method-assign]
    sp.kernels.launch_replay.driver = lambda: SimpleNamespace(cuLaunchKernel=again, cuMemsetD8Async=fill)
    sp.kernels.tensor_map._encode = map_of
