"""Transcripts of agents: the same by seed, questions that a second reader answers too, results that parse."""

from __future__ import annotations

import json
import random
import re
from collections import Counter
from functools import cache
from typing import Any

import pytest
from story_cases import count, shares, tokenizer, train

from sp.chat import spells_markup
from sp.errors import ConfigError
from sp.evals import TASKS
from sp.evals.matches import score_answer
from sp.evals.transcripts.plan import KINDS, TOOLBOX, draw_plan
from sp.evals.transcripts.threads import THREADS
from sp.evals.transcripts.turns import Transcript, Turns, write

CHATML = (
    "{% for m in messages %}{{ '<|im_start|>' + m.role + '\n' + m.content + '<|im_end|>\n' }}{% endfor %}"
    "{{ '<|im_start|>assistant\n' }}"
)
PHRASES = {"code": "code", "records": "json", "updates": "updates", "sessions": "multi_session", "facts": "fact"}
"""Training phrases of each thread."""


def built(**options: Any) -> Turns:
    task = TASKS.build("turns", options)
    assert isinstance(task, Turns)
    return task


def made(index: int = 0, tokens: int = 9000, **options: Any) -> Transcript:
    return built(**{"turns": 6, **options}).transcript(index, tokens, count)


known = cache(made)
"""The same, made once for all tests that look at it."""


def results(transcript: Transcript) -> list[str]:
    return [one["content"] for one in transcript.messages if one["role"] == "tool"]


def test_they_repeat_by_seed_and_differ_by_all_else() -> None:
    assert made() == made()
    others = [made(1), made(seed=1), made(tokens=9001), made(kind="two"), made(turns=5)]
    assert len({one.id for one in (made(), *others)}) == 6
    assert len({"".join(results(one)) for one in (made(), *others)}) == 6


def test_layouts_show_the_same() -> None:
    chat, plain = (built(turns=3, layout=layout).example(0, 4000, count) for layout in ("chat", "plain"))
    assert chat.id != plain.id
    assert (chat.answers, chat.needles, chat.turns[-1].content) == (plain.answers, plain.needles, plain.question)
    assert all(f"{turn.role}: {turn.content}" in plain.document for turn in chat.turns[:-1])
    assert repr(built(layout="plain")) == repr(built())


@pytest.mark.parametrize(("tokens", "turns"), [(4000, 4), (16384, 0), (9000, 6)])
def test_prompts_are_as_long_as_asked_for_and_grow(tokens: int, turns: int) -> None:
    transcript = built(turns=turns).transcript(0, tokens, count)
    sizes = []
    for asked in transcript.questions:
        prompt = transcript.example(asked, count).prompt(CHATML, tokenizer=tokenizer())
        sizes.append(len(prompt.tokenise(tokenizer())))
    assert 0.93 * tokens <= sizes[-1] <= tokens
    assert sizes == sorted(sizes)
    mean = tokens / len(sizes)
    assert all(0.4 * mean < after - before < 1.6 * mean for before, after in zip([0, *sizes], sizes, strict=False))


def test_messages_are_those_of_a_chat_api() -> None:
    transcript = known()
    roles = [one["role"] for one in transcript.messages]
    assert roles == ["system", *["user", "assistant", "tool", "assistant", "user", "assistant"] * 6]
    schemas = {one["function"]["name"]: one["function"]["parameters"] for one in transcript.tools}
    for before, message in zip(transcript.messages, transcript.messages[1:], strict=False):
        if message["role"] == "tool":
            [call] = before["tool_calls"]
            assert message["tool_call_id"] == call["id"]
            assert list(json.loads(call["function"]["arguments"])) == schemas[call["function"]["name"]]["required"]
    json.dumps([transcript.messages, transcript.tools])
    is_markup = spells_markup(tokenizer())
    assert not any(is_markup(one["content"]) for one in transcript.messages)


