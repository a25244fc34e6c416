"""Where texts stand in requests of three APIs, and how others are put in their place."""

from __future__ import annotations

import copy

import pytest

from sp.front.bodies import api_of, text_places, with_texts

CALL = {"id": "c1", "type": "function", "function": {"name": "look", "arguments": "{}"}}
CHAT = {
    "messages": [
        {"role": "system", "content": "Be brief."},
        {"role": "user", "content": [{"type": "text", "text": "Document"}, {"type": "image_url", "image_url": {}}]},
        {"role": "assistant", "content": None, "tool_calls": [CALL]},
        {"role": "tool", "tool_call_id": "c1", "content": "Nobody."},
        {"role": "user", "content": [{"type": "text", "text": "Stays", "cache_control": {"type": "ephemeral"}}]},
    ]
}
RESPONSES = {
    "instructions": "Be brief.",
    "input": [
        {"role": "user", "content": [{"type": "input_text", "text": "Document"}]},
        {"type": "function_call", "call_id": "c1", "name": "look", "arguments": "{}"},
        {"type": "function_call_output", "call_id": "c1", "output": "Nobody."},
    ],
}
MESSAGES = {
    "system": [{"type": "text", "text": "Be brief."}],
    "messages": [
        {"role": "user", "content": "Document"},
        {"role": "assistant", "content": [{"type": "tool_use", "id": "t1", "name": "look", "input": {}}]},
        {
            "role": "user",
            "content": [
                {"type": "tool_result", "tool_use_id": "t1", "content": [{"type": "text", "text": "Nobody."}]},
                {"type": "document", "source": {"type": "text", "media_type": "text/plain", "data": "Book"}},
            ],
        },
    ],
}


@pytest.mark.parametrize(
    ("api", "body", "wanted"),
    [
        ("chat", CHAT, [("system", "Be brief.", True, False), ("user", "Document", False, False),
                        ("tool", "Nobody.", False, True), ("user", "Stays", True, True)]),
        ("responses", RESPONSES, [("user", "Document", False, False), ("tool", "Nobody.", False, True)]),
        ("responses", {"input": "Hello"}, [("user", "Hello", False, True)]),
        ("messages", MESSAGES, [("user", "Document", False, False), ("tool", "Nobody.", False, True),
                                ("user", "Book", False, True)]),
    ],
)  # fmt: skip
def test_texts(api, body, wanted) -> None:
    found = text_places(api, body)
    assert [(each.kind, each.text, each.fixed, each.newest) for each in found] == wanted
    for each in found:
        value = body
        for key in each.path:
            value = value[key]
        assert value == each.text


@pytest.mark.parametrize(("api", "body"), [("chat", CHAT), ("responses", RESPONSES), ("messages", MESSAGES)])
def test_other_texts_change_nothing_else(api, body) -> None:
    before = copy.deepcopy(body)
    found = text_places(api, body)
    made = with_texts(body, {each.path: each.text.upper() for each in found})
    assert body == before
    assert [each.text for each in text_places(api, made)] == [each.text.upper() for each in found]
    assert with_texts(made, {each.path: each.text for each in found}) == before


ODD = [
    {},
    {"messages": 3},
    {"messages": [3, None, {"role": 4, "content": {"a": 1}}]},
    {"input": [[], {"type": "message"}], "messages": [{"content": [None, {}]}]},
]


@pytest.mark.parametrize("body", ODD)
def test_what_has_another_shape_has_no_texts(body) -> None:
    for api in ("chat", "responses", "messages"):
        assert text_places(api, body) == []


def test_paths() -> None:
    assert [api_of(path) for path in ("/v1/chat/completions", "/v1/responses", "/openai/v1/messages/")] == [
        "chat", "responses", "messages"]  # fmt: skip
    assert [api_of(path) for path in ("/v1/messages/count_tokens", "/v1/models", "/")] == [None] * 3
