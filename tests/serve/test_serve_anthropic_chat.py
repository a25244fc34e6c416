"""Requests of Anthropic's Messages API become chats: order, marks, thinking, and what is said of a wrong one."""

from __future__ import annotations

from typing import Any

import pytest
from test_serve_anthropic import CALLED, HELLO, TOOLS
from tool_templates import BARE, IN_CHANNEL, TAGGED

from sp.gguf import ChatTemplate
from sp.serve.anthropic.request import job_of, messages_request_of
from sp.serve.fields import RequestError
from sp.serve.messages import to_prompt
from sp.serve.options import Defaults
from sp.session import Pipeline


def test_what_a_system_says_between_turns_comes_before_the_question() -> None:
    """Claude Code tells its surroundings so, behind what was asked."""
    said = [("user", "Who?"), ("system", "Here."), ("system", "Now."), ("assistant", "I."), ("user", "And then?")]
    asked = messages_request_of({"messages": [{"role": role, "content": text} for role, text in said]})
    texts = [[part["text"] for part in each["content"]] for each in asked.body["messages"]]
    assert texts == [["Here.", "Now.", "Who?"], ["I."], ["And then?"]]
    assert asked.protected_ranges == ((0, 0, 5), (0, 7, 11))


def test_marked_blocks_lie_where_they_are_said_to(pair: Pipeline) -> None:
    marked = {"cache_control": {"type": "ephemeral"}}
    said = [
        {"role": "user", "content": [{"type": "text", "text": "é one "}, {"type": "text", "text": "two", **marked}]},
        {"role": "user", "content": "three"},
        {"role": "assistant", "content": [{"type": "text", "text": "four ", **marked}, {"type": "text", "text": "5"}]},
        {"role": "system", "content": "six"},
        {"role": "user", "content": "seven?"},
    ]
    target = pair.target
    job, asked = job_of({**HELLO, "messages": said}, Defaults(), target.template, target.tokenizer)
    prompt, _ = to_prompt(job, target.template, target.tokenizer)
    raw, ranges = prompt.text.encode(), [(s.start, s.end) for s in prompt.spans if s.kind == "protected"]
    free = bytearray(raw)
    for start, end in ranges:
        free[start:end] = b"#" * (end - start)
    for word in ("two", "four", "six", "seven?"):
        assert word.encode() not in free
    for word in ("é one", "three", "5"):
        assert word.encode() in free
    assert asked.places == (0, 2, 3)
    assert asked.usage_fields()["kept_blocks"] == 3


@pytest.mark.parametrize("source", [TAGGED, BARE, IN_CHANNEL])
def test_a_marked_result_stays_also_where_a_template_quotes_it(pair: Pipeline, source: str) -> None:
    call = {"type": "tool_use", "id": "t1", "name": "list_files", "input": {}}
    results = [{"type": "tool_result", "tool_use_id": "t1", "content": [
        {"type": "text", "text": ' a "quoted"\nname '},
        {"type": "text", "text": "é.py", "cache_control": {"type": "ephemeral"}}]}]  # fmt: skip
    said = [*HELLO["messages"], {"role": "assistant", "content": [call]}, {"role": "user", "content": results}]
    template, tokenizer = ChatTemplate(source), pair.target.tokenizer
    for marked in (True, False):
        body = {**HELLO, "tools": TOOLS, "messages": said, "sp": {"marked": marked}}
        job, _ = job_of(body, Defaults(), template, tokenizer)
        prompt, _ = to_prompt(job, template, tokenizer)
        assert ("tool" in [segment.kind for segment in prompt.free]) is not marked


def test_thinking_of_earlier_turns_goes_to_the_template() -> None:
    asked = messages_request_of({"messages": CALLED})
    assert asked.body["messages"][1]["reasoning_content"] == "I must look."
    alone = [*HELLO["messages"], {"role": "assistant", "content": [{"type": "redacted_thinking", "data": "x"}]}]
    asked = messages_request_of({"messages": [*alone, {"role": "user", "content": "Well?"}]})
    assert asked.body["messages"][1]["content"] == [{"type": "text", "text": ""}]


BAD: list[tuple[dict[str, Any], str]] = [
    ({"messages": [{"role": "user", "content": []}]}, "messages[0].content is empty"),
    ({"messages": [{"role": "tool", "content": "x"}]}, "messages[0].role is 'tool'"),
    ({"messages": [*HELLO["messages"], {"role": "assistant", "content": "I"}]}, "end with one of the user"),
    ({"messages": [{"role": "user", "content": [{"type": "image", "source": {}}]}]}, "read text only"),
    ({"messages": CALLED[:2] + HELLO["messages"]}, "messages[2] has no tool_result for 'toolu_1'"),
    ({"messages": [CALLED[2]]}, "matches no tool_use"),
    (
        {
            "messages": [
                {"role": "user", "content": "x"},
                {
                    "role": "assistant",
                    "content": [{"type": "tool_use", "id": f"t{n}", "name": "a", "input": {}} for n in range(129)],
                },
            ]
            + HELLO["messages"]
        },
        "messages[1] has more than 128",
    ),
    ({"stop_sequences": "x"}, "stop_sequences"),
    ({"stop_sequences": [""]}, "stop_sequences"),
    ({"max_tokens": 0}, "max_tokens is 0"),
    ({"temperature": 3}, "temperature is 3"),
    ({"tools": [{"name": "x"}]}, "tools[0].input_schema is missing"),
    ({"tools": [{"name": "a b", "input_schema": {}}]}, "tools[0].name is 'a b'"),
    ({"tool_choice": {"type": "any"}}, "there are no tools"),
    ({"tool_choice": "any"}, "tool_choice.type is 'any'"),
    ({"tools": TOOLS, "tool_choice": {"type": "tool", "name": "x"}}, "not among the tools"),
    ({"thinking": {"type": "maybe"}}, "thinking.type is 'maybe'"),
    ({"system": [{"type": "image"}]}, "system[0].type"),
    ({"output_config": {"format": {}}}, "output_config.format"),
    ({"sp": {"keep": 1}}, "option of sp"),
]


@pytest.mark.parametrize(("change", "said"), BAD)
def test_what_is_wrong_is_said_by_the_names_of_its_fields(pair: Pipeline, change: dict[str, Any], said: str) -> None:
    with pytest.raises(RequestError) as caught:
        job_of({**HELLO, **change}, Defaults(), pair.target.template, pair.target.tokenizer)
    assert said in str(caught.value)


def test_text_documents_and_search_results_are_text() -> None:
    block = {"type": "document", "title": "T", "source": {"type": "text", "media_type": "text/plain", "data": "D"}}
    found = {"type": "search_result", "title": "S", "source": "u", "content": [{"type": "text", "text": "C"}]}
    asked = messages_request_of({"messages": [{"role": "user", "content": [block, found]}]})
    assert [part["text"] for part in asked.body["messages"][0]["content"]] == ["T", "D", "S", "u", "C"]
