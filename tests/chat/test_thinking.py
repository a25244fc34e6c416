"""What templates are told of thinking, and what is said where they cannot be."""

from __future__ import annotations

import os
from pathlib import Path

import pytest
from thinking_templates import BLOCKS, CHANNELS, OPENED, SWITCHED

from sp.chat import MARKS, Thinking, marks_of
from sp.errors import ConfigError, PromptError
from sp.gguf import ChatTemplate
from sp.prompt import Prompt

PLAIN = "{% for m in messages %}<{{ m.role }}>{{ m.content }}{% endfor %}"
ASK = ("A document.", "A question?")


def ending(source: str, thinking: Thinking) -> str:
    return Prompt.from_document(*ASK, source, thinking=thinking).text.partition("question?")[2]


def test_marks_are_known_by_the_template() -> None:
    found = [marks_of(source) for source in (CHANNELS, BLOCKS, SWITCHED, OPENED, PLAIN)]
    assert found == [MARKS[0], MARKS[1], MARKS[2], MARKS[2], None]


@pytest.mark.parametrize(
    ("mode", "end"),
    [("auto", ""), ("on", ""), ("off", "<think>\n\n</think>\n\n")],
)
def test_a_switch_is_set(mode: str, end: str) -> None:
    thinking = Thinking(mode)  # type: ignore[arg-type]
    assert ending(SWITCHED, thinking) == f"<|im_end|>\n<|im_start|>assistant\n{end}"
    assert thinking.note(ChatTemplate(SWITCHED)) is None


def test_thinking_that_a_template_always_begins_is_ended_to_be_off() -> None:
    assert ending(OPENED, Thinking()).endswith("<think>\n")
    assert ending(OPENED, Thinking("off")).endswith("<think>\n\n</think>\n\n")
    thinks = [Prompt.from_document(*ASK, OPENED, thinking=Thinking(mode)).thinks for mode in ("auto", "on", "off")]  # type: ignore[arg-type]
    assert [each and each.opened for each in thinks] == [True, True, False]
    assert Thinking("off").note(ChatTemplate(OPENED)) is None


def test_an_effort_is_told_and_none_of_it_is_off() -> None:
    low = Prompt.from_document(*ASK, CHANNELS, thinking=Thinking(effort="low")).text
    assert low.startswith("Reasoning: low\n")
    assert Thinking("off", "low").variables(ChatTemplate(CHANNELS)) == {"reasoning_effort": "low"}
    assert Thinking(effort="none").variables(ChatTemplate(SWITCHED)) == {"enable_thinking": False}
    assert Thinking(effort="none").note(ChatTemplate(SWITCHED)) is None


CHANNEL = """\
{%- for m in messages %}{{ '<|turn>' + m.role + '\\n' + m.content + '<turn|>\\n' }}{% endfor %}
{%- if add_generation_prompt %}
    {{- '<|turn>model\\n' }}{{ '<|channel>thought\\n<channel|>' if not enable_thinking | default(false) }}
{%- endif %}
"""
"""As Gemma 4: thinking in a channel, which is closed at once where there is to be none."""


def test_a_channel_of_thought_is_switched() -> None:
    marks = marks_of(CHANNEL)
    assert marks is MARKS[4]
    assert marks.tokens == ("<|channel>", "<channel|>")
    ends = {mode: ending(CHANNEL, Thinking(mode)) for mode in ("auto", "on", "off")}  # type: ignore[arg-type]
    closed = "<turn|>\n<|turn>model\n<|channel>thought\n<channel|>"
    assert ends == {"auto": closed, "on": "<turn|>\n<|turn>model\n", "off": closed}
    thinks = Prompt.from_document(*ASK, CHANNEL, thinking=Thinking("on")).thinks
    assert thinks is not None
    assert not thinks.opened


