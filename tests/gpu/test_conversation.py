"""Conversations on the device: exact turns, warm as cold, caches that leave and come back, and memory that stays.

The walks are those of the CPU's tests. Pieces of a prompt that are read apart go through other kernels than all of it
at once, so logits agree within what rounding of activations to bf16 may do.
"""

from __future__ import annotations

from functools import partial

import cupy
import pytest
from conversation_walks import (
    PAIRS,
    chats,
    compressed_turns,
    message,
    options,
    pair,
    parked_turns,
    restarted_turns,
    walk,
    warm_and_cold,
    whole_turns,
)

from sp.models.cache.session_cache import NEAR
from sp.prompt.prompt import prompt_of
from sp.session import Conversation, Conversations

pytestmark = pytest.mark.no_sanitizer
BOUND = 2e-3


@pytest.mark.parametrize("names", PAIRS, ids="-".join)
def test_whole_turns_have_the_logits_of_one_prefill(names, path) -> None:
    errors = whole_turns(pair(*names, "cuda"))
    print(errors)
    assert max(errors) < BOUND


@pytest.mark.parametrize("names", PAIRS, ids="-".join)
@pytest.mark.parametrize("recall", ["append", "rewind", "auto", "off"])
def test_compressed_turns_have_the_logits_of_what_is_in_the_cache(names, recall) -> None:
    errors, recalled = compressed_turns(pair(*names, "cuda"), recall)
    print(errors, recalled)
    assert max(errors) < BOUND
    assert (recalled > 0) == (recall != "off")


@pytest.mark.parametrize("names", PAIRS, ids="-".join)
@pytest.mark.parametrize(
    ("keys", "bound", "least"), [("f16", 1e-3, 0.98), ("5bit", 0.05, 0.9), ("4bit", 0.05, 0.9), ("q4_0", 0.05, 0.9)]
)
@pytest.mark.parametrize("scorer", ["tail", "anchored"])
def test_warm_is_cold(names, keys, bound, least, scorer, path) -> None:
    found = warm_and_cold(pair(*names, "cuda"), keys, scorer)
    print(found)
    assert all(off < bound for off, _, _ in found)
    assert all(worth > least for _, worth, _ in found)


def test_scores_are_those_of_the_cpu() -> None:
    here, there = (Conversation(pair(*PAIRS[0], device), options(0.3)) for device in ("cuda", "cpu"))
    for one, other in zip(walk(here, 1), walk(there, 1), strict=True):
        kept = int(other.present.sum())
        assert int((one.present ^ other.present).sum()) <= 0.2 * kept  # chunks of about one score change places


@pytest.mark.parametrize("names", PAIRS, ids="-".join)
def test_caches_may_leave_between_turns(names) -> None:
    parked_turns(pair(*names, "cuda"))


@pytest.mark.parametrize("names", PAIRS, ids="-".join)
def test_each_turn_may_be_another_process(names, tmp_path) -> None:
    restarted_turns(pair(*names, "cuda"), tmp_path)


def test_few_snapshots_are_on_the_device_between_turns() -> None:
    talk = Conversation(pair(*PAIRS[0], "cuda"), options(0.4))
    for _ in walk(talk, 4):
        trail = talk._memory.target.cache
        states = trail.cache.state_nbytes
        assert trail.nbytes <= trail.cache.nbytes + NEAR * states
        assert len(trail.places) <= NEAR or trail.host_nbytes >= states


def test_turns_that_go_back_hold_no_more_memory_than_the_first_ones() -> None:
    where, pool, used = pair(*PAIRS[0], "cuda"), cupy.get_default_memory_pool(), []
    talk, (*_, start) = Conversation(where, options(0.4)), chats(3)
    for turn in range(24):
        talk.ask([*start[:-1], message("user", f"Question {turn % 4}?")])
        used.append(pool.used_bytes())
    print([n >> 10 for n in used])
    assert len(set(used[8:])) == 1  # to the byte


def test_a_store_keeps_to_its_budget_and_gives_all_back() -> None:
    where, pool = pair(*PAIRS[0], "cuda"), cupy.get_default_memory_pool()
    run, ask = options(0.4), partial(prompt_of, loaded=where.target)
    list(walk(Conversation(where, run), 1))  # kernels, and what they keep for themselves
    before = pool.used_bytes()
    talks = Conversations(where, most=3, device=4 << 20)
    for turn in range(6):
        (chat,) = chats(1, 700 + 100 * (turn % 3))
        talks.answer(ask([message("system", f"You are {turn % 3}."), *chat]), run)
        assert talks.device_nbytes <= 4 << 20
    assert talks.counts.misses == 3
    talks.clear()
    assert pool.used_bytes() <= before + (1 << 20)
