"""Turns of a conversation against one prefill of the same text, and against scoring the whole prompt cold."""

from __future__ import annotations

from contextlib import contextmanager
from dataclasses import replace

import numpy as np
import pytest
from pairwise import pairwise
from talks import ARCHS, check, chosen, first_logits, nmse, options, pair, replayed, said, text

from sp.errors import ConfigError, PromptError
from sp.gguf import ChatTemplate
from sp.models import prefill
from sp.prompt import transfer_scores
from sp.prompt.prompt import prompt_of
from sp.scoring import SCORERS
from sp.session import Conversation, ConversationOptions, RunOptions
from sp.session.memory import message_starts

EXACT = 1e-10
"""Of logits in float32 whose keys are not rounded; 2e-12 is seen."""


def chat(turns: int, seed: int = 0, words: int = 60) -> list[dict[str, str]]:
    """A system message, then documents and questions; answers are to be put between."""
    rng = np.random.default_rng(seed)
    return [said("system", text(rng, 8)), *(said("user", text(rng, words)) for _ in range(turns))]


def walk(talk: Conversation, messages: list[dict[str, str]]):
    """Ask every user's message after the answers to those before."""
    history: list[dict[str, str]] = []
    for message in messages:
        history.append(message)
        if message["role"] != "user":
            continue
        result = talk.ask(history)
        yield list(history), result
        history.append(said("assistant", result.answer.text))


@pytest.mark.parametrize("target", ARCHS)
@pytest.mark.parametrize("drafter", ARCHS)
def test_whole_turns_have_the_logits_of_one_prefill(target: str, drafter: str) -> None:
    talk = Conversation(pair(target, drafter), options(1.0))
    model = talk.pipeline.target.model
    with first_logits() as seen:
        for number, (_, result) in enumerate(walk(talk, chat(4))):
            ids = result.prompt.ids
            want = prefill(model, ids, np.arange(len(ids)), model.new_cache(len(ids), "f32"))
            assert nmse(seen[-1], want) < EXACT
            check(talk, result)
            assert result.present.all()
            assert (result.usage.cached > 0) == (number > 0)
            assert result.usage.read <= result.usage.new + 20  # a recurrent target reads the last answer again


@pairwise(
    target=ARCHS,
    recall=["append", "rewind", "mixed", "auto", "off"],
    changes=[{}, {"positions": "contiguous"}, {"state_gaps": "decay"}],
)
def test_compressed_turns_have_the_logits_of_what_is_in_the_cache(target: str, recall: str, changes: dict) -> None:
    memory = ConversationOptions(recall="auto" if recall == "mixed" else recall, recall_tokens=64, recall_ratio=0.5)
    talk = Conversation(pair(target), options(0.5, scorer=SCORERS.build("random"), **changes), memory)
    rng, recalled = np.random.default_rng(1), 0
    history = [said("system", text(rng, 8))]
    with first_logits() as seen:
        for turn in range(4):
            if recall == "mixed":  # excerpts are there when history is read again
                talk.memory = replace(memory, recall="rewind" if turn == 3 else "append")
            before = talk.slots
            history += [said("user", text(rng, 80)), said("assistant", "ok"), said("user", text(rng, 10))]
            result = talk.ask(history)
            check(talk, result)
            assert nmse(seen[-1], replayed(talk, result)) < EXACT
            recalled += result.usage.recalled
            cached = result.usage.cached
            assert result.present[:cached][before.first(before.before(cached)).present(cached)].all(), "lost"
            assert all(each.way == recall for each in result.recalled if recall in ("append", "rewind"))
            assert result.usage.recalled <= 64
            for each in result.recalled:
                assert result.present[each.start : each.end].all()
                assert each.score >= each.threshold
            history.append(said("assistant", result.answer.text))
    assert (recalled > 0) == (recall != "off")
    assert recall != "append" or talk.slots.offset > recalled


@pytest.mark.parametrize("drafter", ARCHS)
@pytest.mark.parametrize("scorer", ["tail", "anchored", "snapkv", "sink_masked", "lexical", "bm25"])
def test_warm_is_cold(drafter: str, scorer: str) -> None:
    run = options(0.3, scorer=SCORERS.build(scorer))
    talk = Conversation(pair("qwen35", drafter), run, ConversationOptions(recall="off"))
    rng = np.random.default_rng(2)
    history = [said("system", text(rng, 8))]
    for _ in range(2):
        history += [said("user", text(rng, 120)), said("assistant", "ok"), said("user", text(rng, 10))]
        result = talk.ask(history)
        cold = talk.pipeline.score(result.prompt, RunOptions(keep_ratio=1.0, scorer=run.scorer))
        want = transfer_scores(cold.importance.scores, cold.drafted.bytes, result.prompt.bytes)
        np.testing.assert_allclose(result.scores, want, rtol=2e-3, atol=2e-5 * np.abs(want).max())
        start = result.usage.cached
        np.testing.assert_array_equal(result.present[start:], chosen(want, result.prompt, start, run))
        assert result.usage.kept == result.present[start:].sum() < result.usage.new
        history.append(said("assistant", result.answer.text))


