"""NcclGroup: the GPUs of one machine, each with a thread and a stream, over NCCL."""

from __future__ import annotations

import threading
import time
from collections import deque
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager, suppress
from typing import Any, TypeVar

from sp.errors import ConfigError, DeviceError
from sp.kernels import device_errors, import_cupy
from sp.kernels.device import current_device, device_count, event_done, import_nccl, nccl_version
from sp.kernels.jit import before_loading
from sp.parallel.group import LEAVE_PART, LEAVE_SECONDS, WAIT_SECONDS, Card, Group
from sp.parallel.meeting import Meeting, Step, StoppedError
from sp.parallel.turns import Turns

T = TypeVar("T")
POLL_SECONDS = 0.0005
"""Longest pause between two looks at an event; the device has work queued meanwhile, but for the last one of a run."""
FIRST_POLL = 0.0001
"""The first pause; each is twice the one before. Every look takes Python's lock from a thread that queues work."""
GATHERS_AHEAD = 2
"""Most steps under way once an all-gather is queued: a card that hangs is found out one layer later."""
REDUCES_AHEAD = 64
"""The same of all-reduces, which are short and many; the device has milliseconds of work left while a host looks."""
FIRST_STEPS = 4
"""Steps of a run that no card queues before all have come to them. All of these but the last are waited for as well:
what a layer loads and allocates when it is first run is loaded and allocated while no card waits for another."""
FIRST_SERVED = -1
"""Priority of a stream whose blocks take the next place that is free; others have 0."""
AVERAGE = 4
"""`ncclAvg` of nccl.h, since NCCL 2.10."""


class _NcclCard(Card):
    """A thread that queues on a stream of its device, some steps ahead of it, and what cards gather on a second one."""

    def __init__(
        self,
        rank: int,
        communicator: Any,
        streams: tuple[Any, Any],
        meeting: Meeting,
        turns: Turns,
        seconds: float,
        size: int,
    ) -> None:
        super().__init__(rank, size)
        self._communicator, self._meeting, self._turns, self._seconds = communicator, meeting, turns, seconds
        self._stream, self._beside = streams
        self._ahead: deque[tuple[Step, Any]] = deque()  # steps that were under way when last looked at, and their ends

    def begin_gather(self, *wholes: Any) -> Callable[[], None]:
        """See `Card`."""
        step, nccl = self._come("all-gather", GATHERS_AHEAD), import_nccl()
        self._beside.wait_event(self._stream.record())
        for whole in wholes:
            assert whole.shape[0] == self.size, f"{whole.shape} for {self.size} cards"
            assert whole.flags.c_contiguous, f"{whole.shape} is not contiguous"
            part, start = whole.nbytes // self.size, whole.data.ptr
            mine = start + self.rank * part  # NCCL takes this as all-gather in place
            self._communicator.allGather(mine, start, part, nccl.NCCL_UINT8, self._beside.ptr)
        ended = self._beside.record()
        self._queued(step, ended)
        return lambda: self._stream.wait_event(ended)

    def all_reduce(self, *arrays: Any) -> None:
        """See `Card`; whether NCCL goes by ring or tree, one card ends each sum and hands it to the others."""
        step, nccl = self._come("all-reduce", REDUCES_AHEAD), import_nccl()
        for array in arrays:
            assert array.dtype == "float32", f"{array.dtype}"
            assert array.flags.c_contiguous, f"{array.shape} is not contiguous"
            here = array.data.ptr
            self._communicator.allReduce(here, here, array.size, nccl.NCCL_FLOAT32, AVERAGE, self._stream.ptr)
        self._queued(step, self._stream.record())

    def wait(self) -> None:
        """See `Card`."""
        self.drain()
        self._done(self._stream.record(), Step(self._meeting.came[self.rank], "after step"))

    def turn(self) -> AbstractContextManager[bool]:
        """See `Card`."""
        return self._turns.turn()

    def drain(self, left: int = 0) -> None:
        """Until no more than so many steps are under way.

        To load a kernel or to give memory the driver may wait for all that a device has queued. If that is a step for
        which another card's thread has queued nothing yet, and that thread needs the driver, neither goes on.
        """
        while len(self._ahead) > left:
            step, event = self._ahead.popleft()
            self._done(event, step)

    def _come(self, kind: str, ahead: int) -> Step:
        """Note the next step, once no more than so many of those before are under way."""
        self.drain(ahead - 1)
        if self._meeting.stopped:
            raise StoppedError
        step = self._meeting.come(self.rank, kind)
        if step.number <= FIRST_STEPS:
            self._until(lambda: min(self._meeting.came) >= step.number, step)
        return step

    def _queued(self, step: Step, ended: Any) -> None:
        self._ahead.append((step, ended))
        if step.number < FIRST_STEPS:
            self.drain()

    def _done(self, event: Any, step: Step) -> None:
        self._until(lambda: event_done(event), step)

    def _until(self, true: Callable[[], bool], step: Step) -> None:
        """Look until something is true of a step; StoppedError, or the error of a card that is late, if not in time."""
        until, pause = time.monotonic() + self._seconds, FIRST_POLL
        self._meeting.wait(self.rank, step)
        while not true():
            if self._meeting.stopped:
                raise StoppedError
            if time.monotonic() > until:
                raise self._meeting.late(step, self._seconds)
            time.sleep(pause)
            pause = min(2 * pause, POLL_SECONDS)
        self._meeting.wait(self.rank, None)
        if self._meeting.stopped:
            raise StoppedError


