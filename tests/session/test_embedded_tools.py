"""The embedded pair's chat template: what it says without tools is what the files say, and it takes tools."""

from __future__ import annotations

import json

import pytest

import sp
from sp.chat import Call, Turn
from sp.chat.calls import call_style_of
from sp.gguf import ChatTemplate, GGUFFile, chat_template, render_chat
from sp.prompt.prompt import prompt_of
from sp.session import Pipeline, embedded, load

LOOK = {"type": "function", "function": {"name": "look", "description": "Reads.", "parameters": {"type": "object"}}}


@pytest.fixture(scope="module")
def pair() -> Pipeline:
    return sp.load(device="cpu")


@pytest.mark.parametrize("role", ["target", "drafter"])
@pytest.mark.parametrize("roles", ["u", "su", "sua", "usaus", "suauau"])
def test_without_tools_it_says_what_the_file_says(role: str, roles: str) -> None:
    of_file, loaded = chat_template(GGUFFile.open(embedded(role))), load(embedded(role), device="cpu")
    assert of_file is not None
    assert loaded.template is not None
    assert loaded.template.source != of_file
    names = {"s": "system", "u": "user", "a": "assistant"}
    messages = [{"role": names[one], "content": f" {one} says <{at}>\n"} for at, one in enumerate(roles)]
    for begun in (True, False):
        expected = render_chat(ChatTemplate(of_file), messages, add_generation_prompt=begun)
        assert render_chat(loaded.template, messages, add_generation_prompt=begun) == expected


def test_tools_calls_and_results_are_shown(pair: Pipeline) -> None:
    calls = tuple(Call("look", {"at": at}, at) for at in ("a.py", "b.py"))
    turns = [
        *(Turn("system", "Be brief."), Turn("user", "Which?"), Turn("assistant", "I look.", calls=calls)),
        *(Turn("tool", "x = 1", call_id="a.py"), Turn("tool", "y = 2", call_id="b.py"), Turn("user", "So?")),
    ]
    text = prompt_of(turns, pair.target, [LOOK]).text
    system, _, rest = text.partition("<|im_end|>\n")
    assert system.startswith("<|im_start|>system\nBe brief.\n\n")
    shown = system.partition("<tools>\n")[2].partition("\n</tools>")[0]
    assert json.loads(shown) == LOOK
    assert rest == (
        "<|im_start|>user\nWhich?<|im_end|>\n<|im_start|>assistant\nI look."
        '\n<tool_call>\n{"name": "look", "arguments": {"at": "a.py"}}\n</tool_call>'
        '\n<tool_call>\n{"name": "look", "arguments": {"at": "b.py"}}\n</tool_call><|im_end|>\n'
        "<|im_start|>user\n<tool_response>\nx = 1\n</tool_response>"
        "\n<tool_response>\ny = 2\n</tool_response><|im_end|>\n"
        "<|im_start|>user\nSo?<|im_end|>\n<|im_start|>assistant\n"
    )
    assert pair.target.template is not None
    style = call_style_of(pair.target.template)
    assert style is not None
    assert style.name == "tagged_json"
    result = pair.run(turns, sp.RunOptions(max_new_tokens=2), tools=[LOOK])
    assert result.answer.calls == ()