def test_a_first_turn_keeps_what_a_run_keeps() -> None:
    rng = np.random.default_rng(3)
    history = [said("user", text(rng, 200)), said("assistant", "ok"), said("user", text(rng, 4))]
    talk = Conversation(pair(), options(0.3))
    result = talk.ask(history)
    run = talk.pipeline.run(result.prompt.prompt, talk.options, full=False)
    np.testing.assert_array_equal(result.present, run.selection.selected)
    assert result.answer.tokens == run.answer.tokens


@pytest.mark.parametrize("system", [8, 400])
def test_a_long_system_message_takes_nothing_from_what_a_turn_keeps(system: int) -> None:
    rng = np.random.default_rng(5)
    talk = Conversation(pair(), options(0.1))
    result = talk.ask([said("system", text(rng, system)), said("user", text(rng, 300)), said("user", text(rng, 4))])
    protected = result.prompt.mask("protected")
    assert result.present[protected].all()
    kept, free = int(result.present[~protected].sum()), int((~protected).sum())
    assert 0 < kept <= np.ceil(0.1 * free)
    assert kept > 0.1 * free - 32


@pytest.mark.parametrize("target", ARCHS)
def test_edits_go_back_to_where_texts_part(target: str) -> None:
    talk = Conversation(pair(target, "qwen35"), options(0.5))
    history = chat(1, seed=4)
    with first_logits() as seen:
        for turn in range(5):
            result = talk.ask(history)
            check(talk, result)
            assert nmse(seen[-1], replayed(talk, result)) < EXACT
            history += [said("assistant", result.answer.text), said("user", f"{turn} mora")]
        edited = [*history[:4], said("assistant", "tilo"), said("user", "kesta")]
        result = talk.ask(edited)
        check(talk, result)
        assert nmse(seen[-1], replayed(talk, result)) < EXACT
        assert 0 < result.usage.cached < result.usage.prompt - 1
        again = talk.ask(edited)
        assert again.usage.cached == message_starts(again.prompt)[-1]  # the question is read again
        assert again.usage.drafted == 0
        check(talk, again)
        assert nmse(seen[-1], replayed(talk, again)) < EXACT
        other = talk.ask([said("system", "ren"), *edited[1:]])
        assert nmse(seen[-1], replayed(talk, other)) < EXACT


@pytest.mark.parametrize("target", ARCHS)
def test_a_fork_leaves_the_other_as_it_is(target: str) -> None:
    talk = Conversation(pair(target, "qwen35"), options(0.5))
    *_, (history, last) = walk(talk, chat(3, seed=5))
    history.append(said("assistant", last.answer.text))
    before = talk.slots, talk.transcript.copy()
    parted = [*history[:-2], said("user", "dolo?")]
    with first_logits() as seen:
        fork = talk.fork(_prompt(talk, parted))
        result = fork.ask(parted)
        check(fork, result)
        assert nmse(seen[-1], replayed(fork, result)) < EXACT
        assert result.usage.cached > 0
        assert talk.slots is before[0]
        np.testing.assert_array_equal(talk.transcript, before[1])
        onward = talk.ask([*history, said("user", "selru?")])
        check(talk, onward)
        assert nmse(seen[-1], replayed(talk, onward)) < EXACT


def _prompt(talk: Conversation, history: list[dict[str, str]]):
    return prompt_of(history, talk.pipeline.target)


class GoneError(Exception):
    """The client."""


@pytest.mark.parametrize("target", ARCHS)
@pytest.mark.parametrize("where", ["scoring", "target prefill", 0, 2])
def test_a_client_that_leaves_spoils_nothing(target: str, where: str | int) -> None:
    talk = Conversation(pair(target, "qwen35"), options(0.5, max_new_tokens=6))
    *_, (history, last) = walk(talk, chat(2, seed=6))
    history += [said("assistant", last.answer.text), said("user", "lopen " * 50)]
    if where == "scoring":  # a question alone is read whole, and nothing is scored for it
        history.append(said("user", "lopen"))
    bytes_before = talk.nbytes
    calls = []

    @contextmanager
    def reporter(what, total):
        def told(amount):
            if what == where:
                raise GoneError

        yield told

    def on_token(token):
        calls.append(token)
        if len(calls) - 1 == where:
            raise GoneError

    with first_logits() as seen:
        for _ in range(2):
            calls.clear()
            with pytest.raises(GoneError):
                talk.ask(history, on_token=on_token, reporter=reporter)
        limit = talk.nbytes
        result = talk.ask(history)
        check(talk, result)
        assert nmse(seen[-1], replayed(talk, result)) < EXACT
        assert bytes_before <= limit <= talk.nbytes + talk.host_nbytes
        fresh = Conversation(talk.pipeline, talk.options)
        *_, (_, last) = walk(fresh, chat(2, seed=6))
        assert fresh.ask(history).answer.tokens == result.answer.tokens


