"""Calls in answers: read as they were written, in whatever pieces they come, and never lost."""

from __future__ import annotations

import json
import os
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from tool_templates import BARE, LIST, READ, STYLES, TAGGED, TEXTUAL, TOOLS, written

from sp.chat import Call, Turn, render_located
from sp.chat.call_splitter import MOST_TRIES, AnswerPart, Calling, CallSplitter, ThoughtCalls
from sp.chat.calls import CALLS, MOST_DEPTH, call_style_of, read_json, read_object
from sp.errors import SpError
from sp.gguf import ChatTemplate

STYLE = {style.name: style for style in CALLS}
PATH = Call("read_file", {"path": "a.py"})


def taken(name: str, *pieces: str, **given: Any) -> tuple[str, tuple[Call, ...]]:
    """What the pieces of an answer come to."""
    splitter = CallSplitter(Calling(STYLE[name], TOOLS, **given))
    found = [*map(splitter.push, pieces), splitter.finish()]
    return "".join(each.text for each in found), tuple(call for each in found for call in each.calls)


def test_styles_are_known_by_their_templates() -> None:
    assert {name: call_style_of(source).name for name, source in STYLES.items()} == {name: name for name in STYLES}  # type: ignore
    assert call_style_of(TEXTUAL) is None
    assert call_style_of("<tool_call>{name}<arg_key>{key}</arg_key></tool_call>") is None


