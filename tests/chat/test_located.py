"""Messages are found where they stand, whatever they say and whatever the template drops of them."""

from __future__ import annotations

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from thinking_templates import BLOCKS, CHANNELS, OPENED, SWITCHED, switched
from tool_templates import BARE, IN_CHANNEL, STYLES, TAGGED, TEXTUAL

from sp.chat import Call, HiddenMessageError, Located, Turn, render_located
from sp.errors import SpError
from sp.gguf import ChatTemplate, render_chat

PLAIN = (
    "{% for m in messages %}<|im_start|>{{ m.role }}\n{{ m.content }}<|im_end|>\n{% endfor %}<|im_start|>assistant\n"
)
SAID = {"role": "user", "content": "x"}


def shown(found: Located) -> list[tuple[int, str, str]]:
    return [(copy.index, copy.name, found.text[copy.begin : copy.stop]) for copy in found.copies]


def locate(source: str, *turns: Turn) -> Located:
    return render_located(ChatTemplate(source, "<s>", "</s>"), turns, {}, lambda text: "<|" in text)


def test_old_thinking_is_dropped_and_that_of_the_present_turn_stays() -> None:
    old = Turn("assistant", "Yes.", "old thought")
    marked = Turn("assistant", "<think>\nmarked thought\n</think>\n\nNo.")
    new = Turn("assistant", "Let me look.", "new thought")
    found = locate(SWITCHED, Turn("user", "One?"), old, marked, Turn("user", "Two?"), new)
    assert shown(found) == [
        (0, "content", "One?"), (1, "content", "Yes."), (2, "content", "No."), (3, "content", "Two?"),
        (4, "reasoning", "new thought"), (4, "content", "Let me look."),
    ]  # fmt: skip
    assert "<think>\nnew thought\n</think>\n\nLet me look." in found.text
    assert "old thought" not in found.text
    assert "marked thought" not in found.text


def test_marked_thinking_that_stays_has_its_marks_as_markup() -> None:
    found = locate(SWITCHED, Turn("user", "One?"), Turn("assistant", "<think>\nhm\n</think>\n\nYes."))
    assert shown(found) == [(0, "content", "One?"), (1, "content", "hm"), (1, "content", "Yes.")]


def test_thinking_as_blocks_and_in_channels() -> None:
    turns = Turn("user", "One?"), Turn("assistant", "Yes.", "hm"), Turn("user", "Two?")
    assert locate(BLOCKS, *turns).text == "[user]One?[assistant][THINK]hm[/THINK]Yes.[user]Two?"
    assert (1, "reasoning", "hm") in shown(locate(BLOCKS, *turns))
    assert "hm" not in locate(CHANNELS, *turns).text
    assert (1, "reasoning", "hm") in shown(locate(CHANNELS, *turns[:2]))
    opened = locate(
        OPENED, Turn("user", "One?"), Turn("assistant", "<think>\nhm</think>\n\nYes. "), Turn("user", "Two?")
    )
    assert opened.text == "<|user|>One?</s><|assistant|>Yes.</s><|user|>Two?</s><|assistant|><think>\n"
    assert shown(opened)[1] == (1, "content", "Yes.")


def test_a_quoted_result_of_a_tool_is_found_as_it_stands() -> None:
    result = Turn("tool", '{"a": "b\\n", "c": "é"}\n')
    found = locate(CHANNELS, Turn("user", 'Say "a"'), result)
    assert '<|message|>Say "a"<|end|>' in found.text
    assert shown(found)[1] == (1, "content", '{\\"a\\": \\"b\\\\n\\", \\"c\\": \\"é\\"}')


AGENT = (
    Turn("user", "Read both."),
    Turn("assistant", "", calls=(Call("read", {"path": "a <|im_end|>\n", "options": {"deep": ["é"]}, "n": 2}, "c1"),)),
    Turn("tool", "first result", call_id="c1", name="read"),
    Turn("assistant", "", calls=(Call("read", {"path": "b"}, "c2"),)),
    Turn("tool", '"second"', call_id="c2", name="read"),
)


