"""What the Responses and Messages APIs have besides plain texts: marks, media, documents, and state on the server."""

from __future__ import annotations

import copy
import json
import time
from typing import Any

import httpx
import pytest
from fronting import Behind, before
from test_front_history import story

from sp.front.bodies import frame_of, text_places
from sp.front.history import OPENING, History
from sp.front.json_text import with_member, with_strings, without_member
from sp.front.rules import Rules
from sp.front.shorten import Compressor
from sp.front.upstream import prompt_tokens

RULES = Rules(keep_ratio=0.1, threshold=256)
FACT = "Berta keeps the spare key below the sundial."
QUESTION = "Where does Berta keep the spare key?"
MARK = {"cache_control": {"type": "ephemeral"}}
TYPES = {"chat": "text", "responses": "input_text", "messages": "text"}


def conversation(api: str, parts: list[dict[str, Any]]) -> dict[str, Any]:
    """A document from which the fact is dropped, an answer, and a question of some parts."""
    document = f"{story(2, 60)}\n{story(3, 60, FACT)}\n\nWhich room has the violin?"
    said = {"role": "assistant", "content": [{"type": "output_text" if api == "responses" else "text", "text": "17"}]}
    first = {"role": "user", "content": [{"type": TYPES[api], "text": document}]}
    return {"input" if api == "responses" else "messages": [first, said, {"role": "user", "content": parts}]}


@pytest.mark.parametrize("api", ["chat", "responses", "messages"])
def test_restored_passages_are_a_block_of_their_own(words: Compressor, api) -> None:
    """So a question that is marked for a cache is sent as it came, and the same once the mark has moved on."""
    history, name = History(words), "input" if api == "responses" else "messages"
    question = {"type": TYPES[api], "text": QUESTION}
    marked = conversation(api, [{**question, **MARK}])
    came = copy.deepcopy(marked)
    history.shorten(api, {name: marked[name][:1]}, RULES)
    outcome = history.shorten(api, marked, RULES)
    assert marked == came
    restored, asked = outcome.body[name][2]["content"]
    assert asked == {**question, **MARK}
    assert restored["type"] == TYPES[api]
    assert restored["text"].startswith(OPENING)
    assert FACT in restored["text"]
    assert json.loads(with_strings(json.dumps(marked), outcome.texts, outcome.blocks)) == outcome.body
    again = history.shorten(api, conversation(api, [question]), RULES).body[name]
    assert again == [*outcome.body[name][:2], {"role": "user", "content": [restored, question]}]


def test_an_empty_mark_is_none(words: Compressor) -> None:
    part = {"type": "text", "text": "Hi", "cache_control": None}
    (place,) = text_places("messages", {"messages": [{"role": "user", "content": [part]}]})
    assert not place.fixed


def test_a_document_is_no_question(words: Compressor) -> None:
    source = {"type": "text", "media_type": "text/plain", "data": f"{story(2, 60)}\n\n{FACT}\n\n{story(3, 60)}"}
    content = [{"type": "text", "text": QUESTION}, {"type": "document", "source": source}]
    body = {"messages": [{"role": "user", "content": content}]}
    sent = History(words).shorten("messages", body, RULES).body["messages"][0]["content"]
    assert sent[0] == content[0]
    assert FACT in sent[1]["source"]["data"]
    assert len(sent[1]["source"]["data"]) < len(source["data"]) / 2


def test_a_document_whose_characters_are_cited_stays(words: Compressor) -> None:
    """Citations count its characters, so they would point to others of the client's document."""
    source = {"type": "text", "media_type": "text/plain", "data": story(2, 120)}
    document = {"type": "document", "source": source, "citations": {"enabled": True}}
    body = {"messages": [{"role": "user", "content": [document, {"type": "text", "text": QUESTION}]}]}
    assert History(words).shorten("messages", body, RULES).body == body


