"""Recording and Repeat: launches that were made once, made again with other weights.

Planning a launch takes the host several times as long as giving it to the driver: shapes are checked, a form of the
kernel is chosen, arrays are made. Layers of a model are alike but for their weights. So what one of them launched is
kept, with its arguments, and for another the addresses of weights are exchanged. What it made on its way lies in memory
that nobody else is given (`sp.kernels.scratch`), where one array took the place of another as it does launch by launch:
held apart, they would take the room of all of them.

Unlike a CUDA graph this needs no capture, and what is exchanged costs one store an address."""

from __future__ import annotations

import ctypes
import sys
from bisect import bisect_right
from collections.abc import Callable, Iterator, Sequence
from contextlib import AbstractContextManager, contextmanager
from contextvars import ContextVar
from functools import partial
from typing import Any, NamedTuple, Protocol

import numpy as np

from sp.errors import DeviceError
from sp.kernels.device import driver, import_cupy, standing_in
from sp.kernels.setting import setting
from sp.kernels.tensor_map import map_at, mapped

Span = tuple[int, int]  # where an array begins, and its bytes


class Lent(Protocol):
    """Memory for arrays that are made meanwhile: a `Scratch`, which stands right of this file."""

    def lent(self) -> AbstractContextManager[None]:
        """Inside, CuPy allocates there."""
        ...


_present: ContextVar[Recording | None] = ContextVar("recording", default=None)
watched: ContextVar[bool] = ContextVar("watched", default=False)
"""Set where every launch is looked at when it is made; nobody repeats any then."""


@contextmanager
def unrecorded() -> Iterator[None]:
    """Inside, what is done is no part of a recording under way."""
    recording = _present.get()
    if recording is None:
        yield
        return
    with setting(_present, None), standing_in(recording.cupy):
        yield


class Kernel:
    """A loaded kernel, called as CuPy's is, that tells the recording under way."""

    __slots__ = ("function", "ptr")

    def __init__(self, function: Any) -> None:
        self.function, self.ptr = function, function.ptr

    def __call__(
        self, grid: tuple[int, ...], block: tuple[int, ...], arguments: tuple[Any, ...], *, shared_mem: int = 0
    ) -> None:
        recording = _present.get()
        if recording is not None:
            recording.launched(self.ptr, grid, block, arguments, shared_mem)
        self.function(grid, block, arguments, shared_mem=shared_mem)


class Address(NamedTuple):
    """Stands for an array that is made anew in every repeat, where it was."""

    ptr: int

    @property
    def data(self) -> Address:
        """As an array has it."""
        return self


class Launch(NamedTuple):
    """A kernel and what it was given, as `sp.kernels.signature` leaves it, but for what is made anew."""

    kernel: int
    grid: tuple[int, ...]
    block: tuple[int, ...]
    arguments: tuple[Any, ...]
    shared: int


class Zeros(NamedTuple):
    """An array that was made, and has to be made zero again."""

    ptr: int
    nbytes: int


class Recording:
    """What is done on the device inside of `going_on`, by one thread on one stream. `scratch`: where arrays lie that
    are made meanwhile. It may be lent to other recordings whose repeats go to the same stream, and to nothing else
    before the last repeat is done. `made`: in their order. Arrays from outside are held. `foreign`: what else CuPy was
    asked for, which is not recorded; empty if nothing was. Methods of arrays are not seen. `cupy`: CuPy itself."""

    def __init__(self, scratch: Lent) -> None:
        self.made: list[Launch | Zeros] = []
        self.foreign = ""
        self.cupy = import_cupy()
        self._scratch, self._inside, self._places = scratch, list[Span](), dict[int, bool]()

    @contextmanager
    def going_on(self) -> Iterator[None]:
        """Inside, kernels and zeros are done, and recorded."""
        with self._scratch.lent(), setting(_present, self), standing_in(_SeenCuPy(self)):
            yield

    def launched(
        self, kernel: int, grid: tuple[int, ...], block: tuple[int, ...], arguments: Sequence[Any], shared: int
    ) -> None:
        """Note a launch, as `Launch` has it."""
        self.made.append(Launch(kernel, grid, block, tuple(map(self._light, arguments)), shared))

    def inside(self, array: Any) -> Any:
        """An array that was made meanwhile, noted as such."""
        self._inside.append((array.data.ptr, array.nbytes))
        return array

    def _light(self, argument: Any) -> Any:
        """An argument; of an array that was made meanwhile its address alone, so that its memory may be used again."""
        if isinstance(argument, np.generic | np.ndarray):
            return argument
        at = argument.data.ptr
        inside = self._places.get(at)  # which it stays: nobody else is given this memory, and most come again
        if inside is None:
            inside = self._places[at] = any(start <= at < start + nbytes for start, nbytes in self._inside)
        return Address(at) if inside else argument

    def repeat(self, exchanged: Sequence[Any]) -> Repeat | None:
        """What does the same again with other arrays in the place of those `exchanged`, which lie apart. None where
        that cannot be: something foreign was done, or one of the arrays was made meanwhile or is no argument of any
        launch, so it reached the device in another way."""
        if self.foreign:
            return None
        spans = [(one.data.ptr, one.nbytes) for one in exchanged]
        repeat = Repeat(self.made, spans)
        return repeat if repeat.places == set(range(len(spans))) else None


