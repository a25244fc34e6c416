"""Replies are taken apart as they come, wherever the pieces are cut."""

from __future__ import annotations

from itertools import pairwise

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from sp.chat import MARKS, Call, Splitter, Thinks, split_reply
from sp.chat.call_splitter import Calling, CallSplitter
from sp.chat.calls import CALLS
from sp.chat.reasoning import joined

CHANNELS, BRACKETS, TAGS, ADDRESSED, THOUGHT = MARKS
ANALYSIS = "<|channel|>analysis<|message|>"
FINAL = "<|start|>assistant<|channel|>final<|message|>"
SELF, USER = " to=self<|message|>", "<|start|>assistant to=user<|message|>"
REPLIES = [
    (Thinks(TAGS), "<think>\nhm\n\nha \n</think>\n\nYes. </think>\n", "hm\n\nha", "Yes. </think>\n"),
    (Thinks(TAGS), "\n<think>hm</think>Yes", "hm", "Yes"),
    (Thinks(TAGS), "<think>\n\n</think>\n\nYes", "", "Yes"),
    (Thinks(TAGS), " Yes <think> not now", "", " Yes <think> not now"),
    (Thinks(TAGS), "<thin air", "", "<thin air"),
    (Thinks(TAGS), "", "", ""),
    (Thinks(TAGS, opened=True), "\nhm </thing> é</think>\n日", "hm </thing> é", "日"),
    (Thinks(TAGS, opened=True), "never ends </thin", "never ends </thin", ""),
    (Thinks(BRACKETS), "[THINK]hm[/THINK]Yes", "hm", "Yes"),
    (Thinks(THOUGHT), "<|channel>thought\nhm\n<channel|>Yes <channel|", "hm", "Yes <channel|"),
    (Thinks(THOUGHT), "<|channel>thought\n<channel|>Yes", "", "Yes"),
    (Thinks(THOUGHT), "<|channel>thought: no", "", "<|channel>thought: no"),
    (Thinks(CHANNELS), f"{ANALYSIS}hm\n<ha<|end|>{FINAL}Yes.\n no", "hm\n<ha", "Yes.\n no"),
    (Thinks(CHANNELS), f"{ANALYSIS}one <|end|><|start|>assistant{ANALYSIS}two<|end|>{FINAL}Yes", "onetwo", "Yes"),
    (Thinks(CHANNELS), "<|channel|>final<|message|>Yes", "", "Yes"),
    (Thinks(CHANNELS), f"{ANALYSIS}hm<|end|><|start|>assi", "hm", ""),
    (Thinks(CHANNELS), "plain <| text", "", "plain <| text"),
    (Thinks(ADDRESSED), f"{SELF}hm\n<ha<|eom|>{USER}Yes.\n no", "hm\n<ha", "Yes.\n no"),
    (Thinks(ADDRESSED), f"{SELF}one <|eom|><|start|>assistant{SELF}two<|eom|>{USER}Yes", "onetwo", "Yes"),
    (Thinks(ADDRESSED), " to=user<|message|>Yes<|eot|>", "", "Yes"),
    (Thinks(ADDRESSED), f"{SELF}hm<|eom|><|start|>assistant to=us", "hm", ""),
    (Thinks(ADDRESSED), " to you <| text", "", " to you <| text"),
    (None, " <think>hm</think>", "", " <think>hm</think>"),
]


@pytest.mark.parametrize(("thinks", "reply", "reasoning", "content"), REPLIES)
@settings(max_examples=60, deadline=None)
@given(cuts=st.sets(st.integers(0, 80), max_size=8))
def test_a_reply_in_any_pieces(thinks: Thinks | None, reply: str, reasoning: str, content: str, cuts: set[int]) -> None:
    edges = [0, *sorted(cut for cut in cuts if 0 < cut < len(reply)), len(reply)]
    splitter = Splitter(thinks)
    parts = [splitter.push(reply[a:b]) for a, b in pairwise(edges)]
    assert joined([*parts, splitter.finish()]) == (reasoning, content)