class NcclGroup(Group):
    """Cards of this machine.

    Communicators are made at the first run and kept; after a run that failed they are ended, and the next one makes
    new ones.

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

    def __init__(
        self, devices: tuple[int, ...], wait_seconds: float = WAIT_SECONDS, leave_seconds: float = LEAVE_SECONDS
    ) -> None:
        super().__init__(len(devices), wait_seconds, leave_seconds)
        check_cards(devices)
        self.devices = devices
        self._communicators: dict[int, Any] = {}
        self._streams: list[tuple[Any, Any]] = []
        self._turns = Turns()
        self._aborts: deque[threading.Thread] = deque(maxlen=2 * len(devices))

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
        self._join(self.leave_seconds)
        with device_errors(), nccl_errors():
            self._streams = []
            for device in self.devices:
                with cupy.cuda.Device(device):
                    work = cupy.cuda.Stream(non_blocking=True)
                    self._streams.append((work, cupy.cuda.Stream(non_blocking=True, priority=FIRST_SERVED)))
            self._communicators = dict(enumerate(import_nccl().NcclCommunicator.initAll(list(self.devices))))

    @contextmanager
    def _card(self, rank: int, meeting: Meeting) -> Iterator[Card]:
        device, streams = import_cupy().cuda.Device(self.devices[rank]), self._streams[rank]
        made = meeting, self._turns, self.wait_seconds, self.size
        try:
            with device, device_errors(), nccl_errors():
                device.synchronize()  # weights were queued on other streams
                card = _NcclCard(rank, self._communicators[rank], streams, *made)
                with streams[0], before_loading(card.drain), _before_memory(card.drain):
                    yield card
        except BaseException as error:
            if not isinstance(error, StoppedError):
                meeting.fail(rank, error)  # told before anything that may hang
            meeting.stop()
            self._force({rank})
            raise

    def _force(self, ranks: set[int]) -> None:
        """End communicators: what is queued on them would wait for ever, and a thread in a call of CUDA with it.

        That is a call which may itself not return, so others make it, who are left behind then.
        """
        for rank in ranks:
            communicator = self._communicators.pop(rank, None)
            if communicator is not None:
                abort = threading.Thread(target=_abort, args=(communicator,), name="sp-abort", daemon=True)
                abort.start()
                self._aborts.append(abort)
        self._join((1 - 2 * LEAVE_PART) * self.leave_seconds)

    def _join(self, seconds: float) -> None:
        """Wait so long at most for communicators that are being ended."""
        until = time.monotonic() + seconds
        for abort in tuple(self._aborts):
            abort.join(max(0.0, until - time.monotonic()))


def _before_memory(wait: Callable[[], None]) -> AbstractContextManager[Any]:
    """Inside, `wait` is called in this thread before CuPy's pool takes memory from the driver, which it seldom does."""

    class Hook(import_cupy().cuda.MemoryHook):  # type: ignore[misc]
        name = "sp.parallel"

        def alloc_preprocess(self, **_: Any) -> None:
            wait()

    hook: AbstractContextManager[Any] = Hook()
    return hook


def _abort(communicator: Any) -> None:
    with suppress(Exception):  # the first cause is what is told
        communicator.abort()


def group_of(cards: int, where: str) -> NcclGroup | None:
    """The first `cards` GPUs; None for one.

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
        raise ConfigError("--cards is for GPUs; on the CPU leave it away")
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
