"""NcclGroup: the GPUs of one machine, each with a thread and a stream, over NCCL and their copy engines."""

from __future__ import annotations

import gc
import os
import threading
import time
from collections import deque
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager, suppress
from typing import Any, TypeVar

from sp.errors import ConfigError, DeviceError
from sp.kernels import device_errors, import_cupy
from sp.kernels.device import current_device, device_count, import_nccl, nccl_version
from sp.kernels.jit import before_loading
from sp.kernels.scratch import from_a_pool
from sp.parallel.group import LEAVE_PART, LEAVE_SECONDS, WAIT_SECONDS, Card, Group, Meeting, StoppedError
from sp.parallel.nccl_card import NcclCard, PeerGathers, Turns, reachable
from sp.parallel.processors import OneCore

T = TypeVar("T")
NO_REGISTERING = "NCCL_GRAPH_REGISTER", "0"
"""Otherwise NCCL registers buffers while a graph is captured, for which cards wait for each other; what meets in graphs
is short, and graphs and single launches are to do the same."""
MOST_BLOCKS, BLOCKS = "NCCL_MAX_CTAS", 16
"""Blocks of a gather or sum at most, each of which keeps a multiprocessor from what is computed meanwhile."""
FIRST_SERVED = -1  # priority of a stream whose blocks take the next place that is free; others have 0


class NcclGroup(Group):
    """Cards of this machine.

    Communicators are made at the first run and kept; after a run that failed they are ended, and the next one makes
    new ones. Graphs that were captured with them must be gone before they are: NCCL waits for that.

    `devices`: CUDA's numbers of them. ConfigError when a card is named twice or the first is not the one in use,
    DeviceError where there are fewer cards, no NCCL, or no GPU at all.
    """

    captures = True

    def __init__(
        self, devices: tuple[int, ...], wait_seconds: float = WAIT_SECONDS, leave_seconds: float = LEAVE_SECONDS
    ) -> None:
        super().__init__(len(devices), wait_seconds, leave_seconds)
        check_cards(devices)
        self.devices = devices
        self._communicators: dict[int, Any] = {}
        self._streams: list[tuple[Any, Any]] = []
        self._reachable = False
        asked = os.environ.get(MOST_BLOCKS, "")
        self.busy = int(asked) if asked.isdecimal() else BLOCKS
        self._turns = Turns()
        self._core = OneCore()
        self._aborts: deque[threading.Thread] = deque(maxlen=2 * len(devices))

    def at(self, rank: int) -> AbstractContextManager[Any]:
        device: AbstractContextManager[Any] = import_cupy().cuda.Device(self.devices[rank])
        return device

    @contextmanager
    def _around(self, meeting: Meeting) -> Iterator[None]:
        if not self._communicators:
            self._open()
        self._core = OneCore()
        try:
            with _no_collecting():
                yield
        finally:
            if meeting.stopped:
                self._force(set(range(self.size)))
                self._streams = []

    def _open(self) -> None:
        cupy = import_cupy()
        self._join(self.leave_seconds)
        os.environ.setdefault(*NO_REGISTERING)
        os.environ.setdefault(MOST_BLOCKS, str(BLOCKS))
        with device_errors(), nccl_errors():
            self._streams = []
            for device in self.devices:
                with cupy.cuda.Device(device):
                    work = cupy.cuda.Stream(non_blocking=True)
                    self._streams.append((work, cupy.cuda.Stream(non_blocking=True, priority=FIRST_SERVED)))
            self._reachable = reachable(self.devices)
            self._communicators = dict(enumerate(import_nccl().NcclCommunicator.initAll(list(self.devices))))

    @contextmanager
    def _card(self, rank: int, meeting: Meeting) -> Iterator[Card]:
        device, streams = import_cupy().cuda.Device(self.devices[rank]), self._streams[rank]
        peers = PeerGathers(rank, self.devices, streams[1], meeting) if self._reachable else None
        made = meeting, self._turns, self.wait_seconds, self.size, self._core, peers
        try:
            with device, device_errors(), nccl_errors():
                device.synchronize()  # weights were queued on other streams
                card = NcclCard(rank, self._communicators[rank], streams[1], *made)
                with streams[0], before_loading(card.wait), _before_memory(card.wait):
                    yield card
        except BaseException as error:
            if not isinstance(error, StoppedError):
                meeting.fail(rank, error)  # told before anything that may hang
            meeting.stop()
            self._force({rank})
            raise

    def _force(self, ranks: set[int]) -> None:
        """End communicators: what is queued on them would wait for ever, and a thread in a call of CUDA with it. That
        is a call which may itself not return, so others make it, who are left behind then."""
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
        # CuPy calls these at every array that comes or goes; `dict` takes what they are given, and no time.
        malloc_preprocess = malloc_postprocess = free_preprocess = free_postprocess = alloc_postprocess = dict

        def alloc_preprocess(self, **_: Any) -> None:
            if not from_a_pool():
                wait()

    hook: AbstractContextManager[Any] = Hook()
    return hook


@contextmanager
def _no_collecting() -> Iterator[None]:
    """Inside, Python looks for no cycles: that stops whoever queues work, for tens of milliseconds with models held."""
    if not gc.isenabled():
        yield
        return
    gc.disable()
    try:
        yield
    finally:
        gc.enable()


def _abort(communicator: Any) -> None:
    with suppress(Exception):  # the first cause is what is told
        communicator.abort()


def group_of(cards: int, where: str, option: str = "--cards") -> NcclGroup | None:
    """The first `cards` GPUs; None for one. An `option` of the command line asked for them. ConfigError on the CPU,
    DeviceError where there are not so many GPUs, or no NCCL."""
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