CALL = "to=functions.look<|channel|>commentary json<|message|>"
CALLING = [
    (f"{ANALYSIS}hm<|end|><|start|>assistant<|channel|>commentary to=functions.look <|constrain|>json<|message|>"
     '{"a": 1}<|call|>', "hm", CALL + '{"a": 1}<|call|>'),
    (f' {CALL}{{"a": "<|"}}', "", CALL + '{"a": "<|"}'),
    (f"<|channel|>analysis to=functions.look<|message|>{{}}<|end|>{FINAL}Yes.", "", CALL + "{}<|call|>Yes."),
    (f"<|channel|>commentary<|message|>I look.<|end|><|start|>assistant {CALL}{{}}<|call|>", "",
     f"I look.{CALL}{{}}<|call|>"),
    (f"{ANALYSIS}to=functions.look<|end|>{FINAL}No to=functions.look<|message|>", "to=functions.look",
     "No to=functions.look<|message|>"),
    ("<|channel|>commentary to=browser.open<|message|>{}<|call|>", "", "{}"),
    (" to", "", " to"),
    (" to=fu", "", " to=fu"),
]  # fmt: skip
"""Replies in channels with what is thought, and what a `CallSplitter` gets to read."""


@pytest.mark.parametrize(("reply", "reasoning", "content"), CALLING)
@settings(max_examples=60, deadline=None)
@given(cuts=st.sets(st.integers(0, 150), max_size=8))
def test_calls_in_channels_in_any_pieces(reply: str, reasoning: str, content: str, cuts: set[int]) -> None:
    edges = [0, *sorted(cut for cut in cuts if 0 < cut < len(reply)), len(reply)]
    splitter = Splitter(Thinks(CHANNELS), calls=True)
    parts = [splitter.push(reply[a:b]) for a, b in pairwise(edges)]
    assert joined([*parts, splitter.finish()]) == (reasoning, content)
    if "functions.look <|" in reply:
        assert split_reply(reply, Thinks(CHANNELS)) == (reasoning, '{"a": 1}'), "whoever wants no calls gets no marks"


def test_thinking_and_answer_come_as_soon_as_they_are_certain() -> None:
    splitter = Splitter(Thinks(TAGS))
    pushed = [splitter.push(text) for text in ("<think>", "\nI", " see", "\n", "<", "/think>", "\n\n", "Yes", ".")]
    reasoning, content = zip(*pushed, strict=True)
    assert reasoning == ("", "I", " see", "", "", "", "", "", "")
    assert content == ("", "", "", "", "", "", "", "Yes", ".")


@pytest.mark.parametrize("size", [1, 7, 400])
def test_a_call_to_whom_a_message_is_for(size: int) -> None:
    """With thinking before it, in any pieces."""
    style = next(style for style in CALLS if style.name == "invoked")
    reply = (
        f"{SELF}I look.<|eom|><|start|>assistant to=files.look<|message|><atem:function_calls>\n<atem:invoke "
        'name="files.look">\n<atem:parameter name="path">a.py</atem:parameter>\n</atem:invoke>\n'
        "</atem:function_calls><|eot|>"
    )
    splitter, calls = (
        Splitter(Thinks(ADDRESSED), calls=True),
        CallSplitter(Calling(style, [{"function": {"name": "files.look"}}])),
    )
    parts = [splitter.push(reply[at : at + size]) for at in range(0, len(reply), size)] + [splitter.finish()]
    said = [*(calls.push(part.content) for part in parts), calls.finish()]
    assert "".join(part.reasoning for part in parts) == "I look."
    assert "".join(each.text for each in said) == ""
    assert [call for each in said for call in each.calls] == [Call("files.look", {"path": "a.py"})]


def test_a_whole_reply_has_no_white_space_at_its_ends() -> None:
    assert split_reply(" Yes.\n", None) == ("", "Yes.")
    assert split_reply("<think> hm </think> Yes.\n", Thinks(TAGS)) == ("hm", "Yes.")