def test_an_effort_may_be_called_strength() -> None:
    source = "Strength: {{ reasoning_strength or 'high' }}{{ '<atem:function_calls>' if false }}"
    template = ChatTemplate(source)
    assert Thinking(effort="low").variables(template) == {"reasoning_strength": "low"}
    assert Thinking(effort="low").note(template) is None
    assert marks_of(template) is MARKS[3]


@pytest.mark.parametrize(
    ("source", "thinking", "said"),
    [
        (PLAIN, Thinking("on"), "knows no thinking"),
        (PLAIN, Thinking("off"), None),
        (PLAIN, Thinking(effort="high"), "reads no reasoning_effort, so high has no effect"),
        (SWITCHED, Thinking("off", "low"), "reads no reasoning_effort"),
        (CHANNELS, Thinking("off"), "has no switch for thinking"),
        (CHANNELS, Thinking("on", "high"), None),
        (OPENED, Thinking("on"), None),
    ],
)
def test_what_a_template_cannot_be_told_is_said(source: str, thinking: Thinking, said: str | None) -> None:
    note = thinking.note(ChatTemplate(source))
    assert note is None if said is None else said in str(note)


def test_no_template_takes_nothing() -> None:
    assert Thinking("on").note(None) == "without a chat template thinking cannot be switched"
    assert Thinking("off").note(None) is None


@pytest.mark.parametrize("effort", ["", "two words", "<|im_end|>", "x" * 33, "a\n"])
def test_an_effort_is_one_word(effort: str) -> None:
    with pytest.raises(ConfigError, match="one word"):
        Thinking(effort=effort)


def test_an_answer_that_begins_with_thinking_takes_no_prefix() -> None:
    for source, mode in ((OPENED, "auto"), (SWITCHED, "on")):
        with pytest.raises(PromptError, match="add --thinking off"):
            Prompt.from_document(*ASK, source, answer_prefix=" It", thinking=Thinking(mode))  # type: ignore[arg-type]
    closed = Prompt.from_document(*ASK, OPENED, answer_prefix=" It", thinking=Thinking("off"))
    assert closed.text.endswith("</think>\n\n It")


REAL = {  # (switch, effort, begins to think by itself, end of the prompt that is off)
    "Qwen-Qwen3-0.6B": ("enable_thinking", False, False, "<think>\n\n</think>\n\n"),
    "Qwen3.5-4B": ("enable_thinking", False, True, "<think>\n\n</think>\n\n"),
    "HuggingFaceTB-SmolLM3-3B": ("enable_thinking", False, False, "<think>\n\n</think>\n"),
    "GLM-4.7-Flash": ("enable_thinking", False, True, "</think>"),
    "deepseek-ai-DeepSeek-R1-Distill-Llama-8B": (None, False, True, "<think>\n\n</think>\n\n"),
    "Qwen-QwQ-32B": ("enable_thinking", False, False, "<think>\n</think>"),  # closed unless it is switched on
    "openai-gpt-oss-120b": (None, True, False, "<|start|>assistant"),
    "mistralai-Ministral-3-14B-Reasoning-2512": (None, False, False, "[/INST]"),
    "Qwen-Qwen2.5-7B-Instruct": (None, False, False, "<|im_start|>assistant\n"),
}


@pytest.mark.parametrize("name", REAL)
def test_templates_as_vendors_ship_them(name: str) -> None:
    path = Path(os.environ.get("SP_TEST_DATA", "/nonexistent")) / "templates" / f"{name}.jinja"
    if not path.exists():
        pytest.skip("SP_TEST_DATA names no folder with templates")
    template, (switch, effort, begins, end) = ChatTemplate(path.read_text(), "<s>", "</s>"), REAL[name]
    assert list(Thinking("on").variables(template)) == ([switch] if switch else [])
    assert bool(Thinking(effort="high").variables(template)) == effort
    prompt = Prompt.from_document(*ASK, template)
    assert bool(prompt.thinks and prompt.thinks.opened) == begins
    off = Prompt.from_document(*ASK, template, thinking=Thinking("off"))
    assert off.text.endswith(end)
    assert not (off.thinks and off.thinks.opened)
