"""LaunchLock to queue work: in the order they are asked for, one at a time, and advice only."""

from __future__ import annotations

import threading
import time

from sp.parallel.nccl_rank import LaunchLock


def test_one_at_a_time_and_in_order() -> None:
    turns, inside, order = LaunchLock(seconds=5.0), [], []

    def work(name: int) -> None:
        time.sleep(0.02 * name)
        for _ in range(20):
            with turns.hold() as mine:
                assert mine
                inside.append(name)
                assert len(inside) == 1
                order.append(name)
                time.sleep(0.001)
                inside.pop()

    threads = [threading.Thread(target=work, args=(name,)) for name in range(3)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(10)
    assert sorted(order) == [0] * 20 + [1] * 20 + [2] * 20
    together = order[order.index(2) : len(order) - order[::-1].index(0)]
    assert all(len({*together[i : i + 3]}) > 1 for i in range(len(together) - 3))  # nobody takes turn after turn


def test_a_thread_that_waits_too_long_goes_on() -> None:
    turns, seen = LaunchLock(seconds=0.05), []

    def late(name: str) -> None:
        with turns.hold() as mine:
            seen.append((name, mine))

    with turns.hold() as mine:
        assert mine
        others = [threading.Thread(target=late, args=(name,)) for name in "ab"]
        start = time.monotonic()
        for other in others:
            other.start()
        for other in others:
            other.join(5)
        assert time.monotonic() - start < 1
    assert sorted(seen) == [("a", False), ("b", False)]
    with turns.hold() as mine:
        assert mine