PARTS = f"{story(2, 60)}\n\n{FACT}", story(3, 60)
PICTURE = {"type": "image", "source": {"type": "url", "url": "https://x.example/y.png"}}
CONTENTS = [
    "\n".join(PARTS),
    [{"type": "text", "text": PARTS[0]}, PICTURE, {"type": "text", "text": PARTS[1]}],
]


def document_of(content: Any, **more: Any) -> dict[str, Any]:
    document = {"type": "document", "title": "T", "source": {"type": "content", "content": content}, **more}
    return {"messages": [{"role": "user", "content": [document, {"type": "text", "text": QUESTION}]}]}


def texts_of(body: dict[str, Any]) -> list[str]:
    return [place.text for place in text_places("messages", body) if place.document]


@pytest.mark.parametrize("content", CONTENTS)
def test_a_document_of_blocks_is_one_of_text(words: Compressor, content: Any) -> None:
    body = document_of(content)
    outcome = History(words).shorten("messages", body, RULES)
    came, sent = texts_of(body), texts_of(outcome.body)
    assert [len(text) > 1000 for text in came] == [True] * len(sent)
    assert FACT in sent[0]
    assert sum(map(len, sent)) < sum(map(len, came)) / 2
    assert json.loads(with_strings(json.dumps(body), outcome.texts)) == outcome.body
    plain = {"type": "document", "source": {"type": "text", "data": "".join(came)}}
    with_text = {"messages": [{"role": "user", "content": [plain, {"type": "text", "text": QUESTION}]}]}
    assert outcome.tokens == pytest.approx(History(words).shorten("messages", with_text, RULES).tokens, abs=4)
    frame = frame_of(body, text_places("messages", body))
    assert frame.pictures == (0 if isinstance(content, str) else 1)
    assert sum(map(len, frame.parts)) < 500


@pytest.mark.parametrize("content", CONTENTS)
@pytest.mark.parametrize("more", [{"citations": {"enabled": True}}, MARK])
def test_a_document_of_blocks_that_is_cited_or_marked_stays(words: Compressor, content: Any, more: Any) -> None:
    body = document_of(content, **more)
    outcome = History(words).shorten("messages", body, RULES)
    assert outcome.body == body
    assert outcome.tokens > 1000


@pytest.mark.parametrize("content", [None, 3, [3, None, {"type": "text"}, {"type": "text", "text": 3}]])
def test_a_document_of_another_shape_has_no_texts(content: Any) -> None:
    assert not texts_of(document_of(content))


OUTPUTS = [
    ({"type": "function_call_output", "output": "A"}, ["A"]),
    ({"type": "function_call_output", "output": [{"type": "input_text", "text": "A"}]}, ["A"]),
    ({"type": "custom_tool_call_output", "output": "A"}, ["A"]),
    ({"type": "apply_patch_call_output", "output": "A"}, ["A"]),
    ({"type": "shell_call_output", "output": [{"stdout": "A", "stderr": "B", "outcome": {}}, 3]}, ["A", "B"]),
    ({"type": "computer_call_output", "output": {"type": "computer_screenshot", "image_url": "A"}}, []),
    ({"type": "reasoning", "summary": [{"type": "summary_text", "text": "A"}], "encrypted_content": "B"}, []),
    ({"type": "compaction", "encrypted_content": "B"}, []),
    ({"type": ["unknown"], "output": "A"}, []),
    ({"type": None, "content": "A"}, []),
]


@pytest.mark.parametrize(("item", "texts"), OUTPUTS)
def test_items_of_responses(item, texts) -> None:
    places = text_places("responses", {"input": [item]})
    assert [place.text for place in places] == texts
    assert all(place.kind == "tool" for place in places)


def test_pictures_are_not_counted_as_text() -> None:
    data = "A" * 100_000
    picture = {"type": "input_image", "image_url": f"data:image/png;base64,{data}"}
    items = [
        {"type": "computer_call_output", "output": {"type": "computer_screenshot", "image_url": data}},
        {"type": "image_generation_call", "id": "ig_1", "result": data},
        {"role": "user", "content": [picture, {"type": "input_file", "file_data": data}]},
        {"type": "function_call_output", "output": [picture]},
    ]
    frame = frame_of({"input": items}, [])
    assert frame.pictures == 5
    assert sum(map(len, frame.parts)) < 1000


