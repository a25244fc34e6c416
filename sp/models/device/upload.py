"""stream_parts: copies bytes of files to the device, through the page cache and a few pinned buffers.

One thread copies 2 to 5 GB/s and the bus 50 GB/s, so several threads read (`preadv`, which unlike a memory map needs no
page table), each a piece into a pinned buffer, and from there start an asynchronous copy into a staging ring on the
device. Staged data are yielded in order; by the time their place in the ring is overwritten, the consumer has used
them. Besides the results only the two rings need memory.
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
SLOTS = 12  # pinned buffers: more than threads, so that reads do not wait for copies
STAGING = 256 << 20  # bytes of the ring on the device, or twice the largest part where that is more
ALIGN = 256  # bytes, of every region of the ring


@dataclass(frozen=True)
class FileRange:
    """A range of bytes of a file."""

    path: Path
    offset: int
    nbytes: int


def stream_parts(
    parts: Sequence[FileRange], progress: Callable[[int], None] | None = None
) -> Iterator[tuple[int, Any]]:
    """Copy parts of files to the device, one after the other. `progress`: called with the bytes of each part that has
    been consumed. Yields `index`: 0, 1, 2, ... in the order of `parts`, and `data`, cupy uint8 (nbytes,): valid for
    work launched on the current stream before the next part is requested; a consumer that keeps it must copy it.
    GGUFError if a file cannot be read or is too short."""
    if not parts:
        return
    cupy = import_cupy()
    # The ring must hold the part in use and the next one at the same time.
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
            # Start as many parts as the ring has room for, before waiting for the oldest.
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
            # The consumer has launched its work by now; the region is free after that.
            ring.consumed(compute.record())
            if progress is not None:
                progress(parts[index].nbytes)


@dataclass
class _Slot:
    """A pinned buffer, the stream of its copies, and the event after its last copy."""

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
    """Wait for every copy that was started; `ring` stays allocated until then."""
    for _ in range(SLOTS):
        slots.get().sent.synchronize()
    ring.clear()


def _send(
    file: tuple[int, Path], part: FileRange, start: int, target: Any, after: Any, slots: SimpleQueue[_Slot], device: int
) -> Any:
    """Read one piece into a free slot and start its copy; return the event after the copy."""
    cupy = import_cupy()
    slot = slots.get()
    try:
        with cupy.cuda.Device(device):
            # The pinned buffer may still be read by its previous copy.
            slot.sent.synchronize()
            _read(file, part.offset + start, slot.buffer[: target.nbytes])
            # The region of the ring may still be read by an earlier consumer.
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
    """Open a file; return its descriptor and name. The stack closes it."""
    try:
        fd = os.open(path, os.O_RDONLY)
    except OSError as error:
        raise GGUFError(f"{path}: cannot be opened ({error.strerror}); check that it was not moved") from None
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
            raise GGUFError(f"{path}: ends at byte {offset + filled}, before its last tensor; get the file again")
        filled += got


class _Ring:
    """A device buffer whose regions are handed out in a circle and returned in the same order."""

    def __init__(self, nbytes: int) -> None:
        cupy = import_cupy()
        self._buffer: Any = cupy.empty(nbytes, np.uint8)
        # The last use of any free region: of the memory before it belonged to this ring, then of returned regions.
        self._free_after = cupy.cuda.get_current_stream().record()
        self._head = 0
        self._regions: deque[list[Any]] = deque()  # [start, stop, event that ends its use, or None while in use]

    def take(self, nbytes: int) -> tuple[Any, Any] | None:
        """Return a region, and the event to wait for before writing to it; None while an overlapping region is in
        use."""
        step = -(-nbytes // ALIGN) * ALIGN
        start = self._head if self._head + step <= len(self._buffer) else 0
        stop = start + step
        overlapping = [i for i, (begin, end, _) in enumerate(self._regions) if begin < stop and start < end]
        if overlapping:
            if self._regions[overlapping[-1]][2] is None:
                return None
            self._free_after = self._regions[overlapping[-1]][2]
            for _ in range(overlapping[-1] + 1):
                self._regions.popleft()
        self._regions.append([start, stop, None])
        self._head = stop
        return self._buffer[start : start + nbytes], self._free_after

    def consumed(self, event: Any) -> None:
        """Free the oldest region in use after `event`."""
        next(region for region in self._regions if region[2] is None)[2] = event

    def clear(self) -> None:
        """Free the buffer."""
        self._buffer = None