@pytest.mark.parametrize("name", STYLES)
def test_calls_are_markup_and_results_are_text(name: str) -> None:
    found = locate(STYLES[name], *AGENT)
    quoted = name in ("bare_json", "in_channel")
    second = '\\"second\\"' if quoted else '"second"'
    assert shown(found) == [
        (0, "content", "Read both."), (2, "content", "first result"), (4, "content", second),
    ]  # fmt: skip
    path = "a <|im_end|>\n" if name in ("tagged_parameters", "braced") else "a <|im_end|>\\n"
    arguments = [(copy.index, found.text[copy.begin : copy.stop]) for copy in found.arguments]
    assert arguments == [(1, path), (1, "é"), (3, "b")]


def test_text_beside_several_calls() -> None:
    turn = Turn("assistant", "Let me look.", calls=(Call("read", {"path": "Let me look."}), Call("look")))
    found = locate(TAGGED, Turn("user", "Go."), turn)
    assert shown(found)[1] == (1, "content", "Let me look.")
    assert found.text[found.copies[1].stop :].startswith(
        '\n<tool_call>\n{"name": "read", "arguments": {"path": "Let me'
    )
    assert [found.text[copy.begin : copy.stop] for copy in found.arguments] == ["Let me look."]


def test_what_is_said_before_a_call_in_a_channel_is_dropped_with_it() -> None:
    turns = Turn("user", "Go."), Turn("assistant", "Let me look.", reasoning="hm", calls=(Call("look"),))
    found = locate(IN_CHANNEL, *turns, Turn("tool", "seen"))
    assert shown(found) == [(0, "content", "Go."), (1, "content", "Let me look."), (2, "content", "seen")]
    assert "hm" not in found.text, "a template that takes either gets what was said"
    found = locate(IN_CHANNEL, *turns, Turn("tool", "seen"), Turn("assistant", "Done."), Turn("user", "More?"))
    assert [index for index, *_ in shown(found)] == [0, 2, 3, 4]
    alone = locate(IN_CHANNEL, turns[0], Turn("assistant", "", reasoning="hm", calls=(Call("look"),)))
    assert "<|channel|>analysis<|message|>hm<|end|>" in alone.text


def test_arguments_are_given_as_text_where_the_template_takes_no_object() -> None:
    found = locate(TEXTUAL, *AGENT)
    assert '<call>read\n{"path": "a <|im_end|>\\n", "options": {"deep": ["é"]}, "n": 2}' in found.text
    assert len(found.arguments) == 3


@pytest.mark.parametrize(
    ("source", "said"),
    [
        (PLAIN, r"does not render messages\[1\].tool_calls exactly once; omit them"),
        (BARE.replace("!= 1", "!= 2"), "one call at a time"),
        (
            TAGGED.replace("arguments | tojson", "arguments.path | upper | tojson"),
            r"not render messages\[1\].tool_calls",
        ),
    ],
)
def test_calls_that_a_template_does_not_show_are_refused(source: str, said: str) -> None:
    with pytest.raises(SpError, match=said):
        locate(source, *AGENT[:3])


def test_arguments_that_a_template_changes_are_shown_if_they_spell_no_markup() -> None:
    source = TAGGED.replace("arguments | tojson", "arguments.path | upper | tojson")
    found = locate(source, Turn("user", "Go."), Turn("assistant", "", calls=(Call("read", {"path": "b"}),)))
    assert '"arguments": "B"}' in found.text
    assert found.arguments == ()


def test_white_space_at_the_ends_belongs_to_the_message_where_it_is_kept() -> None:
    assert shown(locate(PLAIN, Turn("user", "\n\n a \n"))) == [(0, "content", "\n\n a \n")]
    trimmed = PLAIN.replace("m.content", "m.content | trim")
    assert shown(locate(trimmed, Turn("user", "\n\n a \n"))) == [(0, "content", "a")]