def test_every_json_result_parses() -> None:
    seen = 0
    for index in range(6):
        transcript = known(index)
        for before, message in zip(transcript.messages, transcript.messages[1:], strict=False):
            if message["role"] == "tool" and before["tool_calls"][0]["function"]["name"] == "http_get":
                listed = json.loads(message["content"])
                assert len(listed) > 2
                assert all(isinstance(one, dict) for one in listed)
                seen += 1
    assert seen > 3


def test_evidence_lies_where_the_kind_says_and_nowhere_else() -> None:
    for index in range(8):
        transcript = known(index)
        for asked in transcript.questions:
            for place, text in zip(asked.evidence, transcript.evidence(asked), strict=True):
                holders = [one["content"] for one in transcript.messages if text in one["content"]]
                assert [one.count(text) for one in holders] == [1]
                assert transcript.messages[place.message]["role"] == "tool"
                assert place.message < asked.message
                assert (place.message - 3) // 6 in asked.results
            if asked.kind == "newest":
                assert asked.results == (asked.turn,)
            if asked.kind == "old":
                assert max(asked.results) < asked.turn
            if asked.kind == "two":
                assert len(asked.results) == 2
            if asked.kind == "update":
                assert asked.stale
            assert asked.age == asked.turn - asked.results[0]
            assert asked.words_match == (asked.kind == "named")


def test_kinds_and_tools_are_mixed() -> None:
    asked, called = Counter[str](), Counter[str]()
    for seed in range(30):
        plan = draw_plan(random.Random(seed), 10)
        asked.update(slot.kind for slot in plan.slots)
        called.update(plan.tools)
    assert set(asked) == set(KINDS)
    assert set(called) == set(TOOLBOX)
    assert max(asked.values()) <= 1.3 * min(asked.values())
    assert min(called.values()) >= 30


@pytest.mark.parametrize("kind", KINDS)
def test_the_last_question_is_of_the_kind_asked_for(kind: str) -> None:
    for index in range(3):
        assert made(index, 4000, turns=4, kind=kind).questions[-1].kind == kind


def test_checks_accept_the_truth_and_reject_what_is_wrong() -> None:
    for index in range(4):
        transcript = known(index)
        said = [asked.answers[0] for asked in transcript.questions]
        assert len(set(said)) == len(said)
        for asked in transcript.questions:
            example = transcript.example(asked, count)
            truth = transcript.messages[asked.message + 1]["content"]
            assert score_answer(truth, example.answers, example.match) == 1
            wrong = [*asked.stale, "unknown", "", *(f"{one}." for one in said if one != asked.answers[0])]
            assert not any(score_answer(one, example.answers, example.match) for one in wrong if truth[:-1] not in one)
            assert asked.answers[0] not in asked.question
            assert any(asked.answers[0] in text for text in transcript.evidence(asked))


def definitions(text: str) -> dict[str, str]:
    """By name what stands behind ``return`` in a function, or the number of a constant."""
    found: dict[str, str] = {}
    name = ""
    for line in text.splitlines():
        begins = re.match(r"(?:def|func|fn|fun|method|define|public static int) (\w+)", line)
        constant = re.match(r"\S.*?\b([A-Z]\w+|k[A-Z]\w+|[a-z]+_[a-z]+)\b.*?\b(\d+)\b|(\w+) (?::=|<-) (\d+)", line)
        if begins:
            name = begins[1]
        elif name and (gives := re.match(r"\s+return (.*?);?$", line)):
            assert name not in found or text.count(name) > 1
            found[name] = re.sub(r"^self\.|\(.*", "", gives[1])
            name = ""
        elif constant and not line.startswith(" "):
            found[constant[1] or constant[3]] = constant[2] or constant[4]
    return found


def reads_code(transcript: Transcript, question: str) -> str:
    """What a reader that knows definitions finds."""
    text = "\n".join(one for one in results(transcript) if "return" in one)
    known = definitions(text)
    [name] = [word for word in re.findall(r"\w+", question) if word in known]
    return known[known[name]]


