"""Recordings by themselves: what they hold, what they refuse, and what the driver is told."""

from __future__ import annotations

import ctypes
import weakref
from contextlib import contextmanager, nullcontext
from types import SimpleNamespace

import numpy as np
import pytest

from sp.errors import DeviceError
from sp.kernels import import_cupy, launch_replay, tensor_map
from sp.kernels.device import standing_in
from sp.kernels.kept import cache
from sp.kernels.launch_replay import Kernel, LaunchRecorder


class Array:
    """An address, as CuPy's arrays have one."""

    def __init__(self, ptr: int, nbytes: int = 64) -> None:
        self.data, self.nbytes = SimpleNamespace(ptr=ptr), nbytes


class Lender:
    """Temporary memory, which only shows if it is in use."""

    inside = False

    @contextmanager
    def use(self):
        self.inside = True
        yield
        self.inside = False


@pytest.fixture
def driver(monkeypatch):
    """Record the calls of the driver, with a CuPy that has only what these tests use."""
    given, status = [], [0]

    def launch(kernel, *rest):
        sizes, stream, pointers, extra = rest[:7], rest[7], rest[8], rest[9]
        values = [int.from_bytes(ctypes.string_at(at, 8), "little") for at in pointers]
        given.append((kernel.value, list(sizes), stream.value, values))
        assert extra is None
        return status[0]

    def fill(at, value, nbytes, stream):
        given.append((at.value, value.value, nbytes.value, stream.value))
        return status[0]

    monkeypatch.setattr(launch_replay, "driver", lambda: SimpleNamespace(cuLaunchKernel=launch, cuMemsetD8Async=fill))
    cuda = SimpleNamespace(get_current_stream=lambda: SimpleNamespace(ptr=77))
    arrays = iter(range(4096, 1 << 20, 4096))
    cupy = SimpleNamespace(
        cuda=cuda, zeros=lambda shape, dtype: Array(next(arrays)), empty=Array, mean=lambda x: 0.0, float32=np.float32
    )
    with standing_in(cupy):
        yield SimpleNamespace(given=given, status=status)


def recording() -> LaunchRecorder:
    """One whose memory is anybody's."""
    return LaunchRecorder(SimpleNamespace(use=nullcontext))


def made(*, foreign: bool = False) -> tuple[LaunchRecorder, list[tuple]]:
    """A recording of one launch between two fills, and how CuPy was called for it."""
    called: list[tuple] = []
    kernel = Kernel(type("Function", (), {"ptr": 5, "__call__": lambda self, *a, **k: called.append((a, k))})())
    one = recording()
    kernel((1,), (32,), (Array(16),), shared_mem=0)  # before it: not recorded
    with one.recording():
        cupy = import_cupy()
        counter = cupy.zeros(1, cupy.float32)
        big = np.arange(16, dtype=np.uint64).view("V128")
        kernel((3, 2), (64,), (Array(1000), Array(1040), np.int32(-1), np.uint64(0), counter, big), shared_mem=9)
        if foreign:
            cupy.mean(counter)
    kernel((1,), (32,), (Array(16),), shared_mem=0)
    return one, called


def test_a_repeat_gives_the_driver_the_same_but_for_what_is_exchanged(driver) -> None:
    one, called = made()
    assert [len(arguments) for (_, _, arguments), _ in called] == [1, 6, 1]
    repeat = one.replay([Array(1000)])
    assert repeat is not None
    repeat([2000])
    repeat([3000])
    fill, launch, again, other = driver.given
    assert fill == again == (4096, 0, 64, 77)
    assert launch == (5, [3, 2, 1, 64, 1, 1, 9], 77, [2000, 2040, 0xFFFFFFFF, 0, 4096, 0])
    assert other[3][:2] == [3000, 3040]
    assert other[3][2:] == launch[3][2:]


def test_maps_of_what_is_exchanged_are_those_of_the_others(driver, monkeypatch) -> None:
    def encode(address, *given):
        words = np.full(16, address, np.uint64)
        return words.view(np.dtype("V128", metadata={"made": (address, *given)}))

    monkeypatch.setattr(tensor_map, "_encode", encode)
    shared, one = encode(1040, "uint8", (64,)), recording()
    kernel = Kernel(type("Function", (), {"ptr": 5, "__call__": lambda self, *a, **k: None})())
    with one.recording():
        kernel((1,), (32,), (shared, encode(5000, "uint8", (64,))), shared_mem=0)
    repeat = one.replay([Array(1000)])
    assert repeat is not None
    repeat([2000])
    repeat([3000])
    assert [given[3] for given in driver.given] == [[2040, 5000], [3040, 5000]]
    assert tensor_map.mapped(shared) == 1040
    assert (shared.view(np.uint64) == 1040).all(), "the map itself is everybody's"


def test_arrays_from_outside_are_held_and_those_made_meanwhile_are_not(driver) -> None:
    one, lending = LaunchRecorder(scratch := Lender()), []
    kernel = Kernel(
        type("Function", (), {"ptr": 5, "__call__": lambda self, *a, **k: lending.append(scratch.inside)})()
    )
    outside, exchanged = Array(7000), Array(1000)
    with one.recording():
        array = import_cupy().empty(3000)
        kernel((1,), (32,), (exchanged, array, Array(3032), outside), shared_mem=0)
    assert lending == [True]
    assert not scratch.inside
    looked = [weakref.ref(array), weakref.ref(outside)]
    repeat = one.replay([exchanged])
    del one, array, outside
    assert [one() is None for one in looked] == [True, False]
    repeat([2000])
    assert driver.given[0][3] == [2000, 3000, 3032, 7000]
    del repeat
    assert looked[1]() is None


def test_memory_used_again_is_not_taken_for_what_is_exchanged(driver) -> None:
    """An array that was made meanwhile stays where it was, whatever is exchanged."""
    one = recording()
    kernel = Kernel(type("Function", (), {"ptr": 5, "__call__": lambda self, *a, **k: None})())
    with one.recording():
        made = import_cupy().empty(3000)
        kernel((1,), (32,), (Array(1000), made), shared_mem=0)
    assert one.replay([Array(1000), made]) is None


def test_unsupported_calls_are_not_replayed(driver) -> None:
    one, _ = made()
    assert one.replay([Array(1000), Array(3000)]) is None
    assert one.replay([Array(1000), Array(4096)]) is None, "it is made zero"
    odd, _ = made(foreign=True)
    assert odd.unsupported == "mean"
    assert odd.replay([Array(1000)]) is None


def test_cached_arrays_are_not_recorded_and_an_error_ends_recording(driver) -> None:
    @cache
    def kept() -> Array:
        import_cupy().mean(None)
        return import_cupy().zeros(1, np.float32)

    def fails() -> None:
        with one.recording():
            kept()
            raise ZeroDivisionError

    one = recording()
    with pytest.raises(ZeroDivisionError):
        fails()
    assert (one.commands, one.unsupported) == ([], "")
    import_cupy().zeros(1, np.float32)
    assert not one.commands


def test_a_launch_that_the_driver_refuses_is_an_error(driver) -> None:
    one, _ = made()
    repeat = one.replay([Array(1000)])
    driver.status[0] = 700
    with pytest.raises(
        DeviceError, match="CUDA error 700 while launches were replayed; run again with SP_KERNEL_DEBUG"
    ):
        repeat([1000])
