"""Several devices without a device: NCCL's calls, copied by threads that wait for each other, over `dry_device`."""

from __future__ import annotations

import ctypes
import sys
import threading
from collections import Counter, defaultdict
from types import ModuleType, SimpleNamespace
from typing import Any

import dry_device
import numpy as np

hung: set[int] = set()
"""Ranks whose gathers and means never end."""
stalled: set[int] = set()
"""Ranks whose graphs never end."""
stuck: dict[str, threading.Event] = {}
"""Calls of the driver, "abort" or "query", that do not return before their event is set."""
aborted: list[int] = []
"""Ranks whose communicators were aborted, in order."""
opened: list[int] = []
"""How many devices each `initAll` was asked for."""
here = threading.local()
"""The device of a thread."""


launches: dict[int, Counter[str]] = defaultdict(Counter)
"""How often each kernel was launched on each device."""


class Event(dry_device.Event):
    """Has happened unless its stream hangs; one that was recorded in a capture never does."""

    def __init__(self, stream: Stream | None = None, **flags: bool) -> None:
        super().__init__(**flags)
        self.stream: Any = stream
        self.origin: Any = None if stream is None else stream.origin

    @property
    def done(self) -> bool:
        assert self.origin is None, "an event in a graph never happens"
        if "query" in stuck:
            stuck["query"].wait()
        return self.stream is None or not self.stream.hangs


class Stream(dry_device.Stream):
    """Does everything at once, until a gather hangs; what is captured is not done.

    A capture goes on in streams that wait for an event of it, until its own one waits for their last.
    """

    def __init__(self, non_blocking: bool = False, priority: int = 0) -> None:
        super().__init__(ptr=id(self))
        self.hangs = False
        self.origin: Stream | None = None
        self.apart: set[Stream] = set()
        self.latest: Event | None = None
        streams[self.ptr] = self

    def record(self, event: object = None) -> Event:
        self.latest = Event(self)
        return self.latest

    def wait_event(self, event: Event) -> None:
        origin, other = event.origin, event.stream
        if origin is None:
            assert self.origin is None, "a graph that waits for what is not in it"
        elif self is not origin:
            self.origin, self.capturing = origin, True
            origin.apart.add(self)
        elif other is not None and event is other.latest:
            origin.apart.discard(other)
            other.origin, other.capturing = None, False

    def begin_capture(self) -> None:
        super().begin_capture()
        self.origin = self

    def end_capture(self) -> SimpleNamespace:
        self.origin = None
        if self.apart:
            raise RuntimeError("work of a graph that nothing waits for")
        graph, rank = super().end_capture(), here.device
        if rank in unable:
            raise RuntimeError("operation not permitted when stream is capturing")

        def launch(stream: Stream) -> None:
            replayed.append(rank)
            stream.hangs = stream.hangs or rank in stalled

        return SimpleNamespace(launch=launch, upload=graph.upload)


unable: set[int] = set()
"""Devices on which nothing can be captured."""
asked: Counter[int] = Counter()
"""All-gathers and all-reduces that each GPU has queued outside of captures."""
broken: set[int] = set()
"""Ranks whose third all-reduce that is captured fails."""
replayed: list[int] = []
"""The devices that graphs were launched on, in order."""
captured: dict[int, list[int]] = defaultdict(list)
"""Numbers in every all-reduce that each GPU has captured."""


streams: dict[int, Stream] = {}


class Device:
    """One of several; current in the thread that is inside."""

    def __init__(self, number: int | None = None) -> None:
        self._number = getattr(here, "device", 0) if number is None else number

    def __int__(self) -> int:
        return self._number

    def __enter__(self) -> None:
        here.device = self._number

    def __exit__(self, *_: object) -> None:
        here.device = 0

    def synchronize(self) -> None: ...


class CUDARuntimeError(RuntimeError):
    """What CUDA raises."""


def enabled(other: int) -> None:
    """As CUDA does it: once."""
    pair = getattr(here, "device", 0), other
    if pair in reached:
        raise CUDARuntimeError("cudaErrorPeerAccessAlreadyEnabled: peer access is already enabled")
    reached.add(pair)


reached: set[tuple[int, int]] = set()
"""Devices, and others whose memory they read."""


class NcclError(RuntimeError):
    """What NCCL raises."""