@pytest.mark.parametrize(
    ("name", "answer", "text", "calls"),
    [
        ("tagged_json", 'I look.\n<tool_call>\n{"name": "read_file", "arguments": {"path": "a.py"}}\n</tool_call>',
         "I look.", (PATH,)),
        ("tagged_json", '<tool_call>{"name": "list_files"}</tool_call>\n<tool_call>\n{"name": "read_file", '
         '"arguments": "{\\"path\\": \\"a.py\\"}"}\n</tool_call>\n', "", (Call("list_files"), PATH)),
        ("tagged_json", '<tool_call>\n{"name": "read_file", "arguments": {"path": "</tool_call>"}}\n</tool_call> Done.',
         "Done.", (Call("read_file", {"path": "</tool_call>"}),)),
        ("tagged_json", '<tool_call>\n{"name": "read_file", "arguments": {"path": "a.py"}}', "", (PATH,)),
        ("tagged_json", 'So \n<tool_call>\n{"name": "read', 'So \n<tool_call>\n{"name": "read', ()),
        ("tagged_json", "a <tool_call>no</tool_call> b  ", "a <tool_call>no</tool_call> b  ", ()),
        ("tagged_json", '<tool_call>{"name": "f", "arguments": [1]}</tool_call>',
         '<tool_call>{"name": "f", "arguments": [1]}</tool_call>', ()),
        ("tagged_json", 'a < b\n\n\nand <tool', "a < b\n\n\nand <tool", ()),
        ("tagged_parameters", "<tool_call>\n<function=read_file>\n<parameter=path>\na.py\n</parameter>\n</function>\n"
         "</tool_call>", "", (PATH,)),
        ("tagged_parameters", "Why not.\n\n<tool_call>\n<function=read_file>\n<parameter=path>\n\nx </parameter> y\n\n"
         "</parameter>\n<parameter=lines>\n[1, 2]\n</parameter>\n<parameter=most>\n7\n</parameter>\n<parameter=all>\n"
         "True\n</parameter>\n<parameter=filter>\nnull\n</parameter>\n<parameter=other>\n3\n</parameter>\n</function>\n"
         "</tool_call>", "Why not.", (Call("read_file", {"path": "\nx </parameter> y\n", "lines": [1, 2], "most": 7,
                                                         "all": True, "filter": None, "other": "3"}),)),
        ("tagged_parameters", "<tool_call>\n<function=list_files>\n</function>\n</tool_call>", "",
         (Call("list_files"),)),
        ("tagged_parameters", "<tool_call>\n<function=read_file>\n<parameter=most>\nmany\n</parameter></function>",
         "", (Call("read_file", {"most": "many"}),)),
        ("tagged_parameters", "<tool_call>\n<function=f>\n<parameter=path>\na",
         "<tool_call>\n<function=f>\n<parameter=path>\na", ()),
        ("tagged_json", '<tool_call>\n{"name": "list_files"}\n{"name": "read_file", "arguments": {"path": "a.py"}}\n'
         '</tool_call>', "", (Call("list_files"), PATH)),
        ("tagged_json", '<tool_call>[{"name": "list_files"}, {"name": "read_file", "arguments": {"path": "a.py"}}]'
         '</tool_call>', "", (Call("list_files"), PATH)),
        ("tagged_json", '\n{"name": "read_file", "arguments": {"path": "a.py"}}\n</tool_call>', "", (PATH,)),
        ("tagged_json", '{"name":"read_file","arguments":{"path":"a.py"}}', "", (PATH,)),
        ("tagged_json", '{"name": "list_files"}</tool_call>\n{"name": "read_file", "arguments": {"path": "a.py"}}', "",
         (Call("list_files"), PATH)),
        ("tagged_json", 'So: {"name": "list_files"}</tool_call>', 'So: {"name": "list_files"}</tool_call>', ()),
        ("tagged_json", '{"name": "list_files", "size": 3} is', '{"name": "list_files", "size": 3} is', ()),
        ("tagged_json", 'a <tool_call>{"name": "no"}</tool_call> b', 'a <tool_call>{"name": "no"}</tool_call> b', ()),
        ("tagged_json", '<tool_call>{"name": "nobody"}</tool_call>\n<tool_call>{"name": "list_files"}</tool_call>',
         '<tool_call>{"name": "nobody"}</tool_call>', (Call("list_files"),)),
        ("tagged_parameters", "I look.\n\n<function=read_file>\n<parameter=path>\na.py\n</parameter>\n</function>\n"
         "</tool_call>", "I look.", (PATH,)),
        ("tagged_parameters", "<function=list_files></function>\n<function=read_file><parameter=path>a.py</parameter>\n"
         "</function> Done.", "Done.", (Call("list_files"), PATH)),
        ("tagged_parameters", "<function=list_files></function></tool_call>\n<tool_call><function=list_files>"
         "</function></tool_call>", "", (Call("list_files"), Call("list_files"))),
        ("tagged_parameters", "<tool_call>\n<function=list_files>\n</function>\n<function=read_file>\n"
         "<parameter=path>\na.py\n</parameter>\n</function>\n</tool_call>", "", (Call("list_files"), PATH)),
        ("tagged_parameters", "Write <function=nobody></function>", "Write <function=nobody></function>", ()),
        ("tagged_parameters", "Write <function=list_files> so", "Write <function=list_files> so", ()),
        ("named_json", '[TOOL_CALLS][{"name": "list_files", "arguments": {}}]', "", (Call("list_files"),)),
        ("named_json", '[TOOL_CALLS]nobody[ARGS]{}[TOOL_CALLS]list_files[ARGS]{}', "[TOOL_CALLS]nobody[ARGS]{}",
         (Call("list_files"),)),
        ("in_channel", "to=functions.nobody<|message|>{}<|call|>", "to=functions.nobody<|message|>{}<|call|>", ()),
        ("braced", 'I look.\n<|tool_call>call:read_file{path:<|"|>a.py<|"|>}<tool_call|>', "I look.", (PATH,)),
        ("braced", '<|tool_call>call:list_files{}<tool_call|><|tool_call>call:read_file{path:<|"|>{a: "b", [\n<|"|>,'
         'lines:[1,2],all:true,filter:{deep:{x:null},names:[<|"|>c<|"|>]},most:-1.5}<tool_call|>', "",
         (Call("list_files"), Call("read_file", {"path": '{a: "b", [\n', "lines": [1, 2], "all": True,
                                                 "filter": {"deep": {"x": None}, "names": ["c"]}, "most": -1.5}))),
        ("braced", '<|tool_call>call:read_file{path:<|"|>a.py<|"|>}', "", (PATH,)),
        ("braced", '<|tool_call>call:read_file{"path": "a.py"}<tool_call|>', "", (PATH,)),
        ("braced", "a <|tool_call>no<tool_call|> b", "a <|tool_call>no<tool_call|> b", ()),
        ("braced", '<|tool_call>call:f{path:<|"|>a}<tool_call|>', '<|tool_call>call:f{path:<|"|>a}<tool_call|>', ()),
        ("named_json", 'I look. [TOOL_CALLS]read_file[ARGS]{"path": "a.py"}', "I look.", (PATH,)),
        ("named_json", '[TOOL_CALLS]list_files[ARGS]{}[TOOL_CALLS]read_file[CALL_ID]abcdefghi[ARGS]{"path": "a.py"}\n',
         "", (Call("list_files"), PATH)),
        ("named_json", '[TOOL_CALLS]read_file[ARGS]{"path": "[TOOL_CALLS]"}', "",
         (Call("read_file", {"path": "[TOOL_CALLS]"}),)),
        ("named_json", 'So [TOOL_CALLS]read_file[ARGS]{"pa', 'So [TOOL_CALLS]read_file[ARGS]{"pa', ()),
        ("named_json", "a [TOOL_CALLS]no b", "a [TOOL_CALLS]no b", ()),
        ("invoked", 'I look.\n<atem:function_calls>\n<atem:invoke name="read_file">\n<atem:parameter name="path">a.py'
         '</atem:parameter>\n</atem:invoke>\n</atem:function_calls>', "I look.", (PATH,)),
        ("invoked", '<atem:function_calls><atem:invoke name="functions.read_file"><atem:parameter name="lines">[1, 2]'
         '</atem:parameter><atem:parameter name="path">7</atem:parameter></atem:invoke>\n<atem:invoke '
         'name="other.list_files"></atem:invoke></atem:function_calls> Done.', "Done.",
         (Call("read_file", {"lines": [1, 2], "path": "7"}), Call("list_files"))),
        ("invoked", "a <atem:function_calls>no</atem:function_calls>", "a <atem:function_calls>no"
         "</atem:function_calls>", ()),
        ("bare_json", ' {"name": "read_file", "parameters": {"path": "a.py"}}', "", (PATH,)),
        ("bare_json", '{"name": "list_files", "parameters": {}}; {"name": "read_file", "parameters": {"path": "a.py"}}',
         "", (Call("list_files"), PATH)),
        ("bare_json", '{"name": "unknown", "parameters": {}}', '{"name": "unknown", "parameters": {}}', ()),
        ("bare_json", ' {"a": 1}\n', ' {"a": 1}\n', ()),
        ("bare_json", '  No: {"name": "list_files"} ', '  No: {"name": "list_files"} ', ()),
        ("in_channel", 'I look. to=functions.read_file<|channel|>commentary json<|message|>{"path": "a.py"}<|call|>',
         "I look.", (PATH,)),
        ("in_channel", 'to=functions.list_files <|constrain|>json<|message|><|call|>to=functions.read_file<|message|>'
         '{"path": "a.py"}', "", (Call("list_files"), PATH)),
        ("in_channel", "to=functions.read_file<|message|>[1]<|call|>",
         "to=functions.read_file<|message|>[1]<|call|>", ()),
        ("in_channel", "send it to=func", "send it to=func", ()),
    ],
)  # fmt: skip
def test_answers_by_hand_whole_and_letter_by_letter(name: str, answer: str, text: str, calls: tuple[Call, ...]) -> None:
    assert taken(name, answer) == (text, calls)
    assert taken(name, *answer) == (text, calls)


