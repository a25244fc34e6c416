"""Conversations on a device that only counts: what they hold there, what leaves for a budget, and what comes back."""

from __future__ import annotations

import json

import pytest
from dry_walk import walked

WALK = """
import gc, json, sys
sys.path.insert(0, sys.argv[1])
import dry_device, dry_memory
dry_device.install()
import numpy as np
from sp.session import Conversation, Conversations
from sp.prompt.prompt import prompt_of
from sp.session import Pipeline, RunOptions
from sp.studies.sample import sample

document, example = sample()
pair = Pipeline.open(device="cuda")
loaded = dry_memory.pool.used_bytes()
options = RunOptions(keep_ratio=0.3, compress="always", max_new_tokens=4)
said = lambda role, content: {"role": role, "content": content}
out = {}


def turns(talk, count, start=1):
    history = [said("user", document[: 3000 * start]), said("assistant", "ok"), said("user", example.question)]
    for turn in range(count):
        result = talk.ask(history)
        yield result
        history += [said("assistant", result.answer.text), said("user", document[3000 * turn :][:1500])]
        history += [said("assistant", "ok"), said("user", example.question)]


def pages(trail):
    cache, found = trail.cache, []
    for layer in trail.config.attention_layers:
        at, table = cache.stored(layer), cache.block_table(layer)[: -(-trail.tokens // 128)]
        found += [each.host[list(table)] for each in (at.k, at.v)]
    found += [part.host for layer in trail.config.delta_layers
              for part in (cache.state(layer).conv, cache.state(layer).recurrent)]
    return found


talk = Conversation(pair, options)
out["usage"] = [result.usage.as_dict() for result in turns(talk, 3)]
out["facts"] = "residency" in talk.ask([said("user", "x")]).trace.facts
del talk
gc.collect()
weights = dry_memory.pool.used_bytes()
talk = Conversation(pair, options)
list(turns(talk, 2))
gc.collect()
out["held"] = [talk.nbytes, dry_memory.pool.used_bytes() - weights]
trails = talk._memory.caches


def scramble():
    rng = np.random.default_rng(0)
    for trail in trails:
        for layer in trail.config.attention_layers:
            at = trail.cache.stored(layer)
            for pool in (at.k.host, at.v.host):
                pool[...] = rng.integers(0, 255, pool.shape)
        for layer in trail.config.delta_layers:
            trail.cache.state(layer).recurrent.host[...] = layer


scramble()
before = [[part.copy() for part in pages(trail)] for trail in trails]


def same(found):
    pairs = [(a, b) for x, y in zip(before, found) for a, b in zip(x, y, strict=True)]
    return all(np.array_equal(a, b) for a, b in pairs)


def taken():
    for trail in trails:
        held = trail.changes(full=True).contents
        yield [part for both in [*held.pages.values(), *held.states.values()] for part in both]


out["taken"] = same(taken())
other = Conversation(pair, options)
for trail, mine in zip(trails, other._memory.caches):
    again = trail.changes(full=True)
    mine.put(again.contents, again.fresh)
    mine._with_room(mine.tokens)
out["put"] = same(map(pages, other._memory.caches))
other.clear()
del other, mine, again
gc.collect()
talk.offload()
out["taken"] = out["taken"] and same(taken())
out["left"] = [talk.nbytes, dry_memory.pool.used_bytes() - weights, talk.host_nbytes]
for trail in trails:
    trail._with_room(trail.tokens)
after = [pages(trail) for trail in trails]
out["back"] = all(np.array_equal(a, b) for x, y in zip(before, after) for a, b in zip(x, y))
for trail in trails:
    trail._with_room(2 * trail.tokens + 1000)
out["grown"] = all(np.array_equal(a, b) for x, y in zip(before, map(pages, trails)) for a, b in zip(x, y))
pinned = len(dry_memory.pinned)
for _ in range(3):
    talk.offload()
    for trail in trails:
        trail._with_room(trail.tokens)
out["pinned anew"] = len(dry_memory.pinned) - pinned
talk.clear()
del talk, trail, trails, before, after
gc.collect()
out["once"] = weights - loaded
out["cleared"] = dry_memory.pool.used_bytes() - weights

talks = Conversations(pair, most=3, device=6 << 20)
for start in (1, 2, 3, 1, 2):
    history = [said("user", document[: 3000 * start]), said("assistant", "ok"), said("user", "?")]
    talks.answer(prompt_of(history, pair.target), options)
out["device"], out["host"] = talks.device_nbytes, talks.host_nbytes
out["counts"] = vars(talks.counts)
peak = pair.memory_manager.report(0.0)["peak_bytes"]
first, second = Conversation(pair, options), Conversation(pair, options)
talks.clear()
idle = list(turns(first, 2, 3))
free = list(turns(second, 3, 2))
need = max(one.trace.facts["residency"]["peak_bytes"] for one in free)
out["idle"] = first.nbytes
tight = pair.within(need - first.nbytes // 2)
second = Conversation(tight, options)
out["tight"] = [one.usage.as_dict() for one in turns(second, 3, 2)] == [one.usage.as_dict() for one in free]
out["idle left"] = first.nbytes
out["total"] = dry_memory.pool.total_bytes() - (need - first.nbytes // 2) <= 0
out["launches"] = sum(dry_device.launches.values())
print(json.dumps(out))
"""


@pytest.fixture(scope="module")
def found() -> dict:
    printed = walked(WALK)
    return json.loads(printed)


def test_turns_draft_and_read_only_what_is_new(found: dict) -> None:
    first, *later = found["usage"]
    assert first["cached"] == 0 < first["kept"] < first["new"]
    for usage in later:
        assert usage["drafted"] < usage["prompt"] // 2
        assert usage["cached"] > usage["prompt"] // 2
    assert found["facts"]


def test_what_it_says_it_holds_is_what_the_pool_lends(found: dict) -> None:
    said, lent = found["held"]
    assert said <= lent <= said + (2 << 20)  # tables, the graph's numbers
    assert found["left"][0] == 0
    assert found["left"][1] < 1 << 20
    assert found["left"][2] > 0
    assert found["cleared"] < 1 << 20


def test_pages_and_states_come_back_as_they_were(found: dict) -> None:
    assert found["back"]
    assert found["grown"]
    assert found["pinned anew"] == 0, "to pin memory takes longer than to copy into it"


def test_what_is_taken_for_a_file_is_what_lies_on_the_device_and_comes_back(found: dict) -> None:
    assert found["taken"]
    assert found["put"]


def test_a_store_keeps_to_its_budget_of_the_device(found: dict) -> None:
    assert found["device"] <= 6 << 20
    assert found["host"] > 0
    assert found["counts"]["misses"] + found["counts"]["forks"] == 3
    assert found["counts"]["hits"] == 2


def test_idle_conversations_leave_for_one_at_work_within_a_budget(found: dict) -> None:
    assert found["idle"] > 0 == found["idle left"]
    assert found["tight"]
    assert found["total"]
