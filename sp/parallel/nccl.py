"""NcclGroup: the GPUs of one machine, each with a thread and a stream, over NCCL and the GPUs' copy engines."""

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
from sp.kernels.device import current_device, device_count, import_nccl, nccl_version, pick_device
from sp.kernels.jit import before_loading
from sp.kernels.workspace import from_a_pool
from sp.parallel.cpu_affinity import SharedCpu
from sp.parallel.group import (
    LEAVE_PART,
    LEAVE_SECONDS,
    WAIT_SECONDS,
    CollectiveBarrier,
    ParallelGroup,
    Rank,
    StoppedError,
)
from sp.parallel.nccl_rank import LaunchLock, NcclRank, PeerGathers, reachable

T = TypeVar("T")
NO_REGISTERING = "NCCL_GRAPH_REGISTER", "0"
"""Otherwise NCCL registers buffers during graph capture, for which GPUs wait for each other. Collectives in graphs are
short, and graphs and single launches are to do the same."""
MOST_BLOCKS, BLOCKS = "NCCL_MAX_CTAS", 16
"""Most blocks of a collective, each of which occupies a multiprocessor that concurrent kernels could use."""
HIGH_PRIORITY = -1  # of a stream whose blocks are scheduled before those of others, which have 0


class NcclGroup(ParallelGroup):
    """The GPUs of this machine as a group.

    Communicators are created at the first run and reused; after a run that failed they are aborted, and the next run
    creates new ones. Graphs captured with them must be destroyed first, because NCCL waits for that.

    `devices`: their CUDA device numbers. ConfigError if a device is named twice or the first is not the current one,
    DeviceError if there are fewer GPUs, no NCCL, or no GPU at all."""

    captures = True

    def __init__(
        self, devices: tuple[int, ...], wait_seconds: float = WAIT_SECONDS, leave_seconds: float = LEAVE_SECONDS
    ) -> None:
        super().__init__(len(devices), wait_seconds, leave_seconds)
        check_gpus(devices)
        self.devices = devices
        self._communicators: dict[int, Any] = {}
        self._streams: list[tuple[Any, Any]] = []
        self._reachable = False
        blocks = os.environ.get(MOST_BLOCKS, "")
        self.busy = int(blocks) if blocks.isdecimal() else BLOCKS
        self._launch_lock = LaunchLock()
        self._shared_cpu = SharedCpu()
        self._aborts: deque[threading.Thread] = deque(maxlen=2 * len(devices))

    def device(self, rank: int) -> AbstractContextManager[Any]:
        device: AbstractContextManager[Any] = import_cupy().cuda.Device(self.devices[rank])
        return device

    @contextmanager
    def _around(self, barrier: CollectiveBarrier) -> Iterator[None]:
        if not self._communicators:
            self._open()
        self._shared_cpu = SharedCpu()  # each run chooses again: a CPU's speed changes within seconds
        try:
            with _no_collecting():
                yield
        finally:
            if barrier.stopped:
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
                    self._streams.append((work, cupy.cuda.Stream(non_blocking=True, priority=HIGH_PRIORITY)))
            self._reachable = reachable(self.devices)
            self._communicators = dict(enumerate(import_nccl().NcclCommunicator.initAll(list(self.devices))))

    @contextmanager
    def _gpu(self, rank: int, barrier: CollectiveBarrier) -> Iterator[Rank]:
        device, streams = import_cupy().cuda.Device(self.devices[rank]), self._streams[rank]
        peers = PeerGathers(rank, self.devices, streams[1], barrier) if self._reachable else None
        shared = barrier, self._launch_lock, self.wait_seconds, self.size, self._shared_cpu, peers
        try:
            with device, device_errors(), nccl_errors():
                device.synchronize()  # weights were queued on other streams
                gpu = NcclRank(rank, self._communicators[rank], streams[1], *shared)
                with streams[0], before_loading(gpu.wait), _before_memory(gpu.wait):
                    yield gpu
        except BaseException as error:
            if not isinstance(error, StoppedError):
                barrier.fail(rank, error)  # recorded before any call that may hang
            barrier.stop()
            self._force({rank})
            raise

    def _force(self, ranks: set[int]) -> None:
        """Abort communicators: their queued work would wait for ever, and with it a thread in a call of CUDA. The abort
        may itself not return, so other threads call it, which are then left behind."""
        for rank in ranks:
            communicator = self._communicators.pop(rank, None)
            if communicator is not None:
                abort = threading.Thread(target=_abort, args=(communicator,), name="sp-abort", daemon=True)
                abort.start()
                self._aborts.append(abort)
        self._join((1 - 2 * LEAVE_PART) * self.leave_seconds)

    def _join(self, seconds: float) -> None:
        """Wait up to `seconds` for communicators that are being aborted."""
        until = time.monotonic() + seconds
        for abort in tuple(self._aborts):
            abort.join(max(0.0, until - time.monotonic()))


