"""A thread goes to a processor that is fast when it comes."""

from __future__ import annotations

import os
import threading

import pytest

from sp.parallel.cpu_affinity import PROBES, CpuChooser, cpu_chooser, current_cpu, probe

pytestmark = pytest.mark.skipif(
    not hasattr(os, "sched_setaffinity") or len(os.sched_getaffinity(0)) < 2, reason="there is nothing to choose"
)


class Host:
    """How long each processor takes; looks are counted."""

    def __init__(self) -> None:
        self.numbers = sorted(os.sched_getaffinity(0))[:2]
        self.takes, self.looks = dict.fromkeys(self.numbers, 1.0), list[int]()

    def look(self) -> float:
        here = current_cpu()
        assert here is not None
        self.looks.append(here)
        return self.takes[here]


@pytest.fixture
def host():
    before, host = os.sched_getaffinity(0), Host()
    os.sched_setaffinity(0, host.numbers)
    yield host
    os.sched_setaffinity(0, before)


def test_the_fastest_is_chosen_without_pinning_a_thread(host) -> None:
    slow, fast = host.numbers
    host.takes[slow] = 2.0
    chosen = CpuChooser(host.look)
    assert chosen.choose() == fast
    assert sorted(host.looks) == host.numbers, "of the first choice all are looked at, as nothing is known"
    assert os.sched_getaffinity(0) == set(host.numbers)


def test_the_last_one_is_kept_while_it_is_about_as_fast(host) -> None:
    chosen = CpuChooser(host.look)
    first = chosen.choose()
    host.looks.clear()
    host.takes[first] = 1.3
    assert chosen.choose() == first
    assert host.looks == [first]
    host.takes[first] = 1.6
    assert chosen.choose() != first
    assert chosen.choose() != first, "which is the last one now"


def test_if_all_are_slow_the_fastest_is_chosen_and_earlier_times_are_forgotten(host) -> None:
    chosen = CpuChooser(host.look)
    chosen.choose()
    host.takes = dict(zip(host.numbers, (1.6, 1.5), strict=True))
    assert [chosen.choose() for _ in range(3)] == [host.numbers[1]] * 3
    for _ in range(20):
        chosen.choose()
    host.looks.clear()
    chosen.choose()
    assert host.looks == [host.numbers[1]], "1.5 is as fast as it gets"


def test_a_thread_that_may_be_elsewhere_alone_leaves_the_last_one(host) -> None:
    chosen = CpuChooser(host.look)
    first = chosen.choose()
    other = next(number for number in host.numbers if number != first)
    os.sched_setaffinity(0, {other})
    assert chosen.choose() == other
    assert os.sched_getaffinity(0) == {other}


def test_concurrent_probes_run_one_after_the_other(host) -> None:
    chosen, found = CpuChooser(host.look), []
    threads = [threading.Thread(target=lambda: found.append(chosen.choose())) for _ in range(8)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(10)
    assert len(found) == 8
    assert set(found) <= set(host.numbers)


def test_without_permission_the_thread_stays(host, monkeypatch) -> None:
    def forbidden(*_: object) -> None:
        raise PermissionError(1, "Operation not permitted")

    monkeypatch.setattr(os, "sched_setaffinity", forbidden)
    assert CpuChooser(host.look).choose() is None
    monkeypatch.delattr(os, "sched_setaffinity")
    assert CpuChooser(host.look).choose() is None


def test_a_look_takes_little_and_this_process_has_one_memory() -> None:
    assert 0 < min(probe() for _ in range(5)) < 1e-3
    assert cpu_chooser() is cpu_chooser()
    assert PROBES <= 6
