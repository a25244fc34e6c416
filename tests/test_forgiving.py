"""Python that forgives: what a prompt may be given as, defaults, sizes as people write them."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

import sp
from sp.chat import Turn
from sp.errors import ConfigError, PromptError
from sp.prompt.prompt import prompt_of
from sp.serve.fields import RequestError
from sp.serve.options import Defaults
from sp.serve.protocol import parse_request
from sp.session import Pipeline, embedded

TEXT = "The sky is blue. The grass is green.\n\nWhat is green?"


@pytest.fixture(scope="module")
def pair() -> Pipeline:
    return sp.load(device="cpu")


def test_a_text_is_its_prompt_and_options_have_defaults(pair: Pipeline) -> None:
    short = sp.RunOptions(max_new_tokens=2)
    one, other = pair.run(TEXT, short, full=False), pair.run(sp.Prompt.from_text(TEXT), short, full=False)
    assert one.answer.tokens == other.answer.tokens
    assert [TEXT[span.start : span.end] for span in one.prompt.prompt.spans if span.kind == "question"] == [
        "What is green?"
    ]
    plain = pair.run(TEXT)
    assert plain.answer.tokens[:2] == one.answer.tokens
    assert len(plain.answer.tokens) <= sp.RunOptions().max_new_tokens
    assert plain.full is None  # it answers once, and compares where that is asked for
    assert pair.run(TEXT, short, full=True).full is not None


@pytest.mark.parametrize("messages", [[{"role": "user", "content": TEXT}], (Turn("user", TEXT),)])
def test_messages_are_a_chat(pair: Pipeline, messages: Any) -> None:
    result = pair.run(messages, sp.RunOptions(max_new_tokens=2), full=False)
    assert result.prompt.prompt == prompt_of(messages, pair.target)
    assert pair.target.template is not None
    assert result.prompt.prompt.text != TEXT


@pytest.mark.parametrize(
    ("given", "message"),
    [
        (5, "not int"),
        (None, "not NoneType"),
        (b"text", "not bytes"),
        ({"role": "user", "content": "a"}, "not dict"),
        (["a"], r"messages\[0\] is a 'a'; send an object with role and content"),
        ([{"role": "user", "content": "a"}, 3], r"messages\[1\] is a 3; send"),
        ([{"role": "user"}], r"messages\[0\]\.content is missing; send a string"),
        ([{"role": "user", "content": 3}], r"messages\[0\]\.content is 3; send a string"),
        ([{"role": "usr", "content": "a"}], r"messages\[0\]\.role is 'usr'; use one of system, developer, user"),
        ([Turn("usr", "a")], r"messages\[0\]\.role is 'usr'; use one of"),
        ([{"role": "user", "text": "a"}], r"messages\[0\]\.text is unknown; send the turn's text as content"),
        ([{"role": "user", "content": [{"type": "image_url"}]}], r"messages\[0\]\.content\[0\] is not text"),
        ([{"role": "user", "content": "\ud800"}], r"messages\[0\]\.content has a lone surrogate at character 0"),
        ([], "the conversation is empty"),
        ("", "the prompt is empty"),
    ],
)
def test_what_is_no_prompt_is_told_in_a_line(pair: Pipeline, given: Any, message: str) -> None:
    with pytest.raises(PromptError, match=message) as caught:
        pair.run(given)
    assert "\n" not in str(caught.value)


def test_messages_are_refused_in_the_words_of_the_server(pair: Pipeline) -> None:
    wrong = [
        *("a", 3, {"role": "user"}, {"role": "usr", "content": "a"}, {"role": "user", "content": []}),
        *({"role": "user", "content": [{"type": "audio"}]}, {"role": "user", "content": "a", "tool_calls": [1]}),
        *({"role": "assistant", "content": None, "reasoning": 3}, {"role": "user", "content": "\ud800"}),
    ]
    for message in wrong:
        with pytest.raises(RequestError) as server:
            parse_request("chat", {"messages": [message]}, Defaults(sp.RunOptions(), strict_fields=True))
        with pytest.raises(PromptError) as python:
            pair.run([message])
        assert str(python.value) == str(server.value)


def test_the_last_part_of_a_message_is_the_question(pair: Pipeline) -> None:
    parts = [{"type": "text", "text": text} for text in ("The sky is blue.", "What is blue?")]
    prompt = prompt_of([{"role": "user", "content": parts}], pair.target)
    shown = [prompt.text[span.start : span.end] for span in prompt.spans if span.kind == "question"]
    assert shown == ["What is blue?"]
    assert "The sky is blue.\n\nWhat is blue?" in prompt.text


def test_a_budget_is_a_size_as_people_write_it(monkeypatch: pytest.MonkeyPatch) -> None:
    seen: list[int | None] = []
    monkeypatch.setattr(Pipeline, "open", lambda *_, vram, **__: seen.append(vram))
    for given in ("24g", "1.5GiB", 4096, None):
        sp.load(vram=given)
    assert seen == [24 << 30, 3 << 29, 4096, None]
    for wrong in ("24 apples", -1, 0, True, ""):
        with pytest.raises(ConfigError, match="vram takes a size with its unit, such as 24g"):
            sp.load(vram=wrong)


def test_a_budget_for_the_cpu_is_refused() -> None:
    with pytest.raises(ConfigError, match="vram limits GPU memory, but the models run on the CPU"):
        sp.load(device="cpu", vram="24g")


def test_short_forms(pair: Pipeline) -> None:
    options = sp.RunOptions(keep_ratio=0.5, compress="always", max_new_tokens=2)
    hostile = "\x1b[2J\n" * 9 + "The grass is green. " * 30
    result = pair.run(f"{hostile}\n\nWhat is green?", options, by_head=True)
    talk = sp.Conversation(pair, options)
    turn = talk.ask([{"role": "user", "content": "What is green?"}])
    assert result.selection is not None
    assert result.importance is not None
    shown = [
        *(pair, pair.with_speculator(embedded("draft")), pair.target, pair.target.model, result, result.answer),
        *(result.answer.trace, result.importance, result.selection, result.prompt, result.prompt.prompt),
        *(pair.score(result.prompt, options), turn, talk, pair.with_speculator(embedded("draft")).speculator),
    ]
    for one in shown:
        text = repr(one)
        assert text.isprintable(), text  # of one line, and nothing that a terminal obeys
        assert text.startswith(f"{type(one).__name__}(")
        assert len(text) <= 240, text
        assert "array" not in text.replace("arrays,", "")
    assert f"{result.kept_tokens:,} of {len(result.prompt):,} tokens kept" in repr(result)
    assert repr(pair) == "Pipeline(target='target.gguf', drafter='drafter.gguf', device='cpu')"


def test_the_public_names_are_listed_and_typed() -> None:
    shown = [name for name in dir(sp) if not name.startswith("__")]
    assert shown == sorted(set(sp.__all__) - {"__version__"})
    assert (Path(sp.__file__).parent / "py.typed").is_file()  # without it, type checkers take all of it for Any


@pytest.mark.parametrize(
    ("call", "hint"),
    [
        (lambda pair: sp.RunOptions(keep_ration=0.2), "RunOptions 'keep_ration'; did you mean 'keep_ratio'"),
        (lambda pair: sp.ConversationOptions(recal="off"), "ConversationOptions 'recal'; did you mean 'recall'"),
        (lambda pair: sp.load(vrma="24g"), "load 'vrma'; did you mean 'vram'"),
        (lambda pair: Pipeline.open(devise="cpu"), "open 'devise'; did you mean 'device'"),
        (lambda pair: sp.Conversation(pair, option=None), "Conversation 'option'; did you mean 'options'"),
        (lambda pair: pair.run(TEXT, option=None), "run 'option'; did you mean 'options'"),
        (
            lambda pair: pair.run(TEXT, max_new_tokens=3),
            r"field of sp\.RunOptions; pass options=sp\.RunOptions",
        ),
        (lambda pair: pair.stream(TEXT, progres=None), "stream 'progres'; did you mean 'progress'"),
        (lambda pair: sp.Conversation(pair).ask([], tool=[]), "ask 'tool'; did you mean 'tools'"),
    ],
)
def test_an_unknown_keyword_is_told_with_the_nearest(pair: Pipeline, call: Any, hint: str) -> None:
    for kind in (TypeError, ConfigError):
        with pytest.raises(kind, match=f"unknown keyword of {hint}" if "'; " in hint else hint) as caught:
            call(pair)
    assert "\n" not in str(caught.value)
    assert len(str(caught.value)) <= 300
