"""Segments of a rendered chat: what messages say, in bytes, and the schemas of tools."""

from __future__ import annotations

import json
from typing import Any

import pytest

from sp.chat import Segment, Turn, render_located, segments_of
from sp.gguf import ChatTemplate
from sp.prompt import Prompt
from sp.prompt.spans import without

IN_SYSTEM = """\
{%- set first = messages[0] %}
{%- if tools or first.role == 'system' %}
    {{- '<|im_start|>system\\n' }}
    {%- if first.role == 'system' %}{{ first.content }}{% endif %}
    {%- if tools %}
        {{- '\\n\\n# Tools\\n<tools>' }}{% for t in tools %}{{ '\\n' + (t | tojson) }}{% endfor %}{{ '\\n</tools>' }}
    {%- endif %}
    {{- '<|im_end|>\\n' }}
{%- endif %}
{%- for m in messages %}
    {%- if m.role == 'tool' %}
        {{- '<|im_start|>user\\n<tool_response>\\n' + m.content + '\\n</tool_response><|im_end|>\\n' }}
    {%- elif m.role != 'system' %}{{ '<|im_start|>' + m.role + '\\n' + m.content + '<|im_end|>\\n' }}{% endif %}
{%- endfor %}
{{- '<|im_start|>assistant\\n' }}"""
BEFORE_USER = """\
{%- for m in messages %}
    {%- if m.role == 'user' %}
        {%- if tools and loop.last %}
            {{- '[AVAILABLE_TOOLS][' }}{% for t in tools %}{{ t | tojson }}{% endfor %}{{ '][/AVAILABLE_TOOLS]' }}
        {%- endif %}
        {{- '[INST]' + m.content + '[/INST]' }}
    {%- elif m.role == 'tool' %}{{ '[TOOL_RESULTS]' + (m.content | tojson) + '[/TOOL_RESULTS]' }}
    {%- else %}{{ m.content }}{% endif %}
{%- endfor %}"""
TOOLS = [{"type": "function", "function": {"name": "grep", "description": "Find “lines”", "parameters": {}}}]
TURNS = [
    Turn("system", "Be brief."),
    Turn("user", "Où?"),
    Turn("assistant", "I look."),
    Turn("tool", '{"line": "ü\n"}'),
    Turn("assistant", "There."),
    Turn("user", "Why?"),
]


def shown(source: str, turns: list[Turn], **told: Any) -> tuple[str, list[tuple[str, int, str]], tuple[Segment, ...]]:
    found = render_located(ChatTemplate(source, "<s>", "</s>"), turns, told, lambda text: "<|" in text)
    segments = segments_of(found, turns)
    raw = found.text.encode()
    return found.text, [(one.kind, one.index, raw[one.start : one.end].decode()) for one in segments], segments


def test_segments_are_what_was_said_and_all_between_is_markup() -> None:
    text, said, segments = shown(IN_SYSTEM, TURNS, tools=TOOLS)
    schema = json.dumps(TOOLS[0], ensure_ascii=False)
    assert [(kind, index) for kind, index, _ in said] == [
        ("system", 0), ("tools", -1), ("user", 1), ("assistant", 2), ("tool", 3), ("assistant", 4), ("user", 5),
    ]  # fmt: skip
    assert [each for kind, _, each in said if kind != "tools"] == [turn.content for turn in TURNS]
    assert schema in said[1][2]
    raw, at, markup = text.encode(), 0, []
    for segment in segments:
        assert segment.start >= at
        markup.append(raw[at : segment.start].decode())
        at = segment.end
    assert markup[4] == "<|im_end|>\n<|im_start|>user\n<tool_response>\n"
    assert not any(segment.quoted for segment in segments)


def test_schemas_in_front_of_a_question_and_a_quoted_result() -> None:
    text, said, segments = shown(BEFORE_USER, TURNS[1:], tools=TOOLS)
    (tools,) = [each for kind, _, each in said if kind == "tools"]
    assert tools == f"[AVAILABLE_TOOLS][{json.dumps(TOOLS[0], ensure_ascii=False)}][/AVAILABLE_TOOLS]"
    (result,) = [segment for segment in segments if segment.kind == "tool"]
    assert result.quoted
    assert json.loads('"' + text.encode()[result.start : result.end].decode() + '"') == TURNS[3].content


@pytest.mark.parametrize("told", [{}, {"tools": []}, {"tools": None}])
def test_without_tools_there_is_no_such_segment(told: dict[str, Any]) -> None:
    assert {kind for kind, _, _ in shown(IN_SYSTEM, TURNS, **told)[1]} == {"system", "user", "assistant", "tool"}


def test_a_template_that_shows_no_tools_has_none() -> None:
    plain = "{% for m in messages %}<{{ m.role }}>{{ m.content }}{% endfor %}"
    assert not any(kind == "tools" for kind, _, _ in shown(plain, TURNS, tools=TOOLS)[1])


def test_a_prompt_carries_its_segments_and_knows_what_is_free() -> None:
    template = ChatTemplate(IN_SYSTEM)
    found = render_located(template, TURNS, {"tools": TOOLS}, lambda text: "<|" in text)
    prompt = Prompt.from_chat(found, TURNS, template)
    raw = prompt.text.encode()
    assert [one.kind for one in prompt.segments] == [
        "system",
        "tools",
        "user",
        "assistant",
        "tool",
        "assistant",
        "user",
    ]
    free = [(one.kind, raw[one.start : one.end].decode()) for one in prompt.free]
    assert free == [(turn.role, turn.content) for turn in TURNS[1:5]]  # not the system, the schemas, the question
    document = Prompt.from_document("Été. Fin.", "Who?", template)
    raw = document.text.encode()
    assert [raw[one.start : one.end].decode() for one in document.segments] == ["Été. Fin.\n\nWho?"]
    assert [raw[one.start : one.end].decode() for one in document.free] == ["Été. Fin."]
    assert [(one.start, one.end) for one in Prompt("añb").free] == [(0, 4)]


def test_ranges_are_taken_out_of_segments() -> None:
    segments = [Segment("user", 0, 10, 0), Segment("tool", 10, 20, 1), Segment("user", 25, 30, 2)]
    taken = [(0, 0), (2, 4), (3, 5), (8, 12), (12, 13), (19, 26), (40, 50)]
    expected, covered = [], {byte for low, high in taken for byte in range(low, high)}
    for segment in segments:
        expected += [(segment.index, byte) for byte in range(segment.start, segment.end) if byte not in covered]
    parts = list(without(segments, taken))
    assert [(part.index, byte) for part in parts for byte in range(part.start, part.end)] == expected
    assert all(part.start < part.end for part in parts)
