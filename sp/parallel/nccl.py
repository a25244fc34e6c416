"""NcclGroup: the GPUs of one machine, each with a thread and a stream, over NCCL."""

from __future__ import annotations

import os
import threading
import time
from collections import deque
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager, suppress
from functools import partial
from typing import Any, TypeVar

from sp.errors import ConfigError, DeviceError
from sp.kernels import device_errors, import_cupy
from sp.kernels.device import current_device, device_count, import_nccl, nccl_version
from sp.parallel.group import LEAVE_SECONDS, WAIT_SECONDS, Card, Group, Meeting, Step, StoppedError

T = TypeVar("T")
POLL_SECONDS = 0.0005
"""Longest pause between two looks at an event; the device has work queued meanwhile, but for the last one of a run."""
FIRST_POLL = 0.00002
"""The first pause; each is twice the one before."""
GATHERS_AHEAD = 1
"""Most steps under way once an all-gather is queued: a card that hangs is found out one layer later."""
REDUCES_AHEAD = 64
"""The same of all-reduces, which are short and many; the device has milliseconds of work left while a host looks."""
NO_REGISTERING = "NCCL_GRAPH_REGISTER", "0"
"""Otherwise NCCL registers buffers while a graph is captured, for which cards wait for each other; what meets in graphs
is short, and graphs and single launches are to do the same."""
ABORT_SECONDS = 1.0
"""How long the end of a communicator is waited for."""

AVERAGE = 4
"""`ncclAvg` of nccl.h, since NCCL 2.10."""


class _NcclCard(Card):
    """A thread that queues on the current stream of its device, some steps ahead of it.

    Where that stream is captured nothing is under way and nothing is waited for: whoever replays the graph waits. Once
    a capture has failed, to ask whether the stream is captured raises that, before NCCL is called in vain.
    """

    def __init__(
        self, rank: int, communicator: Any, meeting: Meeting, seconds: float, size: int, give_up: Callable[[], None]
    ) -> None:
        super().__init__(rank, size)
        self._communicator, self._meeting, self._seconds, self._give_up = communicator, meeting, seconds, give_up
        self._ahead: deque[tuple[Step, Any]] = deque()  # steps that were under way when last looked at, and their ends

    def all_gather(self, *wholes: Any) -> None:
        """See `Card`."""
        stream, step, nccl = *self._come("all-gather", GATHERS_AHEAD), import_nccl()
        for whole in wholes:
            assert whole.shape[0] == self.size, f"{whole.shape} for {self.size} cards"
            assert whole.flags.c_contiguous, f"{whole.shape} is not contiguous"
            part, start = whole.nbytes // self.size, whole.data.ptr
            mine = start + self.rank * part  # NCCL takes this as all-gather in place
            self._communicator.allGather(mine, start, part, nccl.NCCL_UINT8, stream.ptr)
        self._queued(stream, step)

    def all_reduce(self, *arrays: Any) -> None:
        """See `Card`; whether NCCL goes by ring or tree, one card ends each sum and hands it to the others."""
        stream, step, nccl = *self._come("all-reduce", REDUCES_AHEAD), import_nccl()
        for array in arrays:
            assert array.dtype == "float32", f"{array.dtype}"
            assert array.flags.c_contiguous, f"{array.shape} is not contiguous"
            here = array.data.ptr
            self._communicator.allReduce(here, here, array.size, nccl.NCCL_FLOAT32, AVERAGE, stream.ptr)
        self._queued(stream, step)

    def wait(self) -> None:
        """See `Card`."""
        stream = current_stream()
        if not stream.is_capturing():
            self._drain(0)
            self.arrived(stream.record())

    def agree(self, fine: bool) -> bool:
        """See `Card`; no card has a kernel under way that waits for another one."""
        self.wait()
        step = self._meeting.come(self.rank, "agreement")
        votes = self._meeting.votes.setdefault(step.number, [])
        votes.append(fine)
        self._until(lambda: len(votes) == self.size, step)
        return all(votes)

    def arrived(self, event: Any) -> None:
        """See `Card`."""
        self._done(event, Step(self._meeting.came[self.rank], "after step"))

    def _come(self, kind: str, ahead: int) -> tuple[Any, Step]:
        """The current stream, and the next step, once no more than so many of those before are under way."""
        stream = current_stream()
        if not stream.is_capturing():
            self._drain(ahead - 1)
        if self._meeting.stopped:
            raise StoppedError
        return stream, self._meeting.come(self.rank, kind)

    def _queued(self, stream: Any, step: Step) -> None:
        if not stream.is_capturing():
            self._ahead.append((step, stream.record()))

    def _drain(self, left: int) -> None:
        while len(self._ahead) > left:
            step, event = self._ahead.popleft()
            self._done(event, step)

    def _done(self, event: Any, step: Step) -> None:
        self._until(lambda: event.done, step)

    def _until(self, true: Callable[[], bool], step: Step) -> None:
        until, pause = time.monotonic() + self._seconds, FIRST_POLL
        while not true():
            if self._meeting.stopped:
                self._give_up()  # whoever is told next may wait for the stream
                raise StoppedError
            if time.monotonic() > until:
                self._give_up()
                raise self._meeting.late(step, self._seconds)
            time.sleep(pause)
            pause = min(2 * pause, POLL_SECONDS)
        if self._meeting.stopped:
            raise StoppedError


