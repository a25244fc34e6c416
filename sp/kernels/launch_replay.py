"""Record the launches of a layer and replay them with other weights.

Preparing a launch costs the host several times more than submitting it: shapes are checked, a variant of the kernel is
chosen, arrays are allocated. Layers of a model differ only in their weights. So the launches of one layer are recorded
with their arguments, and for another layer the addresses of weights are replaced. Arrays allocated on the way are in a
workspace that nothing else uses (`sp.kernels.workspace`), where one array reuses the memory of another as it does
without recording: allocated separately, they would need the memory of all of them.

Unlike a CUDA graph this needs no capture, and a replacement costs one store per address."""

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

Span = tuple[int, int]  # address of an array, and its bytes


class TemporaryMemory(Protocol):
    """Memory for arrays allocated during a recording: a `Workspace`, which imports this module."""

    def use(self) -> AbstractContextManager[None]:
        """Make CuPy allocate there inside the block."""
        ...


_recorder: ContextVar[LaunchRecorder | None] = ContextVar("launch_recorder", default=None)
replay_disabled: ContextVar[bool] = ContextVar("replay_disabled", default=False)
"""True where every launch is observed, for example timed; then none is replayed."""


@contextmanager
def unrecorded() -> Iterator[None]:
    """Exclude the work inside the block from the current recording."""
    recorder = _recorder.get()
    if recorder is None:
        yield
        return
    with setting(_recorder, None), standing_in(recorder.cupy):
        yield


class Kernel:
    """A loaded kernel, called like CuPy's, that adds its launches to the current recording."""

    __slots__ = ("function", "ptr")

    def __init__(self, function: Any) -> None:
        self.function, self.ptr = function, function.ptr

    def __call__(
        self, grid: tuple[int, ...], block: tuple[int, ...], arguments: tuple[Any, ...], *, shared_mem: int = 0
    ) -> None:
        recorder = _recorder.get()
        if recorder is not None:
            recorder.add_launch(self.ptr, grid, block, arguments, shared_mem)
        self.function(grid, block, arguments, shared_mem=shared_mem)


class Address(NamedTuple):
    """Address of a temporary array, which has the same place in every replay."""

    ptr: int

    @property
    def data(self) -> Address:
        """The address itself, so that ``array.data.ptr`` works as for an array."""
        return self


class Launch(NamedTuple):
    """A kernel and its arguments, as `sp.kernels.signature` returns them, with an `Address` for each temporary."""

    kernel: int
    grid: tuple[int, ...]
    block: tuple[int, ...]
    arguments: tuple[Any, ...]
    shared: int


class Zeros(NamedTuple):
    """A temporary array that must be zeroed again."""

    ptr: int
    nbytes: int


class LaunchRecorder:
    """Records the device work inside `recording`, by one thread on one stream.

    `workspace`: memory of arrays that are allocated meanwhile. It may be shared with other recordings whose replays go
    to the same stream, and with nothing else before the last replay is done. `commands`: launches and fills in order;
    arrays from outside stay referenced. `unsupported`: name of another CuPy function that was used and is not recorded;
    empty if there is none. Methods of arrays are not noticed. `cupy`: CuPy itself.
    """

    def __init__(self, workspace: TemporaryMemory) -> None:
        self.commands: list[Launch | Zeros] = []
        self.unsupported = ""
        self.cupy = import_cupy()
        self._workspace, self._temporaries = workspace, list[Span]()
        self._is_temporary = dict[int, bool]()  # by address

    @contextmanager
    def recording(self) -> Iterator[None]:
        """Execute and record kernels and fills inside the block."""
        with self._workspace.use(), setting(_recorder, self), standing_in(_RecordingCuPy(self)):
            yield

    def add_launch(
        self, kernel: int, grid: tuple[int, ...], block: tuple[int, ...], arguments: Sequence[Any], shared: int
    ) -> None:
        """Append a launch."""
        self.commands.append(Launch(kernel, grid, block, tuple(map(self._reference, arguments)), shared))

    def add_temporary(self, array: Any) -> Any:
        """Note that an array was allocated during the recording, and return it."""
        self._temporaries.append((array.data.ptr, array.nbytes))
        return array

    def _reference(self, argument: Any) -> Any:
        """Return an argument, or only the address of a temporary array, so that its memory can be reused."""
        if isinstance(argument, np.generic | np.ndarray):
            return argument
        ptr = argument.data.ptr
        # An address stays temporary once it is: nothing else gets memory of the workspace. Most addresses recur.
        temporary = self._is_temporary.get(ptr)
        if temporary is None:
            temporary = any(start <= ptr < start + nbytes for start, nbytes in self._temporaries)
            self._is_temporary[ptr] = temporary
        return Address(ptr) if temporary else argument

    def replay(self, exchanged: Sequence[Any]) -> LaunchReplay | None:
        """Return a replay with other arrays in place of those `exchanged`, which do not overlap. None if that is
        impossible: an unsupported function was used, or one of the arrays is temporary or no argument of any launch, so
        that it reached the device in another way."""
        if self.unsupported:
            return None
        spans = [(array.data.ptr, array.nbytes) for array in exchanged]
        replay = LaunchReplay(self.commands, spans)
        return replay if replay.positions == set(range(len(spans))) else None


