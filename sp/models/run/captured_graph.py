"""CapturedGraph: work on the device that is done again and again, from its second time on as a CUDA graph."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from typing import Any, Generic, TypeVar

import numpy as np

from sp.errors import DeviceError
from sp.kernels import import_cupy
from sp.kernels.scratch import Scratch
from sp.models.cache.cache import Cache

Made = TypeVar("Made")


class CaptureStream:
    """A stream of its own, for only such a one can be captured, with memory of its own."""

    def __init__(self) -> None:
        self.stream = import_cupy().cuda.Stream(non_blocking=True)
        self._scratch = Scratch()

    @contextmanager
    def working(self) -> Iterator[None]:
        """Work goes to this stream and takes its memory. It runs after what the current stream was given and before
        what it is given next, since kernels that count their finished blocks share the counters."""
        current = import_cupy().cuda.get_current_stream()
        self.stream.wait_event(current.record())
        try:
            with self.stream, self._scratch.lent():
                yield
        finally:
            current.wait_event(self.stream.record())

    def end(self) -> None:
        """Wait for the work, and give the memory back."""
        self.stream.synchronize()
        self._scratch.end()


class CapturedGraph(Generic[Made]):
    """Runs work that is always the same: kernel by kernel the first time, then captured, then replayed.

    Kernels compile and make room for themselves the first time, which a capture cannot do. What the work makes lies in
    memory of its own and stays until it is done again; what it reads must stay where it was. On the host it runs no
    more once captured: counts that it moved are then for the caller to move.

    Parameters
    ----------
    eager : bool
        Never capture, as a reference.
    scratch : Scratch, optional
        Memory to share with others that are never under way at the same time; whoever made it ends it.
    agreed : callable, optional
        `Model.agreed` of a model that cards share: all of them capture, or none does.
    cache : Cache, optional
        Whose counts a capture that cannot be made moves back, so that the work is done without; by default the error is
        raised, on all cards.

    Attributes
    ----------
    refused : str or None
        Why it could not be captured, and is not tried again.
    """

    def __init__(
        self,
        *,
        eager: bool = False,
        scratch: Scratch | None = None,
        agreed: Callable[[bool], bool] | None = None,
        cache: Cache | None = None,
    ) -> None:
        self._eager, self._own = eager, scratch is None
        self._scratch = Scratch() if scratch is None else scratch
        self._graph: Any = None
        self._agreed, self._cache = agreed, cache  # these go after the graph: what it was captured with must outlive it
        self._made: Any = None
        self._warm = False
        self.refused: str | None = None

    @property
    def ready(self) -> bool:
        """Whether it is captured."""
        return self._graph is not None

    @property
    def capturing(self) -> bool:
        """Whether the next call captures."""
        return self._warm and not self.ready and not self._eager

    def __call__(self, work: Callable[[], Made]) -> Made:
        """Do the work on the current stream; on the default one, which cannot be captured, kernel by kernel. It is
        given anew each time so that this holds on to nobody's memory."""
        stream = import_cupy().cuda.get_current_stream()
        if self._graph is None:
            with self._scratch.lent():
                self._made = None
                if self._eager or not self._warm or not stream.ptr:
                    if self._agreed is not None and stream.ptr and not self._eager:
                        self._agreed(True)  # kernels are loaded now, best while no card waits for another
                    self._made, self._warm = work(), bool(stream.ptr)
                    return self._made  # type: ignore[no-any-return]
                if self._agreed is None:
                    self._capture(work, stream)
                elif not self._captured_on_all(work, stream, self._agreed):
                    self._made = work()
                    return self._made  # type: ignore[no-any-return]
        self._graph.launch(stream)
        return self._made  # type: ignore[no-any-return]

    def clear(self) -> None:
        """Forget what was captured, and give the memory back; no replay may be under way."""
        self._graph = self._made = None
        self._warm = False
        if self._own:
            self._scratch.end()

    def _capture(self, work: Callable[[], Made], stream: Any) -> None:
        stream.begin_capture()
        try:
            self._made = work()
        except BaseException:
            with suppress(Exception):
                stream.end_capture()
            raise
        self._graph = stream.end_capture()

    def _captured_on_all(self, work: Callable[[], Made], stream: Any, agreed: Callable[[bool], bool]) -> bool:
        """Capture what cards do together; whether all of them could, so that the work is replayed on all or on none."""
        agreed(True)  # all that was queued is done: to ask for memory may wait for what others are waited for by
        tokens = None if self._cache is None else self._cache.tokens
        error: Exception | None = None
        try:
            self._capture(work, stream)
            self._graph.upload(stream)
        except Exception as found:
            error = found
        if agreed(error is None):
            return True
        error = error or DeviceError("another card could not capture what all of them do")
        self._graph = self._made = None
        if self._cache is None or tokens is None:
            raise error
        self._cache.crop(tokens)
        self._eager, self.refused = True, why(error)
        return False


def why(error: Exception) -> str:
    """An error in one line.

    >>> why(ValueError("no   room"))
    'ValueError: no room'
    """
    return f"{type(error).__name__}: {' '.join(str(error).split())}"


class PinnedStaging:
    """Arrays that go to the device in one copy, for work that reads them where they always lie. `fields`, (dtype,
    size): by name. `device`: zeros at first."""

    def __init__(self, **fields: tuple[Any, int]) -> None:
        cupy = import_cupy()
        starts, size = {}, 0
        for name, (kind, count) in fields.items():
            starts[name] = size
            size += -(-count * np.dtype(kind).itemsize // 256) * 256
        self._pinned = np.frombuffer(cupy.cuda.alloc_pinned_memory(size), np.uint8, size)
        self._buffer = cupy.zeros(size, np.uint8)
        self._sent = cupy.cuda.Event(disable_timing=True)
        self._host: dict[str, Any] = {}
        self.device: dict[str, Any] = {}
        for name, (kind, count) in fields.items():
            part = slice(starts[name], starts[name] + count * np.dtype(kind).itemsize)
            self._host[name], self.device[name] = self._pinned[part].view(kind), self._buffer[part].view(kind)
            self._host[name][:] = 0

    def __del__(self) -> None:
        """Others get the pinned memory now, and what was sent must have left it. A dying interpreter cannot wait."""
        with suppress(Exception):
            self._sent.synchronize()

    def open(self) -> dict[str, Any]:
        """The arrays to fill, once what was sent before has left them."""
        self._sent.synchronize()
        return self._host

    def send(self) -> None:
        """Copy everything, on the current stream."""
        cuda = import_cupy().cuda
        pointers, stream = (self._buffer.data.ptr, self._pinned.ctypes.data), cuda.get_current_stream()
        cuda.runtime.memcpyAsync(*pointers, len(self._pinned), cuda.runtime.memcpyHostToDevice, stream.ptr)
        self._sent.record(stream)