THINKING = [
    ("tagged_json", "I look.\n<tool_call>{\"name\": \"list_files\"}</tool_call>\n", "I look.", ["list_files"]),
    ("tagged_json", '<tool_call>{"name": "list_files"}</tool_call>\n<tool_call>\n{"name": "read_file"}', "",
     ["list_files", "read_file"]),
    ("tagged_json", 'So <tool_call>{"name": "list_files"}</tool_call>. No', 'So <tool_call>{"name": "list_files"}'
     '</tool_call>. No', []),
    ("tagged_json", '<tool_call>{"name": "list_files"}</tool_call> or <tool_call>{"name": "read_file"}</tool_call>',
     '<tool_call>{"name": "list_files"}</tool_call> or', ["read_file"]),
    ("tagged_json", "the tag <tool_call> is", "the tag <tool_call> is", []),
    ("tagged_json", '<tool_call>{"name": "nobody"}</tool_call>', '<tool_call>{"name": "nobody"}</tool_call>', []),
    ("tagged_parameters", "Hm.\n<function=list_files>\n</function>\n</tool_call>", "Hm.", ["list_files"]),
    ("named_json", "[TOOL_CALLS]list_files[ARGS]{}", "", ["list_files"]),
    ("bare_json", '{"name": "list_files", "parameters": {}}', '{"name": "list_files", "parameters": {}}', []),
]  # fmt: skip