def packed(arguments: Sequence[Any]) -> tuple[Any, Any]:
    """Return arguments as the driver reads them: their values, 8 bytes each, and the address of each. `arguments`:
    device arrays, NumPy scalars and tensor maps, as `sp.kernels.signature` returns them. Maps are read in place; they
    and the values must stay alive until the launch has been submitted."""
    values, pointers = (ctypes.c_uint64 * len(arguments))(), (ctypes.c_void_p * len(arguments))()
    base = ctypes.addressof(values)
    for i, value in enumerate(arguments):
        pointers[i] = base + 8 * i
        if isinstance(value, np.generic):
            values[i] = int.from_bytes(value.tobytes(), sys.byteorder)
        elif isinstance(value, np.ndarray):
            pointers[i] = value.ctypes.data
        else:
            values[i] = value.data.ptr
    return values, pointers


class _RecordingCuPy:
    """The module that `import_cupy` returns during a recording: CuPy, whose functions are recorded or noticed."""

    ALLOCATING = ("empty", "empty_like", "ndarray")
    """Functions that queue no device work; nor do types, nor the functions of `cuda` that ops use."""

    def __init__(self, recorder: LaunchRecorder) -> None:
        self._recorder = recorder

    def zeros(self, shape: Any, dtype: Any = float) -> Any:
        """Allocate zeros as CuPy does, and record the fill."""
        array = self._recorder.add_temporary(self._recorder.cupy.zeros(shape, dtype))
        self._recorder.commands.append(Zeros(array.data.ptr, array.nbytes))
        return array

    def __getattr__(self, name: str) -> Any:
        attribute = getattr(self._recorder.cupy, name)
        if name in self.ALLOCATING:
            return partial(self._allocate, attribute)
        if name != "cuda" and not isinstance(attribute, type):
            self._recorder.unsupported = name
        return attribute

    def _allocate(self, allocate: Callable[..., Any], *args: Any, **kwargs: Any) -> Any:
        return self._recorder.add_temporary(allocate(*args, **kwargs))


class LaunchReplay:
    """Recorded launches, ready to be submitted again on their stream; see `LaunchRecorder.replay`.

    `commands`: see `LaunchRecorder`; `exchanged`: the arrays to replace, of which kernels may take any part.
    """

    def __init__(self, commands: Sequence[Launch | Zeros], exchanged: Sequence[Span]) -> None:
        self._alive: list[Any] = [*commands]  # references to everything that the driver reads
        self._slots: list[tuple[Any, int, int, int]] = []  # (values, index in them, position in `exchanged`, offset)
        self._maps: list[tuple[Any, Any, int, int]] = []  # (copy, original, position in `exchanged`, offset)
        ordered = sorted((start, nbytes, position) for position, (start, nbytes) in enumerate(exchanged))
        starts = [start for start, *_ in ordered]

        def locate(address: int) -> tuple[int, int] | None:
            """Return the position in `exchanged` of the array that contains an address, and the offset in it."""
            if not (after := bisect_right(starts, address)):
                return None
            start, nbytes, position = ordered[after - 1]
            return (position, address - start) if address - start < nbytes else None

        stream = ctypes.c_void_p(import_cupy().cuda.get_current_stream().ptr)
        launch, fill = driver().cuLaunchKernel, driver().cuMemsetD8Async
        self._calls = [
            (fill, (ctypes.c_void_p(command.ptr), ctypes.c_ubyte(0), ctypes.c_size_t(command.nbytes), stream))
            if isinstance(command, Zeros)
            else (launch, (*self._packed(command, locate, stream), None))
            for command in commands
        ]

    @property
    def positions(self) -> set[int]:
        """Positions of the exchanged arrays that are arguments of some launch."""
        return {position for *_, position, _ in (*self._slots, *self._maps)}

    def __call__(self, addresses: Sequence[int]) -> None:
        """Submit the launches again, with arrays of the same layout at these addresses in place of those exchanged.
        DeviceError if the driver rejects a launch."""
        for values, index, position, offset in self._slots:
            values[index] = addresses[position] + offset
        for copy, original, position, offset in self._maps:
            copy[...] = map_at(original, addresses[position] + offset)
        for call, arguments in self._calls:
            if status := call(*arguments):
                raise DeviceError(
                    f"CUDA error {status} while launches were replayed; run again with SP_KERNEL_DEBUG=1, which "
                    "disables replay and names the kernel"
                )

    def _packed(self, launch: Launch, locate: Callable[[int], tuple[int, int] | None], stream: Any) -> tuple[Any, ...]:
        """Return the driver's arguments: kernel, grid, block, shared memory, stream, and addresses of the kernel's
        own."""
        values, pointers = packed(launch.arguments)
        self._alive.append(values)
        for i, value in enumerate(launch.arguments):
            if isinstance(value, np.generic | Address):
                continue
            address = mapped(value)
            if address is None:
                if place := locate(values[i]):
                    self._slots.append((values, i, *place))
            elif place := locate(address):
                copy = value.copy()  # the map itself is cached and shared, see `tensor_map`
                pointers[i] = copy.ctypes.data
                self._maps.append((copy, value, *place))
        sides = (*launch.grid, *(1,) * (3 - len(launch.grid)), *launch.block, *(1,) * (3 - len(launch.block)))
        return ctypes.c_void_p(launch.kernel), *map(int, sides), launch.shared, stream, pointers
