"""CapturedGraph: repeated work on the device, which runs as a CUDA graph from its second time on."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from typing import Any, Generic, TypeVar

import numpy as np

from sp.errors import DeviceError
from sp.kernels import import_cupy
from sp.kernels.workspace import Workspace
from sp.models.cache.cache import Cache

Result = TypeVar("Result")


class CaptureStream:
    """A stream with memory of its own; only such a stream can be captured, the default stream cannot."""

    def __init__(self) -> None:
        self.stream = import_cupy().cuda.Stream(non_blocking=True)
        self._workspace = Workspace()

    @contextmanager
    def working(self) -> Iterator[None]:
        """Launch work on this stream, with its memory. It runs after earlier work of the current stream and before
        later work, since kernels that count their finished blocks share the counters."""
        current = import_cupy().cuda.get_current_stream()
        self.stream.wait_event(current.record())
        try:
            with self.stream, self._workspace.use():
                yield
        finally:
            current.wait_event(self.stream.record())

    def end(self) -> None:
        """Wait for the work, and free the memory."""
        self.stream.synchronize()
        self._workspace.end()


class CapturedGraph(Generic[Result]):
    """Runs work that never changes: kernel by kernel the first time, then captured, then replayed.

    The first run compiles kernels and allocates memory, which is not possible during a capture. The result is stored in
    memory of its own and stays valid until the next run; the inputs must keep their addresses. After the capture the
    Python code no longer runs, so the caller must update the counts that it would have changed.

    Parameters
    ----------
    eager : bool
        Never capture, as a reference.
    workspace : Workspace, optional
        Memory shared with others that never run at the same time; its owner ends it.
    all_agree : callable, optional
        `Model.all_agree` of a model that GPUs share: either all of them capture, or none does.
    cache : Cache, optional
        If a capture fails, its counts are rolled back and the work runs without a graph; by default the error is
        raised, on all GPUs.

    Attributes
    ----------
    refused : str or None
        Reason why the work could not be captured; it is not tried again.
    """

    def __init__(
        self,
        *,
        eager: bool = False,
        workspace: Workspace | None = None,
        all_agree: Callable[[bool], bool] | None = None,
        cache: Cache | None = None,
    ) -> None:
        self._eager, self._owns_workspace = eager, workspace is None
        self._workspace = Workspace() if workspace is None else workspace
        self._graph: Any = None
        self._all_agree, self._cache = (
            all_agree,
            cache,
        )  # destroyed after the graph, which needs them
        self._result: Any = None
        self._warm = False
        self.refused: str | None = None

    @property
    def ready(self) -> bool:
        """True if the work is captured."""
        return self._graph is not None

    @property
    def capturing(self) -> bool:
        """True if the next call captures."""
        return self._warm and not self.ready and not self._eager

    def __call__(self, work: Callable[[], Result]) -> Result:
        """Run the work on the current stream; on the default one, which cannot be captured, kernel by kernel. The work
        is passed in every call, so that this object keeps no one's memory alive."""
        stream = import_cupy().cuda.get_current_stream()
        if self._graph is None:
            with self._workspace.use():
                self._result = None
                # A stream pointer of 0 is the default stream, on which no capture is possible.
                if self._eager or not self._warm or not stream.ptr:
                    if self._all_agree is not None and stream.ptr and not self._eager:
                        self._all_agree(True)  # kernels are loaded now, while no GPU waits for another
                    self._result, self._warm = work(), bool(stream.ptr)
                    return self._result  # type: ignore[no-any-return]
                if self._all_agree is None:
                    self._capture(work, stream)
                elif not self._captured_on_all(work, stream, self._all_agree):
                    self._result = work()
                    return self._result  # type: ignore[no-any-return]
        self._graph.launch(stream)
        return self._result  # type: ignore[no-any-return]

    def clear(self) -> None:
        """Drop the graph, and free the memory; no replay may be under way."""
        self._graph = self._result = None
        self._warm = False
        if self._owns_workspace:
            self._workspace.end()

    def _capture(self, work: Callable[[], Result], stream: Any) -> None:
        stream.begin_capture()
        try:
            self._result = work()
        except BaseException:
            with suppress(Exception):
                stream.end_capture()
            raise
        # An exception above leaves the stream usable, as the capture was ended.
        self._graph = stream.end_capture()

    def _captured_on_all(self, work: Callable[[], Result], stream: Any, all_agree: Callable[[bool], bool]) -> bool:
        """Capture work in which GPUs communicate; True if all GPUs could, so that the work is replayed on all or on
        none."""
        all_agree(True)  # a barrier: allocating memory may wait for work that in turn waits for another GPU
        tokens = None if self._cache is None else self._cache.tokens
        error: Exception | None = None
        try:
            self._capture(work, stream)
            self._graph.upload(stream)
        except Exception as failure:
            error = failure
        if all_agree(error is None):
            return True
        error = error or DeviceError("another GPU could not capture the work that all of them do")
        self._graph = self._result = None
        if self._cache is None or tokens is None:
            raise error
        self._cache.crop(tokens)
        self._eager, self.refused = True, error_line(error)
        return False


def error_line(error: Exception) -> str:
    """Format an error as one line.

    >>> error_line(ValueError("no   room"))
    'ValueError: no room'
    """
    return f"{type(error).__name__}: {' '.join(str(error).split())}"


class PinnedStaging:
    """Arrays that are copied to the device together, for work that reads them at fixed addresses. `fields`, (dtype,
    size): by name. `device`: the arrays on the device, zero at first."""

    def __init__(self, **fields: tuple[Any, int]) -> None:
        cupy = import_cupy()
        starts, size = {}, 0  # bytes, every array aligned to 256
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
        """Wait until the last copy has left the pinned memory, which is freed now. Errors are ignored: a dying
        interpreter cannot wait."""
        with suppress(Exception):
            self._sent.synchronize()

    def open(self) -> dict[str, Any]:
        """Return the host arrays to fill, once the previous copy has left them."""
        self._sent.synchronize()
        return self._host

    def send(self) -> None:
        """Copy all arrays, on the current stream."""
        cuda = import_cupy().cuda
        pointers, stream = (self._buffer.data.ptr, self._pinned.ctypes.data), cuda.get_current_stream()
        cuda.runtime.memcpyAsync(*pointers, len(self._pinned), cuda.runtime.memcpyHostToDevice, stream.ptr)
        self._sent.record(stream)
