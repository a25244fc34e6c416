"""Fairness of the queue: no client starves, nothing is lost, and over HTTP one client does not block the others."""

from __future__ import annotations

import threading
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from typing import Any

import pytest
import serving as tool
from hypothesis import given, settings
from hypothesis import strategies as st

from sp.prompt import Prompt
from sp.serve.fair_queue import FairQueue, queue_key_of
from sp.session import Pipeline, RunResult

openai = pytest.importorskip("openai")


def test_clients_and_their_sessions_take_turns() -> None:
    queue: FairQueue[str] = FairQueue()
    for item in ("a1x", "a1y", "a1z", "a2x", "a2y", "b1x", "b1y"):
        queue.add((item[0], item[1]), item)
    assert [queue.next() for _ in range(7)] == ["a1x", "b1x", "a2x", "b1y", "a1y", "a2y", "a1z"]
    with pytest.raises(KeyError):
        queue.next()


steps = st.lists(st.tuples(st.sampled_from(["add", "add", "next", "remove"]), st.sampled_from("abc"),
                           st.sampled_from("12"), st.integers(0, 50)), max_size=60)  # fmt: skip


@given(steps)
@settings(max_examples=80, deadline=None)
def test_nobody_waits_for_more_than_one_turn_of_each_other(steps: list[tuple[str, str, str, int]]) -> None:
    queue: FairQueue[tuple[str, str, int]] = FairQueue()
    waiting: list[tuple[str, str, int]] = []
    turns: dict[str, list[str]] = {}  # of a client that waits: who was served since it waits for this turn
    for number, (step, client, session, which) in enumerate(steps):
        if step == "add":
            item = (client, session, number)
            queue.add(item[:2], item)
            waiting.append(item)
            turns.setdefault(client, [])
        elif step == "remove" and waiting:
            item = waiting.pop(which % len(waiting))
            assert queue.remove(item[:2], item)
            assert not queue.remove(item[:2], item)
        elif step == "next" and waiting:
            item = queue.next()
            assert item == min(each for each in waiting if each[:2] == item[:2])
            waiting.remove(item)
            for served in turns.values():
                served.append(item[0])
            turns[item[0]] = []
        left = {each[0] for each in waiting}
        turns = {name: served for name, served in turns.items() if name in left}
        assert all(len(set(served)) == len(served) for served in turns.values()), turns
        assert sorted(queue) == sorted(waiting)
        assert len(queue) == len(waiting)


def test_who_has_many_gives_way() -> None:
    queue: FairQueue[str] = FairQueue()
    for item in ("a1", "b1", "a2"):
        queue.add((item[0], ""), item)
    assert queue.greediest(client="c") == "a2"
    assert queue.greediest(client="b") is None
    assert queue.greediest(client="a") is None
    assert FairQueue().greediest(client="a") is None


@pytest.mark.parametrize(
    ("one", "other", "same_client", "same_session"),
    [
        ({"user": "x"}, {"user": "y"}, False, True),
        ({"user": "x", "safety_identifier": "z"}, {"user": "y", "safety_identifier": "z"}, True, True),
        ({"prompt_cache_key": "k", "messages": [1]}, {"prompt_cache_key": "k", "messages": [2]}, True, True),
        ({"messages": [{"role": "system"}, {"role": "user", "content": "a"}]},
         {"messages": [{"role": "system"}, {"role": "user", "content": "b"}]}, True, False),
        ({"messages": "\ud800"}, {"messages": []}, True, False),
        ({"prompt": "a"}, {"prompt": "b"}, True, True),
    ],
)  # fmt: skip
def test_lanes_of_requests(one: Any, other: Any, same_client: bool, same_session: bool) -> None:
    first, second = queue_key_of(one, "::1", ""), queue_key_of(other, "::1", "")
    assert (first[0] == second[0], first[1] == second[1]) == (same_client, same_session)
    assert queue_key_of({}, "::1", "key")[0] != queue_key_of({}, "::1", "")[0] != queue_key_of({}, "::2", "")[0]


class Gated(Pipeline):
    """Waits to be let go before every run, and notes what it reads."""

    def run(self, prompt: Prompt, options: Any, **given: Any) -> RunResult:
        self.seen.append(prompt.text)
        assert self.gate.acquire(timeout=20)
        return super().run(prompt, options, **given)


@contextmanager
def gated(pair: Pipeline, queue: int) -> Iterator[tuple[tool.Running, Any, ThreadPoolExecutor]]:
    pipeline = Gated(pair.target, pair.drafter)
    pipeline.seen, pipeline.gate = [], threading.Semaphore(0)  # type: ignore[attr-defined]
    with tool.serving(pipeline, queue=queue) as running, ThreadPoolExecutor(8) as pool:
        try:
            yield running, pipeline, pool
        finally:
            pipeline.gate.release(50)  # type: ignore[attr-defined]


def ask(server: tool.Running, user: str, text: str) -> str:
    said = [{"role": "user", "content": text}]
    try:
        reply = tool.client(server).chat.completions.create(model="x", messages=said, user=user, max_tokens=1)
    except openai.RateLimitError as error:
        return str(error.status_code)
    return str(reply.choices[0].finish_reason)


def test_a_crowd_of_one_client_lets_another_through(pair: Pipeline) -> None:
    with gated(pair, 8) as (server, pipeline, pool):
        asked = []
        for number, (user, text) in enumerate([("a", "a0"), ("a", "a1"), ("a", "a2"), ("a", "a3"), ("b", "b0")]):
            asked.append(pool.submit(ask, server, user, text))
            tool.until(lambda n=number: server.worker.state["waiting"] + server.worker.state["running"] == n + 1)
        pipeline.gate.release(5)
        assert [each.result(20) for each in asked] == ["length"] * 5
        assert [next(t for t in ("a0", "a1", "a2", "a3", "b0") if t in seen) for seen in pipeline.seen] == [
            "a0", "a1", "b0", "a2", "a3",
        ]  # fmt: skip


def test_a_full_queue_makes_room_for_who_has_nothing_in_it(pair: Pipeline) -> None:
    with gated(pair, 2) as (server, pipeline, pool):
        asked = []
        for number in range(3):
            asked.append(pool.submit(ask, server, "a", f"a{number}"))
            tool.until(lambda n=number: server.worker.state["waiting"] + server.worker.state["running"] == n + 1)
        assert ask(server, "a", "a3") == "429"
        asked.append(pool.submit(ask, server, "b", "b0"))
        assert asked[2].result(20) == "429"
        pipeline.gate.release(3)
        assert [each.result(20) for each in asked] == ["length", "length", "429", "length"]