@pytest.mark.parametrize(("name", "thought", "text", "names"), THINKING)
@given(data=st.data())
@settings(max_examples=12, deadline=None)
def test_calls_at_the_end_of_thinking(data: Any, name: str, thought: str, text: str, names: list[str]) -> None:
    """Of what was closed all is thinking; of what was not, but for the calls at its end; in whatever pieces."""
    for closed in (True, False):
        calls = ThoughtCalls(Calling(STYLE[name], TOOLS))
        said = "".join([*map(calls.push, cut(data, thought))])
        rest = AnswerPart(calls.close()) if closed else calls.finish()
        assert (said + rest.text).rstrip() == (thought.rstrip() if closed else text)
        assert [call.name for call in rest.calls] == ([] if closed else names)


def test_names_of_no_tool_are_remembered() -> None:
    splitter = CallSplitter(Calling(STYLE["tagged_json"], TOOLS))
    splitter.push('<tool_call>{"name": "nobody"}</tool_call><tool_call>{"name": "list_files"}</tool_call>')
    assert splitter.unknown == ["nobody"]


def test_thinking_goes_out_at_once_where_no_call_may_have_begun() -> None:
    calls = ThoughtCalls(Calling(STYLE["tagged_json"], TOOLS))
    pieces = ("Let me", " see. a < b", ' <tool_call>{"name": ', '"list_files"}</tool_call>', "\n or z")
    assert [calls.push(text) for text in pieces] == [*pieces[:2], "", "", "".join(pieces[2:])]


def test_text_goes_out_at_once_and_a_call_as_soon_as_it_is_whole() -> None:
    splitter = CallSplitter(Calling(STYLE["tagged_json"], TOOLS))
    assert splitter.push("Let me").text == "Let me"
    assert splitter.push(" look.\n<to") == (" look.", ())
    assert splitter.push('ol_call>{"name": "list_files"}') == ("", ())
    assert splitter.push("</tool_call>\n").calls == (Call("list_files"),)
    plain = CallSplitter(Calling(STYLE["bare_json"], TOOLS))
    assert [plain.push(text).text for text in (" ", "It is", " {so}")] == ["", " It is", " {so}"]
    assert CallSplitter(None).push("<tool_call>").text == "<tool_call>"


def test_the_first_call_may_be_the_end() -> None:
    one = '<tool_call>{"name": "list_files"}</tool_call>'
    splitter = CallSplitter(Calling(STYLE["tagged_json"], TOOLS, single=True))
    assert splitter.push(one * 2).calls == (Call("list_files"),)
    assert splitter.done
    assert splitter.push(one) == splitter.finish() == ("", ())
    two = '{"name": "list_files"}; {"name": "list_files"}'
    assert taken("bare_json", two, single=True) == ("", (Call("list_files"),))