def test_a_second_reader_follows_code_over_two_results() -> None:
    seen = 0
    for index in range(12):
        transcript = known(index)
        for asked in transcript.questions:
            if asked.thread == "code":
                assert reads_code(transcript, asked.question) == asked.answers[0]
                seen += 1
    assert seen >= 5


def test_a_second_reader_finds_the_last_value() -> None:
    """The number in the last statement, up to the question, that names the thing of the evidence."""
    seen = later = 0
    for index in range(12):
        transcript = known(index)
        for asked in transcript.questions:
            if asked.thread != "updates":
                continue
            [said] = transcript.evidence(asked)
            [thing] = [word for word in re.findall(r"[a-zA-Z]+", said) if is_thing(word)]
            until = "\n".join(one["content"] for one in transcript.until(asked) if one["role"] == "tool")
            everything = "\n".join(results(transcript))
            lines = [one for one in until.splitlines() if re.search(rf"\b{thing}\b", one, re.IGNORECASE)]
            values = [re.findall(r"\d+", one)[0] for one in lines]
            assert len(values) >= 2
            assert values[-1] == asked.answers[0]
            assert tuple(values[:-1]) == asked.stale
            later += len(re.findall(rf"(?i)\b{thing}\b", everything)) > len(values)
            seen += 1
    assert seen >= 8
    assert later, "now and then the thing is told of once more after the question"


def is_thing(word: str) -> bool:
    from sp.evals.text.world import RELATIONS

    return any(word.lower() == thing.split()[0].lower() for relation in RELATIONS for thing in relation.things)


def test_whoever_trains_hands_in_other_phrases() -> None:
    threads = {name: type(THREADS.build(name))(train(PHRASES[name])) for name in THREADS}  # type: ignore[call-arg]
    plan = draw_plan(random.Random(5), 6)
    drawn = [write(random.Random(seed), plan, threads, "other", 9000, count) for seed in range(6)]
    found = [one for one in drawn if one]
    assert len(found) >= 3
    ours = {asked.question for index in range(6) for asked in made(index).questions}
    for one in found:
        assert len(one.questions) == 6
        assert not ours & {asked.question for asked in one.questions}
        for before, message in zip(one.messages, one.messages[1:], strict=False):
            if message["role"] == "tool" and before["tool_calls"][0]["function"]["name"] == "http_get":
                json.loads(message["content"])


@pytest.mark.parametrize("kind", [kind for kind in KINDS if kind != "named"])
def test_words_do_not_lead_there(kind: str) -> None:
    lexical, bm25, oracle = shares("turns", ("lexical", "bm25", "oracle"), 8192, 10, kind=kind, layout="plain", turns=4)
    assert max(lexical, bm25) <= 1 / 10, (lexical, bm25)
    assert oracle >= 0.9, oracle


def test_words_lead_to_what_is_named() -> None:
    assert shares("turns", ("lexical",), 4096, 8, kind="named", layout="plain", turns=2)[0] >= 0.9


@pytest.mark.parametrize(
    ("options", "tokens", "message"),
    [
        ({"turns": 21}, 4000, "turns must be from 1 to 20"),
        ({"turns": -1}, 4000, "turns must be from 1 to 20"),
        ({"kind": "older"}, 4000, "unknown kind of question 'older'; did you mean 'old'"),
        ({"layout": "chatt"}, 4000, "layout is 'chatt'; did you mean 'chat'"),
        ({"turns": 8}, 4000, "use more tokens, or fewer turns"),
        ({"turns": 2}, 40000, "use more turns"),
        ({"turns": 1, "kind": "two"}, 4000, "a question about two results, .* needs more than 1 turn"),
        ({}, 100, "use more tokens"),
    ],
)
def test_what_cannot_be_is_told(options: dict[str, Any], tokens: int, message: str) -> None:
    with pytest.raises(ConfigError, match=message):
        built(**options).transcript(0, tokens, count)
