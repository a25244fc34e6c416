"""Threads of GPUs on one processor of the host, and as they were before once they leave it."""

from __future__ import annotations

import os
import threading

import pytest

from sp.parallel.cpu_affinity import SharedCpu

pytestmark = pytest.mark.skipif(not hasattr(os, "sched_setaffinity"), reason="threads go where they like here")


def test_later_threads_go_where_the_first_one_was() -> None:
    core, seen, before = SharedCpu(), [], os.sched_getaffinity(0)

    def work() -> None:
        with core.pin():
            seen.append(os.sched_getaffinity(0))
        assert os.sched_getaffinity(0) == before

    threads = [threading.Thread(target=work) for _ in range(3)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(10)
    assert seen == [{core.number}] * 3
    assert core.number in before


def test_without_permission_nothing_happens(monkeypatch) -> None:
    def forbidden(*_: object) -> None:
        raise PermissionError(1, "Operation not permitted")

    monkeypatch.setattr(os, "sched_setaffinity", forbidden)
    with SharedCpu().pin():
        pass