def _before_memory(wait: Callable[[], None]) -> AbstractContextManager[Any]:
    """Call `wait` in this thread before CuPy's pool allocates memory from the driver, which is rare."""

    class AllocationHook(import_cupy().cuda.MemoryHook):  # type: ignore[misc]
        name = "sp.parallel"
        # CuPy calls these for every array; `dict` accepts their keywords and costs next to nothing.
        malloc_preprocess = malloc_postprocess = free_preprocess = free_postprocess = alloc_postprocess = dict

        def alloc_preprocess(self, **_: Any) -> None:
            if not from_a_pool():
                wait()

    hook: AbstractContextManager[Any] = AllocationHook()
    return hook


@contextmanager
def _no_collecting() -> Iterator[None]:
    """Disable Python's cycle collector: it stops the thread that queues work, for tens of milliseconds with models
    loaded."""
    if not gc.isenabled():
        yield
        return
    gc.disable()
    try:
        yield
    finally:
        gc.enable()


def _abort(communicator: Any) -> None:
    with suppress(Exception):  # the first cause is the one that is reported
        communicator.abort()


def group_of(gpus: int, device: str, option: str = "--gpus") -> NcclGroup | None:
    """Return a group of the first `gpus` GPUs, or None for one. `device`: as for `pick_device`; `option`: the
    command-line option that sets the number, for the error. ConfigError on the CPU, DeviceError if there are fewer GPUs
    or no NCCL."""
    if gpus == 1:
        return None
    if device == "cpu":
        raise ConfigError(f"{option} needs GPUs; omit it with --device cpu")
    if pick_device(device) == "cpu":
        raise ConfigError(
            f"{option} is {gpus}, but this machine has no GPU that kernels run on; omit {option}, or see sp doctor"
        )
    return NcclGroup(tuple(range(gpus)))


def copies(group: NcclGroup, load: Callable[[], T]) -> list[T]:
    """Call `load` once on every GPU of a group but the first, and return the results by rank."""
    replicas = []
    for rank in range(1, group.size):
        with group.device(rank):
            replicas.append(load())
    return replicas


def check_gpus(devices: tuple[int, ...]) -> None:
    """Check that these GPUs are there, the first is the current one, and NCCL is installed; ConfigError or DeviceError
    if not."""
    first, count = current_device(), device_count()
    if len(set(devices)) < len(devices) or not devices or devices[0] != first:
        raise ConfigError(f"GPUs {devices}: name each once, and first the current one, {first}")
    if max(devices) >= count:
        raise DeviceError(f"{len(devices)} GPUs requested, but this machine has {count}; request fewer")
    if len(devices) > 1 and not nccl_version():
        raise DeviceError("several GPUs need NCCL; install it with `pip install nvidia-nccl-cu13` (cu12 for CUDA 12)")


@contextmanager
def nccl_errors() -> Iterator[None]:
    """Turn NCCL errors raised inside the block into DeviceError."""
    try:
        yield
    except Exception as error:
        if type(error).__name__ != "NcclError":
            raise
        raise DeviceError(f"NCCL: {' '.join(str(error).split())}; set NCCL_DEBUG=INFO for details") from error
