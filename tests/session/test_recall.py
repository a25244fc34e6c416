"""What was left out and is asked for comes back, and the answer with it: retrievers, whose answer is known."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest
from talks import check, said

from sp.gguf import ChatTemplate
from sp.models.synthetic.retriever import write_retriever
from sp.scoring import SCORERS
from sp.session import Conversation, ConversationOptions, Pipeline, RunOptions, load
from sp.session.memory import message_starts

SAID = ChatTemplate("{% for m in messages %}{{ '\\n' if m.role == 'user' else '' }}{{ m.content }}{% endfor %}")
KEYS = {"QUARTZ": "8301947", "VELVET": "5520613"}


@pytest.fixture(scope="module", params=["qwen3", "qwen35"])
def pair(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Pipeline:
    folder = tmp_path_factory.mktemp("pair")
    target = write_retriever(folder / "t.gguf", f"retriever-{request.param}", "q8_0", seed=12)
    drafter = write_retriever(folder / "d.gguf", "retriever-qwen3", "q8_0", seed=11, code_dim=48)
    return Pipeline(replace(load(target, device="cpu"), template=SAID), load(drafter, device="cpu", extrapolate=True))


def document(seed: int) -> str:
    """Two needles among letters."""
    rng = np.random.default_rng(seed)
    words = ["".join(rng.choice(list("abcdefghijklmnop"), 4)) for _ in range(160)]
    for place, (key, value) in zip((40, 110), KEYS.items(), strict=True):
        words.insert(place, f"{key}{value}.")
    return " ".join(words)


def options() -> RunOptions:
    scorer = SCORERS.build("tail", {"queries": 3})
    return RunOptions(keep_ratio=0.25, compress="always", kv="f32", max_new_tokens=7, scorer=scorer)


def history(asked: str) -> list[dict[str, str]]:
    return [said("user", document(1)), said("assistant", "read"), said("user", f"now {asked}")]


@pytest.mark.parametrize("recall", ["append", "rewind", "auto"])
def test_an_old_result_that_was_left_out_is_recalled(pair: Pipeline, recall: str) -> None:
    first, second = KEYS
    with_recall = Conversation(pair, options(), ConversationOptions(recall=recall, recall_tokens=120, recall_ratio=0.3))
    without = Conversation(pair, options(), ConversationOptions(recall="off"))
    chats = []
    for talk in (with_recall, without):
        asked = history(first)
        result = talk.ask(asked)
        assert result.answer.text == KEYS[first]
        asked += [said("assistant", result.answer.text), said("user", f"now {second}")]
        chats.append((talk, asked, talk.ask(asked)))
    talk, asked, found = chats[0]
    check(talk, found)
    where = found.prompt.prompt.text.index(second + KEYS[second])
    needle = slice(*np.searchsorted(found.prompt.bytes[:, 0], [where, where + 13]))
    assert not chats[1][2].present[needle].all()
    assert chats[1][2].answer.text != KEYS[second]
    assert found.present[needle].all()
    assert found.answer.text == KEYS[second]
    assert any(KEYS[second] in each.text for each in found.recalled)
    assert 0 < found.usage.recalled <= 120
    asked += [said("assistant", found.answer.text), said("user", f"now {second}")]
    again = talk.ask(asked)
    assert again.answer.text == KEYS[second]
    check(talk, again)


def test_an_answer_need_not_be_read_again(pair: Pipeline) -> None:
    talk, asked = Conversation(pair, options()), history("QUARTZ")
    result = talk.ask(asked)
    asked += [said("assistant", result.answer.text), said("user", "now VELVET")]
    following = talk.ask(asked)
    answered = list(result.answer.tokens[:-1])  # the last token of an answer that the limit ends is not read
    n = result.usage.prompt
    assert following.usage.cached == n + len(answered)
    assert following.prompt.ids[n : n + len(answered)].tolist() == answered
    assert following.usage.drafted < following.usage.prompt - 100


def test_who_asks_again_is_answered_the_same(pair: Pipeline) -> None:
    """What comes back stands before the question then too, not behind it."""
    talk = Conversation(pair, options(), ConversationOptions(recall="append", recall_tokens=120, recall_ratio=0.3))
    asked = history("QUARTZ")
    asked += [said("assistant", talk.ask(asked).answer.text), said("user", "now VELVET")]
    first, again = talk.ask(asked), talk.ask(asked)
    assert first.answer.text == again.answer.text
    assert first.usage.recalled == again.usage.recalled > 0
    check(talk, again)
    excerpts = talk.slots.place[talk.slots.excerpts]
    assert excerpts.max() <= message_starts(again.prompt)[-1]


def test_what_was_told_before_a_message_comes_back_before_it(pair: Pipeline) -> None:
    """An excerpt between new text and question would be newer than it, where the last of two values counts."""
    first, second = KEYS
    talk, asked = Conversation(pair, options(), ConversationOptions(recall="append", recall_tokens=120)), history(first)
    asked += [
        said("assistant", talk.ask(asked).answer.text),
        said("user", document(2)[:200]),
        said("assistant", "read"),
    ]
    found = talk.ask([*asked, said("user", f"now {second}")])
    assert found.recalled
    excerpt = np.flatnonzero(talk.slots.excerpts)
    starts = message_starts(found.prompt)
    new = starts[starts >= found.usage.cached]
    assert len(new) >= 2
    assert set(talk.slots.place[excerpt].tolist()) == {int(new[0])}


def test_what_came_back_for_a_message_goes_with_it(pair: Pipeline) -> None:
    """Two messages that begin alike: the excerpt stood before the first of them, and was looked for on its account."""
    first, second = KEYS
    talk, asked = Conversation(pair, options(), ConversationOptions(recall="append", recall_tokens=120)), history(first)
    asked += [said("assistant", talk.ask(asked).answer.text)]
    base = len(message_starts(talk.ask([*asked, said("user", "x")]).prompt)) - 1
    one, other = (
        talk.ask([*asked, said("user", f"and also {text}"), said("assistant", "read"), said("user", f"now {second}")])
        for text in ("a b c d", "e f g h")
    )
    assert one.recalled
    assert other.recalled
    assert other.answer.text == KEYS[second]
    begin = int(message_starts(other.prompt)[base])
    assert other.usage.cached == begin
    assert set(talk.slots.place[talk.slots.excerpts].tolist()) <= {begin}
    assert other.usage.held <= one.usage.held + 2
    check(talk, other)