def packed(arguments: Sequence[Any]) -> tuple[Any, Any]:
    """Arguments as the driver reads them: their values, 8 bytes each, and where each of them lies. `arguments`: device
    arrays, NumPy scalars and tensor maps, as `sp.kernels.signature` leaves them. Maps are read where they are; they and
    the values must stay until the launch was given to the driver."""
    values, pointers = (ctypes.c_uint64 * len(arguments))(), (ctypes.c_void_p * len(arguments))()
    here = ctypes.addressof(values)
    for i, value in enumerate(arguments):
        pointers[i] = here + 8 * i
        if isinstance(value, np.generic):
            values[i] = int.from_bytes(value.tobytes(), sys.byteorder)
        elif isinstance(value, np.ndarray):
            pointers[i] = value.ctypes.data
        else:
            values[i] = value.data.ptr
    return values, pointers


class _SeenCuPy:
    """What `import_cupy` gives inside of a recording: CuPy, whose use is looked at."""

    MAKING = ("empty", "empty_like", "ndarray")
    """They put nothing in the device's queue; nor do types, nor what ops ask `cuda` for."""

    def __init__(self, recording: Recording) -> None:
        self._recording = recording

    def zeros(self, shape: Any, dtype: Any = float) -> Any:
        """As CuPy's, to be repeated."""
        array = self._recording.inside(self._recording.cupy.zeros(shape, dtype))
        self._recording.made.append(Zeros(array.data.ptr, array.nbytes))
        return array

    def __getattr__(self, name: str) -> Any:
        found = getattr(self._recording.cupy, name)
        if name in self.MAKING:
            return partial(self._make, found)
        if name != "cuda" and not isinstance(found, type):
            self._recording.foreign = name
        return found

    def _make(self, make: Callable[..., Any], *given: Any, **named: Any) -> Any:
        return self._recording.inside(make(*given, **named))


class Repeat:
    """Recorded launches, ready to be given to the driver again, on the stream they went to; see `Recording.repeat`.
    `made`: see `Recording`; `exchanged`: kernels may be given any part of them."""

    def __init__(self, made: Sequence[Launch | Zeros], exchanged: Sequence[Span]) -> None:
        self._held: list[Any] = [*made]  # and below what the driver reads
        self._slots: list[tuple[Any, int, int, int]] = []
        self._maps: list[tuple[Any, Any, int, int]] = []
        ordered = sorted((start, nbytes, place) for place, (start, nbytes) in enumerate(exchanged))
        starts = [start for start, *_ in ordered]

        def found(address: int) -> tuple[int, int] | None:
            """Which of them an address is of, and how far behind its start."""
            if not (after := bisect_right(starts, address)):
                return None
            start, nbytes, place = ordered[after - 1]
            return (place, address - start) if address - start < nbytes else None

        stream = ctypes.c_void_p(import_cupy().cuda.get_current_stream().ptr)
        launch, fill = driver().cuLaunchKernel, driver().cuMemsetD8Async
        self._calls = [
            (fill, (ctypes.c_void_p(one.ptr), ctypes.c_ubyte(0), ctypes.c_size_t(one.nbytes), stream))
            if isinstance(one, Zeros)
            else (launch, (*self._packed(one, found, stream), None))
            for one in made
        ]

    @property
    def places(self) -> set[int]:
        """Which of the exchanged arrays are arguments."""
        return {place for *_, place, _ in (*self._slots, *self._maps)}

    def __call__(self, addresses: Sequence[int]) -> None:
        """Do it again, with arrays of the same layout that begin at these addresses in the place of those exchanged.
        DeviceError when the driver refuses a launch."""
        for values, index, place, offset in self._slots:
            values[index] = addresses[place] + offset
        for own, found, place, offset in self._maps:
            own[...] = map_at(found, addresses[place] + offset)
        for call, given in self._calls:
            if status := call(*given):
                raise DeviceError(
                    f"CUDA error {status} when launches were repeated; run again with SP_KERNEL_DEBUG=1, which repeats "
                    "none and names the kernel"
                )

    def _packed(self, one: Launch, found: Callable[[int], tuple[int, int] | None], stream: Any) -> tuple[Any, ...]:
        """The driver's arguments: kernel, grid, block, shared memory, stream, and where each of the kernel's own is."""
        values, pointers = packed(one.arguments)
        self._held.append(values)
        for i, value in enumerate(one.arguments):
            if isinstance(value, np.generic | Address):
                continue
            at = mapped(value)
            if at is None:
                if place := found(values[i]):
                    self._slots.append((values, i, *place))
            elif place := found(at):
                own = value.copy()  # the map itself is everybody's
                pointers[i] = own.ctypes.data
                self._maps.append((own, value, *place))
        sides = (*one.grid, *(1,) * (3 - len(one.grid)), *one.block, *(1,) * (3 - len(one.block)))
        return ctypes.c_void_p(one.kernel), *map(int, sides), one.shared, stream, pointers
