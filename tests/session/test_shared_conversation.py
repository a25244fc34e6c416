"""Conversations whose target GPUs share, threads of the host here: turns, forks, files, failures, room."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from functools import cache
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from conversation_walks import chats, failing_head, message, model, options, pair, parked_turns, restarted_turns, walk

from sp.errors import DeviceError, PromptError
from sp.models import ContextParallel
from sp.models.shards.shards import SharedModel
from sp.parallel.host import HostGroup
from sp.prompt.prompt import prompt_of
from sp.session import Conversation, ConversationOptions, Conversations, Pipeline, embedded, key_bases, load, synthetic
from sp.session.device.memory_manager import MemoryManager
from sp.session.disk.shelf import Shelf
from sp.session.memory import TargetMemory
from sp.session.store import lasting

PAIRS = (("target", "drafter"), ("tiny-qwen35", "drafter"), ("tiny-qwen3", "tiny-qwen35"))
"""The embedded pair, a recurrent target, a recurrent drafter."""
SHORT = 400
"""Characters of the document that a turn brings here: two threads that are GPUs take several times as long as one."""


@cache
def shared(target: str, drafter: str) -> Pipeline:
    """The pair of `conversation_walks.pair`, its target on two GPUs."""
    group = HostGroup(2)
    if target == "target":
        loaded = load(embedded(target), device="cpu", group=group)
    else:
        loaded = synthetic(target, "q8_0", device="cpu", group=group)
    return Pipeline(loaded, model(drafter, "drafter", "cpu"))


def shards(pipeline: Pipeline) -> Any:
    assert isinstance(pipeline.target.model, SharedModel)
    return pipeline.target.model.shards


@pytest.mark.parametrize("names", PAIRS, ids="-".join)
@pytest.mark.parametrize("recall", ["append", "rewind"])
def test_turns_are_those_of_one_gpu(names: tuple[str, str], recall: Any) -> None:
    memory = ConversationOptions(recall=recall, recall_ratio=0.3, recall_tokens=100)
    alone, together = (Conversation(each, options(0.3), memory) for each in (pair(*names, "cpu"), shared(*names)))
    for number, (want, got) in enumerate(zip(walk(alone, 3, SHORT), walk(together, 3, SHORT), strict=True)):
        assert got.answer.tokens == want.answer.tokens
        assert got.usage == want.usage
        np.testing.assert_array_equal(got.present, want.present)
        assert got.usage.cached > 0 or number == 0
        assert got.answer.trace.facts["cards"][-1].startswith("target: shared by 2 GPUs")
    assert together.nbytes >= alone.nbytes > 0


def test_keys_in_bases_of_each_gpu(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("SP_CACHE_DIR", str(tmp_path))
    monkeypatch.setattr(key_bases, "TOKENS", 128)
    target = load(embedded("target"), device="cpu", group=HostGroup(2))
    one, two = (Conversation(Pipeline(target, model("drafter", "drafter", "cpu")), replace(options(0.4), kv="5bit"))
                for _ in range(2))  # fmt: skip
    assert [turn.answer.tokens for turn in walk(one, 2, SHORT)] == [turn.answer.tokens for turn in walk(two, 2, SHORT)]
    assert one._memory.target.caches[0].bases[0].scale.shape[0] == 1  # heads of one GPU


@pytest.mark.parametrize("names", PAIRS[:2], ids="-".join)
def test_caches_may_leave_between_turns(names: tuple[str, str]) -> None:
    parked_turns(shared(*names), 3, SHORT)


@pytest.mark.parametrize("names", PAIRS[:2], ids="-".join)
def test_each_turn_may_be_another_process(names: tuple[str, str], tmp_path: Path) -> None:
    restarted_turns(shared(*names), tmp_path, 3, SHORT)


def test_files_of_another_number_of_gpus_stay_but_are_not_used(tmp_path: Path) -> None:
    chat = next(chats(1, SHORT))
    for pipeline in (shared(*PAIRS[0]), pair(*PAIRS[0], "cpu")):
        talks = Conversations(pipeline, shelf=Shelf(tmp_path, 1 << 30, lasting(pipeline), print))
        assert not talks.answer(prompt_of(chat, pipeline.target), options(0.4)).restored
        talks.close()
    assert len(list(tmp_path.glob("*.sp-session"))) == 2


@pytest.mark.parametrize("names", PAIRS[:2], ids="-".join)
def test_both_branches_of_a_fork_go_on(names: tuple[str, str]) -> None:
    found = []
    for pipeline in (pair(*names, "cpu"), shared(*names)):
        talks, answers = Conversations(pipeline, most=3), []
        *_, chat = chats(2, SHORT)
        edited = [*chat[:3], message("assistant", "No."), message("user", "What else?")]
        for turn in (chat[:3], chat, edited, [*chat, message("assistant", "."), message("user", "And now?")]):
            result = talks.answer(prompt_of(turn, pipeline.target), options(0.4))
            answers.append((result.match, result.answer.tokens, result.usage))
        found.append(answers)
        talks.clear()
        assert talks.host_nbytes == 0
    assert found[0] == found[1]
    assert [match for match, *_ in found[1]] == ["miss", "hit", "fork", "hit"]


@pytest.mark.parametrize("names", PAIRS[:2], ids="-".join)
@pytest.mark.parametrize("calls", [1, 3])
def test_a_gpu_that_fails_costs_one_answer(names: tuple[str, str], calls: int) -> None:
    """In the prefill and while decoding: the next turn goes on from what both GPUs hold."""
    pipeline, turns = shared(*names), [list(chat) for chat in chats(2)]
    talk, undisturbed = (Conversation(pipeline, options(0.4)) for _ in range(2))
    wants = [undisturbed.ask(turn) for turn in [*turns, turns[1]]]
    talk.ask(turns[0])
    parts = undisturbed._memory.target._parts  # type: ignore[union-attr]
    assert all(part._graphs is not None for part in parts)
    enough = pytest.raises(PromptError, match=r"^GPU 1 of 2: enough$")
    with failing_head(shards(pipeline).models[1], calls), enough:
        talk.ask(turns[1])
    assert all(part._graphs is None for part in parts), "graphs have captured what the failure has ended"
    got, want = talk.ask(turns[1]), wants[1 if calls == 1 else 2]  # what was asked before is asked again
    assert got.answer.tokens == want.answer.tokens
    assert got.usage.cached == want.usage.cached


class EnoughError(Exception):
    pass


def stops(after: int) -> Callable[..., Any]:
    """A callback that ends the work when it is called that often."""
    calls = []

    def stop(*_: Any) -> None:
        calls.append(1)
        if len(calls) == after:
            raise EnoughError

    return stop


@pytest.mark.parametrize("names", PAIRS[:2], ids="-".join)
def test_a_turn_may_be_cancelled_anywhere(names: tuple[str, str]) -> None:
    pipeline, turns = shared(*names), [list(chat) for chat in chats(2, SHORT)]
    undisturbed = Conversation(pipeline, options(0.4))
    wants = [undisturbed.ask(turn) for turn in [*turns, turns[1]]]
    for keywords in ({"on_token": stops(1)}, {"on_token": stops(2)}, {"progress": stops(2)}, {"progress": stops(5)}):
        talk = Conversation(pipeline, options(0.4))
        talk.ask(turns[0])
        with pytest.raises((EnoughError, DeviceError)):  # in the thread of a GPU it becomes the error of that GPU
            talk.ask(turns[1], **keywords)  # type: ignore[arg-type]
        got, again = talk.ask(turns[1]), "on_token" in keywords  # the question had been read
        assert got.answer.tokens == wants[1 + again].answer.tokens
        assert got.usage.cached == wants[1 + again].usage.cached


def test_another_conversation_leaves_where_a_cache_has_no_room(monkeypatch: pytest.MonkeyPatch) -> None:
    pipeline = replace(shared(*PAIRS[0]), memory_manager=MemoryManager())  # of these conversations alone
    turns = [list(chat) for chat in chats(2, SHORT)]
    first, second = (Conversation(pipeline, options(0.4)) for _ in range(2))
    want = [first.ask(turn).answer.tokens for turn in turns]
    reserve, full = TargetMemory.reserve, [True]

    def refusing(self: TargetMemory, tokens: int, room: int) -> None:
        if full and full.pop():
            raise DeviceError("the GPU's memory is full")
        reserve(self, tokens, room)

    monkeypatch.setattr(TargetMemory, "reserve", refusing)
    assert second.ask(turns[0]).answer.tokens == want[0]
    assert first.nbytes == 0 < first.host_nbytes
    full += [True] * 9
    with pytest.raises(DeviceError, match="memory is full"):
        second.ask(turns[1])


@pytest.mark.parametrize("keys", ["f16", "q4_0"])
def test_gpus_draft_a_new_conversation_together_and_the_first_goes_on(keys: str) -> None:
    """Its keys are those of one GPU, so that later turns score the same."""
    alone, memory = pair(*PAIRS[0], "cpu"), ConversationOptions(keys=keys)
    assert alone.drafter is not None
    gpus = ContextParallel(HostGroup(2), [alone.drafter.model] * 2)
    size = 2000  # of which two GPUs have a page for each of their chunks
    wants = list(walk(Conversation(alone, options(0.4), memory), 2, size))
    for pipeline in (replace(alone, gpus=gpus), replace(shared(*PAIRS[0]), gpus=gpus)):
        talk = Conversation(pipeline, options(0.4), memory)
        for number, (want, got) in enumerate(zip(wants, walk(talk, 2, size), strict=True)):
            assert (got.answer.tokens, got.usage) == (want.answer.tokens, want.usage)
            # A row that is rounded otherwise may be packed as another one.
            np.testing.assert_allclose(got.scores, want.scores, atol=1e-5 if keys == "f16" else 2e-4)
            line = got.answer.trace.facts["cards"][0]
            assert line.startswith(f"drafter: read by {'the first of ' if number else ''}2 GPUs")
