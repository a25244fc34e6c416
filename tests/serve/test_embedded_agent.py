"""An agent's loop over the embedded pair as it is: tools, a call, its result, an answer."""

from __future__ import annotations

from typing import Any

import pytest
import serving as tool

pytest.importorskip("openai")

TOOLS: Any = [
    {
        "type": "function",
        "function": {
            "name": "look_up",
            "parameters": {"type": "object", "properties": {"key": {"type": "string"}}, "required": ["key"]},
        },
    }
]


def test_the_embedded_pair_takes_tools_and_results(server: tool.Running) -> None:
    key, value = tool.TASKS[0]
    chats, ask = tool.client(server).chat.completions, [{"role": "user", "content": tool.question(key)}]
    free = chats.create(model="x", messages=ask, tools=TOOLS, max_tokens=4)
    assert free.choices[0].finish_reason in ("length", "stop", "tool_calls")
    forced = chats.create(model="x", messages=ask, tools=TOOLS, tool_choice="required", max_tokens=32)
    said = forced.choices[0].message
    assert said.tool_calls or '"look_up"' in said.content  # a call was begun, however so small a model ends it
    call = {"id": "c1", "type": "function", "function": {"name": "look_up", "arguments": f'{{"key": "{key}"}}'}}
    turns = [
        *ask,
        {"role": "assistant", "content": None, "tool_calls": [call]},
        {"role": "tool", "tool_call_id": "c1", "content": tool.document(key, value)},
        {"role": "user", "content": tool.question(key)},
    ]
    answer = chats.create(model="x", messages=turns, tools=TOOLS, max_tokens=12)
    assert str(value) in answer.choices[0].message.content
