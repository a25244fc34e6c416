"""Python that forgives: what a prompt may be given as, defaults, sizes as people write them."""

from __future__ import annotations

from typing import Any

import pytest

import sp
from sp.chat import Turn
from sp.errors import ConfigError, PromptError
from sp.prompt.prompt import prompt_of
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
        (["a"], r"messages\[0\] must have a role and a content, and is of type str"),
        ([{"role": "user"}, 3], r"messages\[1\] must have"),
        ([{"role": "user", "content": 3}], r"messages\[0\] must have a role and a content, both strings"),
        ([], "the conversation is empty"),
        ("", "the prompt is empty"),
    ],
)
def test_what_is_no_prompt_is_told_in_a_line(pair: Pipeline, given: Any, message: str) -> None:
    with pytest.raises(PromptError, match=message) as caught:
        pair.run(given)
    assert "\n" not in str(caught.value)


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
    with pytest.raises(ConfigError, match="vram is a budget of GPU memory, but the models run on the CPU"):
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
        *(pair, pair.with_draft(embedded("draft")), pair.target, pair.target.model, result, result.answer),
        *(result.answer.trace, result.importance, result.selection, result.prompt, result.prompt.prompt),
        *(pair.score(result.prompt, options), turn, talk, pair.with_draft(embedded("draft")).draft),
    ]
    for one in shown:
        text = repr(one)
        assert text.isprintable(), text  # of one line, and nothing that a terminal obeys
        assert text.startswith(f"{type(one).__name__}(")
        assert len(text) <= 240, text
        assert "array" not in text.replace("arrays,", "")
    assert f"{result.kept_tokens:,} of {len(result.prompt):,} tokens kept" in repr(result)
    assert repr(pair) == "Pipeline(target='target.gguf', drafter='drafter.gguf', device='cpu')"