@pytest.mark.parametrize("name", STYLES)
@pytest.mark.parametrize("tool", [None, "list_files"])
def test_a_call_that_the_prompt_began(name: str, tool: str | None) -> None:
    opening = STYLE[name].opening(tool)
    call = Call("list_files", {"path": "x"})
    said = written(name, call)
    assert said.startswith(opening)
    assert taken(name, said.removeprefix(opening), opening=opening) == ("", (call,))
    assert taken(name, "no", opening=opening) == (opening + "no", ())


texts = st.text(st.characters(exclude_categories=["Cs"]), max_size=12) | st.sampled_from(
    ["</tool_call>", "<tool_call>", "\n</parameter>\n", '"}', "{", "é\n", " \n", "\\"]
)
values = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats(allow_nan=False, allow_infinity=False) | texts,
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(texts, inner, max_size=3),
    max_leaves=6,
)


def cut(data: st.DataObject, text: str) -> list[str]:
    edges = sorted(data.draw(st.lists(st.integers(0, len(text)), max_size=8)))
    return [text[a:b] for a, b in zip([0, *edges], [*edges, len(text)], strict=True)]


@given(
    st.data(),
    st.sampled_from(["tagged_json", "bare_json", "named_json", "in_channel"]),
    st.dictionaries(texts, values, max_size=4),
)
@settings(max_examples=70, deadline=None)
def test_what_templates_write_of_json_calls_is_read_back(data: st.DataObject, name: str, arguments: Any) -> None:
    call = Call("read_file", arguments)
    assert taken(name, *cut(data, written(name, call))) == ("", (call,))


@given(
    st.data(),
    st.fixed_dictionaries(
        {"path": texts.filter(lambda text: "</" not in text), "lines": st.lists(st.integers()), "most": st.integers(),
         "all": st.booleans(), "filter": st.none() | st.dictionaries(texts, values, max_size=2)}
    ),
)  # fmt: skip
@settings(max_examples=60, deadline=None)
def test_what_templates_write_of_parameters_is_read_back(data: st.DataObject, arguments: Any) -> None:
    arguments["filter"] = json.loads(json.dumps(arguments["filter"]).replace("</", "< /"))
    call = Call("read_file", arguments)
    assert taken("tagged_parameters", *cut(data, written("tagged_parameters", call))) == ("", (call,))


PARTS = ("<tool_call>", "</tool_call>", "hm", '{"name": "list_files"}', "<function=list_files>", "</function>",
         "[TOOL_CALLS]", "list_files[ARGS]{}", "\n", "  ", "{", "<parameter=a>", "</parameter>", "<",
         "tool_call>", ";", "to=functions.", "list_files<|message|>", "<|call|>", "{}")  # fmt: skip
pieces = st.lists(st.sampled_from(PARTS), max_size=12)


@given(st.data(), st.sampled_from(sorted(STYLES)), pieces)
@settings(max_examples=120, deadline=None)
def test_any_answer_in_any_pieces_says_the_same_and_loses_no_letter(data: Any, name: str, said: list[str]) -> None:
    whole = "".join(said)
    text, calls = taken(name, whole)
    assert taken(name, *cut(data, whole)) == (text, calls)
    if not calls:
        assert text == whole


def test_what_seems_to_end_again_and_again_is_text_in_linear_time() -> None:
    answer = "<tool_call>" + "</tool_call>" * 20_000
    text, calls = taken("tagged_json", *(answer[at : at + 64] for at in range(0, len(answer), 64)))
    assert (text, calls) == (answer, ())
    assert MOST_TRIES < 100
    long = '<tool_call>{"name": "list_files", "arguments": {"path": "' + "x" * 300_000 + '"}}</tool_call>'
    assert taken("tagged_json", *(long[at : at + 4] for at in range(0, len(long), 4)))[1][0].name == "list_files"


