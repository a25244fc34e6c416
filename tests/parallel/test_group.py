"""Threads in place of GPUs: what they gather, and how one that fails or hangs ends all of them in one line."""

from __future__ import annotations

import threading
import time

import numpy as np
import pytest

from sp.errors import ConfigError, DeviceError, PromptError
from sp.parallel.group import Rank
from sp.parallel.host import HostGroup


def threads() -> list[str]:
    """Names of the GPUs' threads that live."""
    return [thread.name for thread in threading.enumerate() if thread.name.startswith("sp-gpu")]


def squares(gpu: Rank) -> list[int]:
    """Three gathers, each of which overwrites what the one before gave."""
    pair = np.zeros((gpu.size, 2), int), np.zeros((gpu.size, 1), int)
    for power in (1, 2, 3):
        for array in pair:
            array[gpu.rank] = (gpu.rank + 1) ** power
        gpu.all_gather(*pair)
    assert pair[0][:, 1].tolist() == pair[1][:, 0].tolist()
    return [int(value) for value in pair[0][:, 0]]


@pytest.mark.parametrize("size", [1, 2, 4])
def test_every_gpu_has_all_parts(size) -> None:
    assert HostGroup(size).run(squares) == [[(rank + 1) ** 3 for rank in range(size)]] * size
    assert not threads()


def means(gpu: Rank) -> tuple[bytes, ...]:
    """Apply three all-reduces in a row to two arrays, each to the results of the one before."""
    rng = np.random.default_rng(gpu.rank)
    pair = rng.standard_normal((5, 3), np.float32), rng.standard_normal(1, np.float32)
    for _ in range(3):
        for array in pair:
            array += np.float32(gpu.rank)
        gpu.all_reduce(*pair)
    return tuple(array.tobytes() for array in pair)


@pytest.mark.parametrize("size", [1, 2, 3, 4])
def test_every_gpu_has_the_same_bits_of_the_mean(size) -> None:
    drawn = [np.random.default_rng(rank) for rank in range(size)]
    first = [(rng.standard_normal((5, 3), np.float32), rng.standard_normal(1, np.float32)) for rng in drawn]
    mean_rank = (size - 1) / 2
    want = [np.mean([pair[i].astype(float) for pair in first], axis=0) + 3 * mean_rank for i in range(2)]
    actual = HostGroup(size).run(means)
    assert len(set(actual)) == 1
    for one, other in zip(actual[0], want, strict=True):
        np.testing.assert_allclose(np.frombuffer(one, np.float32), other.ravel(), rtol=1e-5, atol=1e-6)


def test_powers_of_two_are_shared_without_rounding() -> None:
    def halves(gpu: Rank) -> float:
        whole = np.array([1 + 2.0**-23], np.float32) / 4
        gpu.all_reduce(whole)
        return float(whole[0])

    assert HostGroup(4).run(halves) == [(1 + 2.0**-23) / 4] * 4


def test_one_that_does_not_come_to_a_mean_is_named() -> None:
    def work(gpu: Rank) -> None:
        gpu.all_gather(np.zeros(gpu.size))
        if gpu.rank == 1:
            time.sleep(0.6)
        gpu.all_reduce(np.zeros(2, np.float32))

    group = HostGroup(3, wait_seconds=0.1, leave_seconds=2.0)
    with pytest.raises(DeviceError, match=r"GPU [02] of 3: all-reduce 2: GPU 1 did not arrive within 0.1 s"):
        group.run(work)
    assert not threads()


@pytest.mark.parametrize(
    ("error", "kind", "text"),
    [
        (PromptError("too long"), PromptError, "GPU 2 of 4: too long"),
        (ConfigError("senseless"), ConfigError, "GPU 2 of 4: senseless"),
        (ValueError("two\nlines"), DeviceError, "GPU 2 of 4 failed: ValueError: two lines"),
    ],
)
def test_one_that_fails_ends_all_in_one_line(error, kind, text) -> None:
    def work(gpu: Rank) -> None:
        if gpu.rank == 2:
            raise error
        gpu.all_gather(np.zeros(gpu.size))

    group, start = HostGroup(4), time.monotonic()
    group.completed.add("something")
    with pytest.raises(kind) as caught:
        group.run(work)
    assert not group.completed, "GPUs that start again after a failure wait as at first"
    assert str(caught.value) == text
    assert caught.value.__cause__ is error
    assert time.monotonic() - start < 2
    assert not threads()
    assert len(group.run(squares)) == 4


def test_one_that_does_not_come_is_named() -> None:
    def work(gpu: Rank) -> None:
        gpu.all_gather(np.zeros(gpu.size))
        if gpu.rank == 1:
            time.sleep(0.6)
        gpu.all_gather(np.zeros(gpu.size))

    group, start = HostGroup(3, wait_seconds=0.1, leave_seconds=2.0), time.monotonic()
    with pytest.raises(DeviceError, match=r"GPU [02] of 3: all-gather 2: GPU 1 did not arrive within 0.1 s"):
        group.run(work)
    assert time.monotonic() - start < 1.5
    assert not threads()
    assert len(group.run(squares)) == 3


def test_one_that_never_ends_is_left_behind() -> None:
    let_go = threading.Event()

    def work(gpu: Rank) -> None:
        if gpu.rank == 1:
            let_go.wait()
        gpu.all_gather(np.zeros(gpu.size))

    group, start = HostGroup(2, wait_seconds=0.1, leave_seconds=0.2), time.monotonic()
    with pytest.raises(DeviceError, match="GPU 1 did not arrive"):
        group.run(work)
    assert time.monotonic() - start < 1.5
    assert threads() == ["sp-gpu-1"]
    assert len(group.run(squares)) == 2  # the one left behind is no part of it
    let_go.set()
    for thread in threading.enumerate():
        if thread.name.startswith("sp-gpu"):
            thread.join(2)
    assert not threads()


def test_a_forced_path_holds_in_the_threads() -> None:
    from sp.kernels import current_path, forced_path

    with forced_path("portable"):
        assert HostGroup(2).run(lambda gpu: current_path()) == ["portable"] * 2
