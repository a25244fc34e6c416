"""Conversations whose target two GPUs share: the turns of one GPU, in graphs; forks, files, failures."""

from __future__ import annotations

from contextlib import suppress
from functools import cache
from pathlib import Path

import pytest
from conversation_walks import (
    chats,
    error,
    failing_head,
    message,
    model,
    options,
    pair,
    parked_turns,
    restarted_turns,
    walk,
)
from test_shards import GROUPS, group_of

from sp.errors import PromptError
from sp.models.shards.shards import SharedModel
from sp.parallel.group import ParallelGroup
from sp.prompt.prompt import prompt_of
from sp.session import Conversation, ConversationOptions, Conversations, Pipeline, embedded, load, synthetic

pytestmark = pytest.mark.no_sanitizer
PAIRS = (("target", "drafter"), ("tiny-qwen35", "drafter"))
kinds = pytest.mark.parametrize("kind", GROUPS)
both = pytest.mark.parametrize("names", PAIRS, ids="-".join)


@cache
def group(kind: str) -> ParallelGroup:
    return group_of(kind)


@cache
def shared(kind: str, target: str, drafter: str) -> Pipeline:
    """The pair of `conversation_walks.pair`, its target on two GPUs, or two threads on one."""
    own = group(kind)
    if target == "target":
        loaded = load(embedded(target), device="cuda", group=own)
    else:
        loaded = synthetic(target, "q8_0", device="cuda", group=own)
    return Pipeline(loaded, model(drafter, "drafter", "cuda"))


@kinds
@pytest.mark.parametrize("keep", [0.3, 1.0])
def test_turns_are_those_of_one_card(kind: str, keep: float) -> None:
    names = PAIRS[0]  # weights that were trained: rounding changes no choice
    alone, together = (Conversation(each, options(keep)) for each in (pair(*names, "cuda"), shared(kind, *names)))
    for number, (want, got) in enumerate(zip(walk(alone, 6), walk(together, 6), strict=True)):
        assert got.answer.tokens == want.answer.tokens
        # Without graphs the last token of an answer is not fed back.
        assert got.usage == want.usage or (kind == "threads" and abs(got.usage.cached - want.usage.cached) <= 1)
        assert got.usage.cached > 0 or number == 0
        line = got.answer.trace.facts["cards"][-1]
        assert line.startswith("target: shared by 2 GPUs")
        assert kind == "threads" or "not in CUDA graphs" not in line
    assert together.nbytes > 0


@kinds
@both
def test_caches_may_leave_between_turns(kind: str, names: tuple[str, str]) -> None:
    parked_turns(shared(kind, *names))


@kinds
@both
def test_each_turn_may_be_another_process(kind: str, names: tuple[str, str], tmp_path: Path) -> None:
    restarted_turns(shared(kind, *names), tmp_path)


@kinds
@both
def test_both_branches_of_a_fork_go_on(kind: str, names: tuple[str, str]) -> None:
    pipeline = shared(kind, *names)
    talks, (*_, chat) = Conversations(pipeline, most=3), chats(2)
    edited = [*chat[:3], message("assistant", "No."), message("user", "What else?")]
    turns = (chat[:3], chat, edited, [*chat, message("assistant", "."), message("user", "And now?")])
    found = [talks.answer(prompt_of(turn, pipeline.target), options(0.4)) for turn in turns]
    assert [result.match for result in found] == ["miss", "hit", "fork", "hit"]
    talks.clear()
    assert talks.host_nbytes == 0


@kinds
@both
@pytest.mark.parametrize("calls", [1, 3])
def test_a_card_that_fails_costs_one_answer(kind: str, names: tuple[str, str], calls: int) -> None:
    pipeline, turns = shared(kind, *names), [list(chat) for chat in chats(3)]
    talk, undisturbed, other = (Conversation(pipeline, options(0.4)) for _ in range(3))
    wants = [undisturbed.ask(turn) for turn in turns[:2]]
    again, want = undisturbed.ask(turns[1]), wants[1]
    talk.ask(turns[0])
    for turn in turns[:2]:
        other.ask(turn)
    whole = pipeline.target.model
    assert isinstance(whole, SharedModel)
    # Steps that are replayed as a graph call no head, and do not fail.
    with failing_head(whole.shards.models[1], calls), suppress(PromptError):
        talk.ask(turns[1])
    got = talk.ask(turns[1])  # after a failure while decoding it is asked again
    # Only some tokens: other runs of a prompt go through other kernels, and rounding decides between random weights.
    assert got.answer.tokens[:2] in [result.answer.tokens[:2] for result in (want, again)]
    # A state can be continued from a snapshot alone; after a failure that is the last one that all GPUs have.
    assert 0 < got.usage.cached <= again.usage.cached
    assert other.ask(turns[2]).usage.cached > got.usage.cached  # its graphs had the old communicators


@kinds
@both
def test_an_answer_that_is_ended_early_is_followed_by_others(kind: str, names: tuple[str, str]) -> None:
    pipeline, turns = shared(kind, *names), [list(chat) for chat in chats(2)]
    undisturbed, talk = (Conversation(pipeline, options(0.4)) for _ in range(2))
    wants = [undisturbed.ask(turn).answer.tokens for turn in turns]
    seen: list[int] = []
    talk.ask(turns[0], on_token=lambda token: seen.append(token) or len(seen) == 2)
    assert seen == list(wants[0][:2])
    assert talk.ask(turns[1]).answer.tokens == wants[1]


@pytest.mark.parametrize("keys", ["f16", "q4_0"])
def test_cards_draft_a_new_conversation_together_and_the_first_goes_on(keys: str) -> None:
    group("cards")
    alone, together = (Pipeline.open(device="cuda", gpus=gpus) for gpus in (1, 2))
    talks = [Conversation(each, options(0.3), ConversationOptions(keys=keys)) for each in (alone, together)]
    for number, (want, got) in enumerate(zip(*(walk(talk, 3, 3000) for talk in talks), strict=True)):
        assert got.answer.trace.facts["cards"][0].startswith(f"drafter: read by {'the first of ' if number else ''}2")
        assert int((got.present ^ want.present).sum()) <= 0.2 * want.usage.kept  # chunks of one score change places
        assert error(got.scores, want.scores) < 1e-3