@pytest.mark.parametrize(
    "text",
    ["", "[", '{"a": NaN}', '{"a": 1e999}', '{"a": "\\ud800"}', '{"a": ' + "9" * 5000 + "}", '{"a": 1} x',
     "[" * 100_000, '{"a":' * (MOST_DEPTH + 1) + "1" + "}" * (MOST_DEPTH + 1)],
)  # fmt: skip
def test_json_that_others_could_not_read_is_none(text: str) -> None:
    assert read_object(text) is None
    with pytest.raises(ValueError):  # noqa: PT011
        read_json(text)


def test_json_as_deep_as_may_be() -> None:
    assert read_object('{"a":' * MOST_DEPTH + "1" + "}" * MOST_DEPTH) is not None
    assert read_object(" [] ") is None


def test_bare_calls_need_a_tool_of_that_name() -> None:
    assert TAGGED != BARE
    one = CallSplitter(Calling(STYLE["bare_json"], (LIST,)))
    one.push('{"name": "read_file", "parameters": {}}')
    assert one.finish() == ('{"name": "read_file", "parameters": {}}', ())


FOLDER = Path(os.environ.get("SP_TEST_DATA", "/nonexistent")) / "templates"
KNOWN = {
    "Qwen-QwQ-32B": "tagged_json", "Qwen-Qwen2.5-7B-Instruct": "tagged_json", "Qwen-Qwen3-0.6B": "tagged_json",
    "Qwen3-Coder": "tagged_parameters", "Qwen3.5-4B": "tagged_parameters",
    "meta-llama-Llama-3.1-8B-Instruct": "bare_json", "meta-llama-Llama-3.2-3B-Instruct": "bare_json",
    "meta-llama-Llama-3.3-70B-Instruct": "bare_json", "mistralai-Ministral-3-14B-Reasoning-2512": "named_json",
    "openai-gpt-oss-120b": "in_channel",
}  # fmt: skip
"""How models of these templates write calls, as their vendors' documentation has it; of others it is not known."""


@pytest.mark.skipif(not FOLDER.exists(), reason="SP_TEST_DATA names no folder with templates")
@pytest.mark.parametrize("path", sorted(FOLDER.glob("*.jinja")), ids=lambda path: path.stem)
def test_templates_as_vendors_ship_them(path: Path) -> None:
    template = ChatTemplate(path.read_text(), "<s>", "</s>")
    style = call_style_of(template)
    assert (style.name if style else None) == KNOWN.get(path.stem)
    call = Call("read_file", {"path": "a <|im_end|>\n", "lines": [1, 2]}, "abcdefghi")
    turns = (
        Turn("user", "Read it."), Turn("assistant", "", calls=(call,)),
        Turn("tool", "seen", call_id="abcdefghi", name="read_file"), Turn("assistant", "Done."), Turn("user", "More?"),
    )  # fmt: skip
    variables = {"tools": [READ]}
    if path.stem.startswith(("google-gemma-2", "microsoft-Phi-3.5", "HuggingFaceTB-SmolLM3")):
        with pytest.raises(SpError, match=r"tool_calls exactly once|roles must alternate"):
            render_located(template, turns, variables)
        return
    found = render_located(template, turns, variables, lambda text: "<|" in text)
    shown = [(copy.index, found.text[copy.begin : copy.stop]) for copy in found.copies]
    assert shown == [(0, "Read it."), (2, "seen"), (3, "Done."), (4, "More?")]
    assert [found.text[c.at : c.stop].replace("\\n", "\n") for c in found.arguments] == ["a <|im_end|>\n"]
    if style:
        assert "Read a file." in found.text
        between = found.text[found.copies[0].stop : found.copies[1].at]
        start, end = between.find(style.begin or "{"), between.rfind(style.end or "}") + len(style.end or "}")
        assert taken(style.name, between[start:end]) == ("", (replace(call, id=""),))
