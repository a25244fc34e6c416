"""Recording and Repeat: launches that were made once, made again with other weights.

Planning a launch takes the host several times as long as giving it to the driver: shapes are checked, a form of the
kernel is chosen, arrays are made. Layers of a model are alike but for their weights. So what one of them launched is
kept, with its arguments and the arrays they name, and for another the addresses of weights are exchanged.

Unlike a CUDA graph this needs no capture, takes no memory of its own, and what is exchanged costs one store an address.
"""

from __future__ import annotations

import ctypes
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from contextvars import ContextVar
from functools import cache, partial
from typing import Any, NamedTuple

from sp.errors import DeviceError
from sp.kernels.device import import_cupy, standing_in
from sp.kernels.setting import setting

_present: ContextVar[Recording | None] = ContextVar("recording", default=None)


@contextmanager
def unrecorded() -> Iterator[None]:
    """Inside, what is done is no part of a recording under way."""
    with setting(_present, None), standing_in(None):
        yield


class Kernel:
    """A loaded kernel, called as CuPy's is, that tells the recording under way.

    Parameters
    ----------
    function : cupy.cuda.Function
    """

    __slots__ = ("function", "ptr")

    def __init__(self, function: Any) -> None:
        self.function, self.ptr = function, function.ptr

    def __call__(
        self, grid: tuple[int, ...], block: tuple[int, ...], arguments: tuple[Any, ...], *, shared_mem: int = 0
    ) -> None:
        recording = _present.get()
        if recording is not None:
            recording.made.append(Launch(self.ptr, grid, block, arguments, shared_mem))
        self.function(grid, block, arguments, shared_mem=shared_mem)


class Launch(NamedTuple):
    """A kernel and what it was given, as `sp.kernels.signature` leaves it."""

    kernel: int
    grid: tuple[int, ...]
    block: tuple[int, ...]
    arguments: tuple[Any, ...]
    shared: int


class Zeros(NamedTuple):
    """An array that was made, and has to be made zero again."""

    array: Any


class Recording:
    """What is done on the device inside of `going_on`, by one thread on one stream.

    Attributes
    ----------
    made : list of Launch and Zeros
        In their order.
    held : list of arrays
        Made meanwhile. Launches may know them by a tensor map alone, which holds no array.
    foreign : str
        What else CuPy was asked for, which is not recorded; empty if nothing was. Methods of arrays are not seen.
    """

    def __init__(self) -> None:
        self.made: list[Launch | Zeros] = []
        self.held: list[Any] = []
        self.foreign = ""

    @contextmanager
    def going_on(self) -> Iterator[None]:
        """Inside, kernels and zeros are done, and recorded."""
        with setting(_present, self), standing_in(_SeenCuPy(self, import_cupy())):
            yield

    def repeat(self, exchanged: Sequence[int]) -> Repeat | None:
        """What does the same again with other addresses in the place of those `exchanged`.

        None where that cannot be: something foreign was done, or one of the addresses is no argument of any launch, so
        what lies there reached the device in another way.
        """
        given = {address_of(value) for one in self.made if isinstance(one, Launch) for value in one.arguments}
        return None if self.foreign or not given.issuperset(exchanged) else Repeat(self.made, self.held, exchanged)


def address_of(value: Any) -> int | None:
    """Where a device array lies; None for the other arguments of kernels."""
    return value.data.ptr if hasattr(value, "data") and hasattr(value.data, "ptr") else None


class _SeenCuPy:
    """What `import_cupy` gives inside of a recording: CuPy, whose use is looked at."""

    MAKING = ("empty", "empty_like", "ndarray")
    """They put nothing in the device's queue; nor do other types, and what `cuda` has."""

    def __init__(self, recording: Recording, cupy: Any) -> None:
        self._recording, self._cupy = recording, cupy

    def zeros(self, shape: Any, dtype: Any = float) -> Any:
        """As CuPy's, to be repeated."""
        array = self._cupy.zeros(shape, dtype)
        self._recording.made.append(Zeros(array))
        return array

    def __getattr__(self, name: str) -> Any:
        found = getattr(self._cupy, name)
        if name in self.MAKING:
            return partial(self._make, found)
        if name != "cuda" and not isinstance(found, type):
            self._recording.foreign = name
        return found

    def _make(self, make: Callable[..., Any], *given: Any, **named: Any) -> Any:
        array = make(*given, **named)
        self._recording.held.append(array)
        return array


class Repeat:
    """Recorded launches, ready to be given to the driver again, on the stream they went to; see `Recording.repeat`."""

    def __init__(self, made: Sequence[Launch | Zeros], arrays: Sequence[Any], exchanged: Sequence[int]) -> None:
        self._held: list[Any] = [*made, *arrays]  # and below what the driver reads
        self._slots: list[tuple[Any, int, int]] = []
        places = {address: place for place, address in enumerate(exchanged)}
        stream = ctypes.c_void_p(import_cupy().cuda.get_current_stream().ptr)
        launch, fill = _driver()
        self._calls = [
            (fill, (ctypes.c_void_p(one.array.data.ptr), ctypes.c_ubyte(0), ctypes.c_size_t(one.array.nbytes), stream))
            if isinstance(one, Zeros)
            else (launch, (*self._packed(one, places, stream), None))
            for one in made
        ]

    def __call__(self, addresses: Sequence[int]) -> None:
        """Do it again, with these addresses in the place of those exchanged.

        Raises
        ------
        DeviceError
            When the driver refuses a launch.
        """
        for values, index, place in self._slots:
            values[index] = addresses[place]
        for call, given in self._calls:
            if status := call(*given):
                raise DeviceError(f"a launch was repeated and failed with CUDA error {status}")

    def _packed(self, one: Launch, places: dict[int, int], stream: Any) -> tuple[Any, ...]:
        """The driver's arguments: kernel, grid, block, shared memory, stream, and where each of the kernel's own is."""
        values, pointers = (ctypes.c_uint64 * len(one.arguments))(), (ctypes.c_void_p * len(one.arguments))()
        self._held.append(values)
        for i, value in enumerate(one.arguments):
            pointers[i] = here = ctypes.addressof(values) + 8 * i
            if (address := address_of(value)) is not None:
                values[i] = address
                if address in places:
                    self._slots.append((values, i, places[address]))
            elif value.nbytes > 8:  # a tensor map, read where it lies
                pointers[i] = value.ctypes.data
            else:
                ctypes.memmove(here, value.tobytes(), value.nbytes)
        sides = (*one.grid, *(1,) * (3 - len(one.grid)), *one.block, *(1,) * (3 - len(one.block)))
        numbers = [ctypes.c_uint(each) for each in (*sides, one.shared)]
        return ctypes.c_void_p(one.kernel), *numbers, stream, pointers


@cache
def _driver() -> tuple[Any, Any]:
    """``cuLaunchKernel`` and ``cuMemsetD8Async``."""
    library = ctypes.CDLL("libcuda.so.1")
    return library.cuLaunchKernel, library.cuMemsetD8Async
