"""stream_parts: bytes of files to the device, by way of the page cache and a few pinned buffers.

One thread copies 2 to 5 GB/s and the bus takes 50, so several threads read (`preadv`, which needs no page table of its
own as a memory map does), each piece into a pinned buffer and from there by an asynchronous copy into a staging ring on
the device. What is staged is handed out in order; by the time its place in the ring is written again, its consumer has
run. Beside the results no more memory is needed than the two rings.
"""

from __future__ import annotations

import os
from collections import deque
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import ExitStack
from dataclasses import dataclass
from pathlib import Path
from queue import SimpleQueue
from typing import Any

import numpy as np

from sp.arrays import Bytes
from sp.errors import GGUFError
from sp.kernels import import_cupy

PIECE = 8 << 20  # bytes read and sent at a time
THREADS = 8
SLOTS = 12  # pinned buffers: more than threads, so that reading does not wait for sending
STAGING = 256 << 20  # bytes of the ring on the device, or twice the largest part where that is more
ALIGN = 256


@dataclass(frozen=True)
class Part:
    """Consecutive bytes of a file."""

    path: Path
    offset: int
    nbytes: int


def stream_parts(parts: Sequence[Part], progress: Callable[[int], None] | None = None) -> Iterator[tuple[int, Any]]:
    """Bring parts of files to the device, one after the other. `progress`: called with the bytes of each part that has
    been handed out. Yields `index`: 0, 1, 2, ... in the order of `parts`. `data`, cupy uint8 (nbytes,): valid for work
    put on the current stream before the next one is asked for; a consumer that keeps it copies it. GGUFError when a
    file cannot be read or ends too soon."""
    if not parts:
        return
    cupy = import_cupy()
    size = max(STAGING, 2 * (max(part.nbytes for part in parts) + ALIGN))
    ring = _Ring(min(size, sum(part.nbytes + ALIGN for part in parts)))
    compute, device = cupy.cuda.get_current_stream(), int(cupy.cuda.Device())
    waiting: deque[tuple[int, Any, list[Future[Any]]]] = deque()
    unsent = deque(enumerate(parts))
    with ExitStack() as stack:
        files = {path: _opened(path, stack) for path in {part.path for part in parts}}
        # Leaving early must not free buffers that copies still use, so the threads end before the ring does.
        slots = _slots()
        stack.callback(_drain, slots, ring)
        threads = stack.enter_context(ThreadPoolExecutor(THREADS, thread_name_prefix="sp-load"))
        stack.callback(threads.shutdown, wait=True, cancel_futures=True)
        while unsent or waiting:
            while unsent:
                index, part = unsent[0]
                place = ring.take(part.nbytes)
                if place is None:
                    break
                unsent.popleft()
                data, after = place
                file = files[part.path]
                futures = [
                    threads.submit(_send, file, part, start, data[start : start + PIECE], after, slots, device)
                    for start in range(0, part.nbytes, PIECE)
                ]
                waiting.append((index, data, futures))
            index, data, futures = waiting.popleft()
            for future in futures:
                compute.wait_event(future.result())
            yield index, data
            ring.consumed(compute.record())
            if progress is not None:
                progress(parts[index].nbytes)


@dataclass
class _Slot:
    """A pinned buffer, the stream it is sent on, and the end of its last copy."""

    buffer: Bytes
    stream: Any
    sent: Any


def _slots() -> SimpleQueue[_Slot]:
    cupy = import_cupy()
    slots: SimpleQueue[_Slot] = SimpleQueue()
    for _ in range(SLOTS):
        stream = cupy.cuda.Stream(non_blocking=True)
        pinned = np.frombuffer(cupy.cuda.alloc_pinned_memory(PIECE), np.uint8, PIECE)
        slots.put(_Slot(pinned, stream, stream.record()))
    return slots


def _drain(slots: SimpleQueue[_Slot], ring: _Ring) -> None:
    """Wait for every copy that was started; `ring` is held until then."""
    for _ in range(SLOTS):
        slots.get().sent.synchronize()
    ring.clear()


def _send(
    file: tuple[int, Path], part: Part, start: int, target: Any, after: Any, slots: SimpleQueue[_Slot], device: int
) -> Any:
    """Read one piece into a free slot and start its copy; the event that marks the copy's end."""
    cupy = import_cupy()
    slot = slots.get()
    try:
        with cupy.cuda.Device(device):
            slot.sent.synchronize()
            _read(file, part.offset + start, slot.buffer[: target.nbytes])
            slot.stream.wait_event(after)
            cupy.cuda.runtime.memcpyAsync(
                target.data.ptr,
                slot.buffer.ctypes.data,
                target.nbytes,
                cupy.cuda.runtime.memcpyHostToDevice,
                slot.stream.ptr,
            )
            slot.sent = slot.stream.record(cupy.cuda.Event(disable_timing=True))
            return slot.sent
    finally:
        slots.put(slot)


def _opened(path: Path, stack: ExitStack) -> tuple[int, Path]:
    """File descriptor and name; closed with the stack."""
    try:
        fd = os.open(path, os.O_RDONLY)
    except OSError as error:
        raise GGUFError(f"{path}: cannot be opened ({error.strerror}); was it moved?") from None
    stack.callback(os.close, fd)
    return fd, path


def _read(file: tuple[int, Path], offset: int, buffer: Bytes) -> None:
    """Fill `buffer` from `offset` of a file."""
    fd, path = file
    filled = 0
    while filled < len(buffer):
        try:
            got = os.preadv(fd, [buffer[filled:].data], offset + filled)
        except OSError as error:
            raise GGUFError(f"{path}: cannot be read ({error.strerror}); check the disk and the file") from None
        if got == 0:
            raise GGUFError(f"{path}: ends at byte {offset + filled}, before its tensors do; was it changed?")
        filled += got


class _Ring:
    """A device buffer whose regions are lent in a circle and come back in the order they were lent."""

    def __init__(self, nbytes: int) -> None:
        cupy = import_cupy()
        self._buffer: Any = cupy.empty(nbytes, np.uint8)
        # The last use of any place that is not lent: of the memory before this ring had it, then of regions given up.
        self._free_after = cupy.cuda.get_current_stream().record()
        self._head = 0
        self._lent: deque[list[Any]] = deque()  # [start, stop, event that ends its use, or None while in use]

    def take(self, nbytes: int) -> tuple[Any, Any] | None:
        """A region, and the event to wait for before it is written; None while a region in its place is in use."""
        step = -(-nbytes // ALIGN) * ALIGN
        start = self._head if self._head + step <= len(self._buffer) else 0
        stop = start + step
        taken = [i for i, (begin, end, _) in enumerate(self._lent) if begin < stop and start < end]
        if taken:
            if self._lent[taken[-1]][2] is None:
                return None
            self._free_after = self._lent[taken[-1]][2]
            for _ in range(taken[-1] + 1):
                self._lent.popleft()
        self._lent.append([start, stop, None])
        self._head = stop
        return self._buffer[start : start + nbytes], self._free_after

    def consumed(self, event: Any) -> None:
        """The oldest region still in use is free after `event`."""
        next(region for region in self._lent if region[2] is None)[2] = event

    def clear(self) -> None:
        """Let go of the buffer."""
        self._buffer = None