class NcclGroup(Group):
    """Cards of this machine.

    Communicators are made at the first run and kept; after a run that failed they are ended, and the next one makes
    new ones. Graphs that were captured with them must be gone before they are: NCCL waits for that.

    Parameters
    ----------
    devices : sequence of int
        CUDA's numbers of them; the first is the current device.
    wait_seconds, leave_seconds : float
        See `Group`.

    Raises
    ------
    ConfigError
        When a card is named twice, or the first is not the one in use.
    DeviceError
        Where there are fewer cards, no NCCL, or no GPU at all.
    """

    captures = True

    def __init__(
        self, devices: tuple[int, ...], wait_seconds: float = WAIT_SECONDS, leave_seconds: float = LEAVE_SECONDS
    ) -> None:
        super().__init__(len(devices), wait_seconds, leave_seconds)
        check_cards(devices)
        self.devices = devices
        self._communicators: dict[int, Any] = {}
        self._streams: list[Any] = []

    def at(self, rank: int) -> AbstractContextManager[Any]:
        """See `Group`."""
        device: AbstractContextManager[Any] = import_cupy().cuda.Device(self.devices[rank])
        return device

    @contextmanager
    def _around(self, meeting: Meeting) -> Iterator[None]:
        if not self._communicators:
            self._open()
        try:
            yield
        finally:
            if meeting.stopped:
                self._force(set(range(self.size)))
                self._streams = []

    def _open(self) -> None:
        cupy = import_cupy()
        os.environ.setdefault(*NO_REGISTERING)
        with device_errors(), nccl_errors():
            self._streams = []
            for device in self.devices:
                with cupy.cuda.Device(device):
                    self._streams.append(cupy.cuda.Stream(non_blocking=True))
            self._communicators = dict(enumerate(import_nccl().NcclCommunicator.initAll(list(self.devices))))

    @contextmanager
    def _card(self, rank: int, meeting: Meeting) -> Iterator[Card]:
        device, stream = import_cupy().cuda.Device(self.devices[rank]), self._streams[rank]
        with device, device_errors(), nccl_errors():
            device.synchronize()  # weights were queued on other streams
            try:
                with stream:
                    communicator, give_up = self._communicators[rank], partial(self._force, {rank})
                    yield _NcclCard(rank, communicator, meeting, self.wait_seconds, self.size, give_up)
            except BaseException:
                meeting.stop()
                self._force({rank})
                raise

    def _force(self, ranks: set[int]) -> None:
        """End communicators: what is queued on them would wait for ever, and a thread in a call of CUDA with it.

        That itself waits until graphs are gone that were captured with them, which others may have to see to.
        """
        found = [self._communicators.pop(rank, None) for rank in ranks]
        ending = [threading.Thread(target=_abort, args=(one,), daemon=True) for one in found if one is not None]
        for thread in ending:
            thread.start()
        for thread in ending:
            thread.join(ABORT_SECONDS)


def _abort(communicator: Any) -> None:
    with suppress(Exception):  # the first cause is what is told
        communicator.abort()


def current_stream() -> Any:
    """The stream of this thread, on its device."""
    return import_cupy().cuda.get_current_stream()


def group_of(cards: int, where: str, option: str = "--cards") -> NcclGroup | None:
    """The first `cards` GPUs; None for one. An `option` of the command line asked for them.

    Raises
    ------
    ConfigError
        On the CPU.
    DeviceError
        Where there are not so many GPUs, or no NCCL.
    """
    if cards == 1:
        return None
    if where == "cpu":
        raise ConfigError(f"{option} is for GPUs; on the CPU leave it away")
    return NcclGroup(tuple(range(cards)))


def copies(group: NcclGroup, opened: Callable[[], T]) -> list[T]:
    """What is opened, once on every card of a group but the first."""
    found = []
    for rank in range(1, group.size):
        with group.at(rank):
            found.append(opened())
    return found


def check_cards(devices: tuple[int, ...]) -> None:
    """DeviceError unless these cards are there, the first one in use, and NCCL with them."""
    first, count = current_device(), device_count()
    if len(set(devices)) < len(devices) or not devices or devices[0] != first:
        raise ConfigError(f"cards {devices}: each once, and first the one in use, {first}")
    if max(devices) >= count:
        raise DeviceError(f"{len(devices)} cards were asked for, and this machine shows {count}; ask for fewer")
    if len(devices) > 1 and not nccl_version():
        raise DeviceError("several cards need NCCL; `pip install nvidia-nccl-cu13` (cu12 with CUDA 12) installs it")


@contextmanager
def nccl_errors() -> Iterator[None]:
    """Turn what NCCL raises inside the block into DeviceError."""
    try:
        yield
    except Exception as error:
        if type(error).__name__ != "NcclError":
            raise
        raise DeviceError(f"NCCL: {' '.join(str(error).split())}; NCCL_DEBUG=INFO tells more") from error