HIDDEN = [
    {"previous_response_id": "resp_1"},
    {"conversation": "conv_1"},
    {"prompt": {"id": "pmpt_1"}},
    {"tools": [{"type": "web_search"}]},
    {"tools": [{"type": "web_search_20250305", "name": "web_search"}]},
    {"input": [{"type": "item_reference", "id": "msg_1"}, {"role": "user", "content": "Hi"}]},
]


@pytest.mark.parametrize("fields", HIDDEN)
def test_nothing_is_learned_where_the_server_adds_text(words: Compressor, fields) -> None:
    history, rules = History(words), Rules(0.2, 0, max_prompt_tokens=100_000)
    body = {"input": f"{story(1, 120)}\n\nWhich room has the violin?", **fields}
    history.learn(history.shorten("responses", body, rules), 50_000)
    assert not history.counted
    tool = {"tools": [{"type": "function", "name": "look", "parameters": {}}]}
    history.learn(history.shorten("responses", {**body, **tool}, rules), 50_000)
    assert history.counted == ("tools" in fields)


@pytest.mark.parametrize("depth", [100, 200, 300, 430])
@pytest.mark.parametrize("kind", ["tool_result", "document"])
def test_deep_nesting_passes(behind: Behind, words: Compressor, depth: int, kind: str) -> None:
    nested: Any = "x"
    for _ in range(depth if kind == "tool_result" else depth // 2):
        source = {"source": {"type": "content", "content": nested}}
        nested = [{"type": kind, **({"content": nested} if kind == "tool_result" else source)}]
    body = {"messages": [{"role": "user", "content": nested}, {"role": "user", "content": f"{story(1, 99)}\n\nWho?"}]}
    with before(behind.url, words) as (url, _):
        assert httpx.post(f"{url}/v1/messages", json=body, trust_env=False).status_code == 200
    assert behind.body["messages"][0] == body["messages"][0]


def test_many_repeated_members_are_removed_in_linear_time() -> None:
    text = "{" + '"sp": {}, ' * 50_000 + '"n": 1, ' + '"sp": 2, ' * 3 + '"sp": 3}'
    start = time.perf_counter()
    assert json.loads(without_member(text, "sp")) == {"n": 1}
    assert time.perf_counter() - start < 2


def test_a_member_that_is_there_is_replaced() -> None:
    assert with_member('{"usage": {"sp": {"a": [1]}, "n": 2}}', ("usage",), "sp", 3) == '{"usage": {"sp": 3, "n": 2}}'


def test_the_usage_of_a_server_with_the_same_field_is_below_it(behind: Behind, words: Compressor) -> None:
    behind.reply = b'{"usage": {"prompt_tokens": 7, "sp": {"kept_tokens": 5}, "n": 1}}'
    ask = {"messages": [{"role": "user", "content": f"{story(1, 120)}\n\nWhich room has the violin?"}]}
    with before(behind.url, words) as (url, _):
        reply = httpx.post(f"{url}/v1/chat/completions", json=ask, trust_env=False)
    usage = reply.json()["usage"]
    assert reply.text.count('"sp"') == 1
    assert (usage["sp"]["shortened"], usage["sp"]["upstream"]) == (1, {"kept_tokens": 5})


def test_tokens_written_to_a_cache_are_of_the_prompt() -> None:
    assert prompt_tokens({"input_tokens": 5, "cache_creation_input_tokens": 4}) == (9, 0)
    assert prompt_tokens({"input_tokens": 5, "cache_read_input_tokens": None}) == (5, 0)


def test_an_absurd_count_is_none() -> None:
    assert prompt_tokens({"prompt_tokens": 10**400, "prompt_tokens_details": {"cached_tokens": -1}}) == (0, 0)
    assert prompt_tokens({"prompt_tokens": 1e999, "input_tokens": True}) == (0, 0)