class Communicator:
    """Copies at a barrier."""

    def __init__(self, rank: int, barrier: threading.Barrier) -> None:
        self._rank, self._barrier = rank, barrier

    @staticmethod
    def initAll(devices: list[int]) -> list[Communicator]:  # noqa: N802
        opened.append(len(devices))
        barrier = threading.Barrier(len(devices))
        pointers.clear()
        return [Communicator(rank, barrier) for rank in range(len(devices))]

    def allGather(self, send: int, receive: int, count: int, kind: int, stream: int) -> None:  # noqa: N802
        if streams[stream].capturing:
            return
        asked[self._rank] += 1
        if self._rank in hung:
            streams[stream].hangs = True
            return
        assert send == receive + self._rank * count, "not in place"
        assert here.device == self._rank, "another device is current"
        pointers[self._rank] = send
        try:
            self._barrier.wait(5 if not hung else 0.01)
        except threading.BrokenBarrierError:
            streams[stream].hangs = True
            return
        for rank, pointer in pointers.items():
            if rank != self._rank and copied[0]:
                ctypes.memmove(receive + rank * count, pointer, count)
        self._barrier.wait(5)

    def allReduce(self, send: int, receive: int, count: int, kind: int, op: int, stream: int) -> None:  # noqa: N802
        if streams[stream].capturing:
            captured[self._rank].append(count)
            if self._rank in broken and len(captured[self._rank]) == 3:
                raise NcclError("NCCL_ERROR_UNHANDLED_CUDA_ERROR")
            return
        asked[self._rank] += 1
        if self._rank in hung:
            streams[stream].hangs = True
            return
        assert (send, kind, op) == (receive, 7, 4), "not in place, or no mean of float32"
        assert here.device == self._rank, "another device is current"
        pointers[self._rank] = send
        try:
            self._barrier.wait(5 if not hung else 0.01)
        except threading.BrokenBarrierError:
            streams[stream].hangs = True
            return
        every = [np.ctypeslib.as_array((ctypes.c_float * count).from_address(at)) for _, at in sorted(pointers.items())]
        mean = sum(every[1:], every[0]) * np.float32(1 / len(every))
        self._barrier.wait(5)
        every[self._rank][:] = mean
        reduced[self._rank].append(count)

    def abort(self) -> None:
        aborted.append(self._rank)
        if "abort" in stuck:
            stuck["abort"].wait()
        self._barrier.abort()


fetched: list[tuple[int, int]] = []
"""Of every copy from one device to another, these two."""


def copy_peer(to: int, device: int, source: int, other: int, count: int, stream: int) -> None:
    """Copies at once: who asks for it has seen that the other one has it."""
    assert here.device == device != other, f"{here.device} current, from {other} to {device}"
    ctypes.memmove(to, source, count)
    fetched.append((other, device))
    streams[stream].hangs = streams[stream].hangs or bool(hung & {device, other})


copied = [True]
"""Whether gathers copy what they gather."""
pointers: dict[int, int] = {}
reduced: dict[int, list[int]] = defaultdict(list)
"""Numbers in every all-reduce of each GPU."""


def install(count: int, reachable: bool = False) -> None:
    """Make `sp` see `count` devices, with NCCL; `reachable`: whose memory the others can read."""
    dry_device.install()
    import cupy

    cuda: Any = cupy.cuda
    cuda.Stream, cuda.Device, cuda.Event = Stream, Device, Event
    cuda.get_elapsed_time = lambda before, after: 1.0
    cuda.runtime.getDeviceCount = lambda: count
    cuda.runtime.getDevice = lambda: getattr(here, "device", 0)
    cuda.runtime.deviceCanAccessPeer = lambda one, other: int(reachable)
    cuda.runtime.deviceEnablePeerAccess = enabled
    cuda.runtime.CUDARuntimeError = CUDARuntimeError
    cuda.runtime.memcpyPeerAsync = copy_peer
    nccl: Any = ModuleType("cupy.cuda.nccl")  # no attribute of cupy.cuda until it is imported, as CuPy has it
    nccl.available, nccl.get_version = True, lambda: 22809
    nccl.NcclCommunicator, nccl.NcclError = Communicator, NcclError
    nccl.NCCL_UINT8, nccl.NCCL_FLOAT32 = 1, 7
    sys.modules["cupy.cuda.nccl"] = nccl
    import sp.parallel.nccl_rank

    sp.parallel.nccl_rank.event_done = lambda event: event.done  # there is no driver to ask

    def counted(entry: str, values: list[Any]) -> None:
        launches[cuda.runtime.getDevice()][entry] += entry != "zeros"

    dry_device.told.append(counted)
