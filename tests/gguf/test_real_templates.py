"""Templates as vendors ship them, from the folder SP_TEST_DATA: rendered as plain Jinja renders them, or refused."""

from __future__ import annotations

import os
from collections.abc import Callable
from itertools import product
from pathlib import Path
from typing import Any

import pytest
from plain_jinja import plain_render

from sp.gguf import render_chat
from sp.gguf.template import ChatTemplate

FOLDER = Path(os.environ.get("SP_TEST_DATA", "/nonexistent")) / "templates"
FILES = sorted(FOLDER.glob("*.jinja"))
if not FILES:
    pytest.skip("SP_TEST_DATA names no folder with templates", allow_module_level=True)

USER = {"role": "user", "content": 'Où est "l\'aiguille" ?\n'}
SYSTEM = {"role": "system", "content": "Be brief & <kind>."}
SAID = {"role": "assistant", "content": "Là."}
MARKED = {"role": "assistant", "content": "<think>\nhm\n</think>\n\nLà."}
THOUGHT = SAID | {"reasoning_content": "hm", "thinking": "hm"}
CALL = {"id": "abcdefghi", "type": "function", "function": {"name": "look", "arguments": {"a": 1, "b": "é<"}}}
CALLED = {"role": "assistant", "content": "", "tool_calls": [CALL]}
WRITTEN = CALLED | {"tool_calls": [CALL | {"function": {"name": "look", "arguments": '{"a": 1}'}}]}
RESULT = {"role": "tool", "content": '{"r": "three\\n"}', "tool_call_id": "abcdefghi", "name": "look"}
PROPERTIES = {
    "a": {"type": "integer", "description": "n"},
    "b": {"type": "string", "enum": ["x", "y"], "default": "x"},
    "c": {"type": "array", "items": {"type": "object", "properties": {"z": {"type": "string"}}}},
    "d": {"oneOf": [{"type": "string"}, {"type": "object"}]},
}
PARAMETERS = {"type": "object", "properties": PROPERTIES, "required": ["a"]}
TOOL = {"type": "function", "function": {"name": "look", "description": "Look.", "parameters": PARAMETERS}}
CHATS = {
    "user": [USER],
    "system": [SYSTEM, USER],
    "several turns": [SYSTEM, USER, SAID, USER],
    "marked thinking": [USER, MARKED, USER],
    "reasoning content": [USER, THOUGHT, USER],
    "tool call": [USER, CALLED, RESULT],
    "tool call in text": [USER, WRITTEN, RESULT],
    "tool call with reasons": [USER, CALLED | {"reasoning_content": "why"}, RESULT],
    "answer from a tool": [USER, CALLED, RESULT, SAID, USER],
    "parts": [USER | {"content": [{"type": "text", "text": "in parts"}]}],
    "unknown role": [{"role": "wizard", "content": "x"}],
    "two users": [USER, USER],
}
EXTRAS: list[dict[str, Any]] = [
    *({}, {"tools": [TOOL]}, {"enable_thinking": False}, {"enable_thinking": True}, {"reasoning_effort": "high"}),
]


def outcome(render: Callable[..., str], template: Any, given: dict[str, Any]) -> tuple[str | None, str]:
    """The text, or None and why there is none."""
    try:
        return render(template, **given), ""
    except Exception as error:  # the template refuses, or was not written for such messages
        return None, str(error)


@pytest.mark.parametrize("path", FILES, ids=lambda path: path.stem)
def test_as_plain_jinja_renders_it_or_refused(path: Path) -> None:
    source, rendered = path.read_text(), 0
    template, tokens = ChatTemplate(source, "<s>", "</s>"), {"bos_token": "<s>", "eos_token": "</s>"}
    for (name, chat), extra, prompt in product(CHATS.items(), EXTRAS, (True, False)):
        given = {"messages": chat, "add_generation_prompt": prompt, **extra}
        expected, why = outcome(plain_render, source, given | tokens)
        text, told = outcome(render_chat, template, given)
        assert text == expected, (name, extra, told)
        assert why.partition("\n")[0][:60] in told
        assert told.isprintable()
        rendered += text is not None
    assert rendered >= 20