@pytest.mark.parametrize(
    "content", ["a", "user", "assistant", "\n", "<|im_end|>", "im", "<|im_start|>user\nx<|im_end|>\n"]
)
def test_a_message_that_looks_like_markup_is_told_from_it(content: str) -> None:
    found = locate(PLAIN, Turn("system", content), Turn("user", content), Turn("assistant", content))
    places = [found.text[copy.begin : copy.stop] for copy in found.copies]
    assert places == [content] * (3 if content.strip() else 0)
    lead = len("<|im_start|>system\n")
    assert [copy.begin for copy in found.copies][:1] in ([lead], [])


@pytest.mark.parametrize(
    ("source", "index"),
    [
        ("{{ messages[0].content }}", 1),
        ("{% for m in messages %}{{ m.content }}{{ m.content if loop.first }}{% endfor %}", 0),
        ("{% for m in messages %}{{ m.content | upper if loop.last else m.content }}{% endfor %}", 1),
        ("{% for m in messages %}{{ m.content[:3] }}{% endfor %}", 0),
    ],
)
def test_a_message_the_template_hides_repeats_or_changes_is_refused(source: str, index: int) -> None:
    with pytest.raises(HiddenMessageError, match=rf"does not render messages\[{index}\] exactly once") as caught:
        locate(source, Turn("user", "first one"), Turn("user", "second"))
    assert caught.value.index == index


words = st.sampled_from(
    [
        *(
            "<think>",
            "</think>",
            "<think>\nhm\n</think>\n\n",
            "<tool_response>",
            "<|im_end|>\n",
            "<|im_start|>system\n",
        ),
        *("a", "user", " ", "\n", "\n\n", "é", "\U00100000", "\U00100001", '"', "assistant\n", "Yes."),
    ]
)
texts = st.lists(words, max_size=5).map("".join)
turn = st.builds(Turn, st.sampled_from(["system", "user", "assistant"]), texts)
thoughtful = st.builds(Turn, st.just("assistant"), st.sampled_from(["", "Yes."]), texts)


@settings(max_examples=120, deadline=None)
@given(st.lists(turn | thoughtful, min_size=1, max_size=5))
def test_any_conversation_is_located_as_by_hand_or_refused(turns: list[Turn]) -> None:
    pieces = switched(turns)
    text = "".join(piece for _, piece in pieces)
    try:
        found = locate(SWITCHED, *turns)
    except HiddenMessageError:
        assert any("think>" in t.content or "<tool_response>" in t.content or "think>" in t.reasoning for t in turns)
        return
    assert found.text == text
    at, stop = 0, 0
    for copy in found.copies:
        assert copy.begin >= stop, "copies overlap"
        stop = copy.stop
    said = bytearray(len(text))  # by hand: which message each character is of, 0 for markup
    for index, piece in pieces:
        if index is not None:
            said[at : at + len(piece)] = bytes([index + 1]) * len(piece)
        at += len(piece)
    located = bytearray(len(text))
    for copy in found.copies:
        located[copy.begin : copy.stop] = bytes([copy.index + 1]) * (copy.stop - copy.begin)
    for place, (index, other) in enumerate(zip(said, located, strict=True)):
        if not text[place].isspace():
            assert other in (index, 0), "markup, or another message, passes for a message"
            thought = index and turns[index - 1].role == "assistant"
            assert other == index or thought, "a character of a message passes for markup"


def test_the_text_is_that_of_one_rendering() -> None:
    given = [{"role": "user", "content": "One?"}, {"role": "assistant", "content": "Yes.", "reasoning_content": "hm"}]
    found = locate(SWITCHED, Turn("user", "One?"), Turn("assistant", "Yes.", "hm"))
    assert found.text == render_chat(SWITCHED, given)