def test_an_answer_may_be_cut_short_and_gone_on_from() -> None:
    talk = Conversation(pair("qwen35"), options(0.5, max_new_tokens=8))
    history = chat(1, seed=7)
    first = talk.ask(history, on_token=lambda token: True)
    assert len(first.answer.tokens) == 1
    with first_logits() as seen:
        history += [said("assistant", first.answer.text), said("user", "vixen")]
        result = talk.ask(history)
        check(talk, result)
        assert nmse(seen[-1], replayed(talk, result)) < EXACT


@pytest.mark.parametrize("target", ARCHS)
def test_caches_may_leave_between_turns(target: str) -> None:
    stay, leave = (Conversation(pair(target, "qwen35"), options(0.5)) for _ in range(2))
    for (_, one), (_, other) in zip(walk(stay, chat(3)), walk(leave, chat(3)), strict=True):
        assert one.answer.tokens == other.answer.tokens
        assert one.usage == other.usage
        assert leave.offload()
        assert leave.nbytes == 0 < leave.host_nbytes
        assert not leave.offload()
    leave.clear()
    assert leave.host_nbytes == 0


@pytest.mark.parametrize("target", ARCHS)
def test_bytes_do_not_grow(target: str) -> None:
    memory = ConversationOptions(recall="append", recall_tokens=30, recall_ratio=0.2, snapshots=3)
    talk = Conversation(pair(target, "qwen35"), options(0.4), memory)
    rng, start, sizes = np.random.default_rng(10), chat(1, seed=10, words=100), list[int]()
    for _ in range(10):  # the same length each time, parting from the one before in the middle
        talk.ask([*start, said("assistant", "ok"), said("user", " ".join(rng.choice(["mon", "ren", "dop"], 40)))])
        sizes.append(talk.nbytes + talk.host_nbytes)
    assert max(sizes[5:]) <= max(sizes[:5])


GREP = {"type": "function", "function": {"name": "grep"}}


def test_tools_are_shown_by_the_template_and_kept() -> None:
    base = pair()
    shown = ChatTemplate("{{ tools }}{% for m in messages %}[{{ m.content }}]{% endfor %}")
    talk = Conversation(replace(base, target=replace(base.target, template=shown)), options(0.5))
    result = talk.ask([said("user", "mora " * 60), said("tool", "tilo " * 20), said("user", "?")], [GREP])
    assert "grep" in result.prompt.prompt.text
    assert result.present[: result.prompt.prompt.text.encode().index(b"[") - 2].sum() > 0
    check(talk, result)


def test_excerpts_give_way_where_positions_run_out(monkeypatch: pytest.MonkeyPatch) -> None:
    memory = ConversationOptions(recall="append", recall_tokens=200, recall_ratio=1.0)
    talk = Conversation(pair(), options(0.5, scorer=SCORERS.build("random")), memory)
    model = talk.pipeline.target.model
    rng = np.random.default_rng(9)
    history = [said("system", "x")]
    for _ in range(3):
        history += [said("user", text(rng, 80)), said("assistant", "ok"), said("user", text(rng, 6))]
        result = talk.ask(history)
        history.append(said("assistant", result.answer.text))
    offset = talk.slots.offset
    assert offset > 0
    history.append(said("user", "end?"))
    size = len(_prompt(talk, history).tokenise(talk.pipeline.target.tokenizer))
    monkeypatch.setattr(model, "config", replace(model.config, context=size + 4 + offset // 2))
    with first_logits() as seen:
        before = talk.slots
        result = talk.ask(history)
        check(talk, result)
        assert nmse(seen[-1], replayed(talk, result)) < EXACT
        cached = result.usage.cached
        assert result.present[:cached][before.first(before.before(cached)).present(cached)].all()
    assert talk.slots.offset == 0
    monkeypatch.setattr(model, "config", replace(model.config, context=size + 3))
    with pytest.raises(PromptError, match="context of"):
        talk.ask(history)
    check(talk, result)


@pytest.mark.parametrize(
    ("changes", "said_of_it"),
    [
        ({"scorer": SCORERS.build("lookahead")}, "cannot reuse keys"),
        ({"scorer": SCORERS.build("target_attention")}, "runs on the target, which would read everything"),
        ({"mapping": "text_rejoin", "positions": "contiguous"}, "byte_span"),
    ],
    ids=str,
)
def test_what_no_conversation_can_do_is_refused(changes: dict, said_of_it: str) -> None:
    with pytest.raises(ConfigError, match=said_of_it):
        Conversation(pair(), options(**changes))


@pytest.mark.parametrize(
    "bad", [{"recall": "yes"}, {"recall_ratio": 0.0}, {"recall_tokens": 0}, {"keys": "f8"}, {"snapshots": 0}], ids=str
)
def test_bad_options_are_refused(bad: dict) -> None:
    with pytest.raises(ConfigError, match=next(iter(bad))):
        ConversationOptions(**bad)


def test_bad_messages_are_refused() -> None:
    talk = Conversation(pair(), options())
    for bad, match in (([], "empty"), ([{"content": "x"}], r"messages\[0\]"), ([said("user", 3)], "send a string")):
        with pytest.raises(PromptError, match=match):
            talk.ask(bad)
