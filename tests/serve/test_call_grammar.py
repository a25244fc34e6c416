"""Grammars of calls: what templates write is accepted, what they let through is read back and fits its schema."""

from __future__ import annotations

import json
from dataclasses import replace
from typing import Any

import jsonschema
import numpy as np
import pytest
import serving as tool
import web
from hypothesis import given, settings
from hypothesis import strategies as st
from tool_templates import LIST, STYLES, written

from sp.chat import Call, marks_of
from sp.chat.call_grammar import CallGrammar
from sp.chat.call_splitter import Calling, CallSplitter
from sp.chat.calls import CALLS
from sp.decode import Chooser, DDTree
from sp.gguf import ChatTemplate
from sp.serve.anthropic.request import job_of
from sp.serve.fields import RequestError
from sp.serve.grammars import Grammars, lazy
from sp.serve.messages import to_prompt
from sp.serve.options import Defaults
from sp.serve.protocol import CompletionJob, parse_request
from sp.serve.text import ReplyText
from sp.session import Pipeline

llguidance = pytest.importorskip("llguidance")

STYLE = {style.name: style for style in CALLS}
NAMES = [style.name for style in CALLS]
SCHEMA: dict[str, Any] = {
    "type": "object",
    "properties": {
        "kind": {"enum": ["fact", "story"]},
        "path": {"type": "string", "maxLength": 4},
        "most": {"type": "integer", "minimum": 0, "maximum": 99},
        "all": {"type": "boolean"},
        "where": {"$ref": "#/$defs/place"},
        "word": {"const": "x"},
    },
    "required": ["kind", "most", "where"],
    "additionalProperties": False,
    "$defs": {"place": {"type": "object", "properties": {"at": {"enum": [1, 2]}}, "required": ["at"],
                        "additionalProperties": False}},
}  # fmt: skip
FIND: dict[str, Any] = {"type": "function", "function": {"name": "find", "parameters": SCHEMA}}
TOOLS = (FIND, LIST)
HELD = {"find": SCHEMA}


class Words:
    """The embedded vocabulary, as the library wants it."""

    def __init__(self, pair: Pipeline) -> None:
        self.tokenizer = pair.target.tokenizer
        self.given = Grammars(self.tokenizer)._words
        self.special = {self.tokenizer.token_text(each): each for each in self.tokenizer.special_ids}

    def matcher(self, grammar: str) -> Any:
        assert llguidance.LLMatcher.validate_grammar(grammar) == ""
        return llguidance.LLMatcher(self.given, grammar, log_level=0)

    def accepts(self, grammar: str, text: str) -> bool:
        matcher, ids = self.matcher(grammar), self.tokenizer.encode(text, begins=False).ids.tolist()
        return bool(matcher.consume_tokens(ids)) and bool(matcher.is_accepting())

    def walk(self, grammar: str, rng: np.random.Generator, most: int = 220) -> str | None:
        """What random tokens say that are allowed; None if they come to no end."""
        matcher, said = self.matcher(grammar), list[int]()
        while len(said) < most:
            bits = np.unpackbits(np.frombuffer(matcher.compute_bitmask(), np.uint8), bitorder="little")
            token = int(rng.choice(np.flatnonzero(bits[: self.tokenizer.vocab_size])))
            if token in self.tokenizer.eos_ids:
                return self.tokenizer.decode(said, skip_special=False)
            said.append(token)
            assert matcher.consume_token(token)
            if matcher.is_stopped():
                return self.tokenizer.decode(said, skip_special=False)
        return None


@pytest.fixture(scope="module")
def words(pair: Pipeline) -> Words:
    return Words(pair)


def arguments(data: st.DataObject) -> dict[str, Any]:
    found = {"kind": data.draw(st.sampled_from(["fact", "story"]))}
    found |= {"path": data.draw(st.text("ab é/.", max_size=4))} if data.draw(st.booleans()) else {}
    found |= {"most": data.draw(st.integers(0, 99))}
    found |= {"all": data.draw(st.booleans())} if data.draw(st.booleans()) else {}
    return found | {"where": {"at": data.draw(st.sampled_from([1, 2]))}}


@pytest.mark.parametrize("name", [name for name in NAMES if name in STYLES])
@given(data=st.data())
@settings(max_examples=12, deadline=None)
def test_what_templates_write_is_accepted(words: Words, name: str, data: Any) -> None:
    style, call = STYLE[name], Call("find", arguments(data))
    said = written(name, call)
    grammar = CallGrammar(Calling(style, TOOLS), HELD, words.special)
    for named in (None, "find"):
        opening = style.opening(named)
        assert words.accepts(grammar.forced(opening), said.removeprefix(opening))
    assert words.accepts(grammar.forced(None), f"\n\n{said}") or name == "in_channel"  # whose headers have no gap
    for wrong in (replace(call, name="nobody"), replace(call, arguments={"kind": "other", "most": 1})):
        assert not words.accepts(grammar.forced(""), written(name, wrong))
    assert words.accepts(grammar.forced(""), said)
    if lazy(style):
        assert words.accepts(grammar.lazy(None), f"I look.\n{said}")
        assert not words.accepts(grammar.lazy(None), written(name, replace(call, arguments={"kind": "other"})))
        assert words.accepts(grammar.lazy(None), written(name, Call("list_files", {"any": [1]})))


def valid(calls: tuple[Call, ...]) -> None:
    for call in calls:
        assert call.name in ("find", "list_files")
        if call.name == "find":
            jsonschema.validate(call.arguments, SCHEMA)


@pytest.mark.parametrize("name", NAMES)
def test_whatever_is_let_through_is_a_call_that_fits(words: Words, name: str) -> None:
    """Of random tokens: nothing but the grammar makes these calls."""
    rng, style, ends = np.random.default_rng(3), STYLE[name], 0
    tools = [FIND, {"type": "function", "function": {"name": "list_files"}}]
    short = {**SCHEMA, "properties": {**SCHEMA["properties"], "path": {"enum": ["a.py", "b.py"]}}}
    held = {"find": short, "list_files": {"type": "object", "properties": {}, "additionalProperties": False}}
    in_headers = name in ("in_channel", "invoked")
    for begun in ("" if in_headers else None, style.opening(None), style.opening("find")):
        grammar = CallGrammar(Calling(style, tools, single=True), held, words.special).forced(begun)
        for _ in range(6):
            said = words.walk(grammar, rng)
            if said is None:
                continue
            ends += 1
            splitter = CallSplitter(Calling(style, tools, opening=begun or ""))
            found, rest = splitter.push(said), splitter.finish()
            calls = found.calls + rest.calls
            assert in_headers or not (found.text + rest.text).strip(), said
            assert len(calls) == 1, said
            valid(calls)
    assert ends > 12


def test_either_a_call_or_an_answer_of_the_schema(words: Words) -> None:
    for name in ("tagged_json", "tagged_parameters", "bare_json", "named_json"):
        grammar = CallGrammar(Calling(STYLE[name], TOOLS), {}, words.special).either('{"type": "array", "items": {}}')
        assert words.accepts(grammar, "[1, 2]")
        assert words.accepts(grammar, written(name, Call("list_files", {"path": "x"})))
        assert not words.accepts(grammar, '{"a": 1}')
        assert not words.accepts(grammar, "Text.")


@pytest.mark.parametrize("marked", [False, True])
def test_marks_that_are_special_tokens(words: Words, marked: bool) -> None:
    """They are spelled by their numbers alone; text before a call is free of its mark, and of nothing else."""
    begin, end = ("<|im_start|>", "<|im_end|>") if marked else ("<tool_call>", "</tool_call>")
    style = replace(
        STYLE["tagged_json"], begin=begin, end=end, opening=lambda name: f'{begin}\n{{"name": "{name}", "arguments":'
    )
    grammar = CallGrammar(Calling(style, TOOLS), HELD, words.special)
    call = f'{begin}\n{{"name": "find", "arguments": {{"kind": "fact", "most": 1, "where": {{"at": 1}}}}}}\n{end}'
    for text, right in ((call, True), (call.replace("fact", "fat"), False), (call.replace("find", "fund"), False)):
        assert words.accepts(grammar.forced(""), text) == right
        assert words.accepts(grammar.lazy(None), f"I < see: {text} Done.") == right
        assert words.accepts(grammar.lazy(None), f"{text}\n{text}") == right
    assert words.accepts(grammar.lazy(None), 'Text with {"name": 1} and </tool_call>.')
    assert not words.accepts(grammar.lazy(None), '{"name": "find"')  # as a call that lacks its mark would begin
    thinking = marks_of("</think>")
    for text, right in (
        (f"<think>\nhm</think>\n\n{call}", True),
        (call, True),
        (f"<think>\n</think>{call[:-20]}", False),
    ):
        assert words.accepts(grammar.lazy(thinking), text) == right


def test_tokens_that_end_an_answer_are_not_a_part_of_it(words: Words) -> None:
    style = replace(STYLE["in_channel"], end="<|im_end|>")
    grammar = CallGrammar(Calling(style, [LIST]), {}, words.special, frozenset({"<|im_end|>"}))
    assert words.accepts(grammar.forced(style.opening("list_files")), '{"a": 1}')


def test_properties_that_are_not_listed_are_let_in_only_where_the_schema_says_so(words: Words) -> None:
    listed = {"type": "object", "properties": {"a": {"type": "integer"}}}
    for schema, right in (
        (listed, False),
        ({**listed, "additionalProperties": True}, True),
        ({"type": "object"}, True),
    ):
        grammar = CallGrammar(Calling(STYLE["bare_json"], [FIND]), {"find": schema}, words.special).forced("")
        assert words.accepts(grammar, '{"name": "find", "parameters": {"a": 1, "b": 2}}') == right
        assert words.accepts(grammar, '{"name": "find", "parameters": {"a": 1}}')


def test_braces_of_schemas_that_hold_themselves_and_of_any_values(words: Words) -> None:
    kids = {"type": "array", "items": {"$ref": "#/$defs/t"}}
    node = {"type": "object", "properties": {"kids": kids, "name": {"type": ["string", "null"]}}, "required": ["name"]}
    either = {"anyOf": [{"$ref": "#/$defs/t"}, {"type": "null"}]}
    tree = {"type": "object", "properties": {"of": either, "x": {}}, "$defs": {"t": node}}
    grammar = CallGrammar(Calling(STYLE["braced"], [FIND]), {"find": tree}, words.special).forced("")
    for said, right in (
        ('{of:{kids:[{name:null},{kids:[],name:<|"|>a, {b}<|"|>}],name:<|"|><|"|>}}', True),
        ('{of:null,x:{a:[1,<|"|>b<|"|>,{}],b_c:-1.5}}', True),
        ("{}", True),
        ("{of:{kids:[]}}", False),
        ("{x:1,of:null}", False),
        ("{y:1}", False),
    ):
        text = f"<|tool_call>call:find{said}<tool_call|>"
        assert words.accepts(grammar, text) == right, said
        if right:
            (call,) = CallSplitter(Calling(STYLE["braced"], [FIND])).push(text).calls
            jsonschema.validate(call.arguments, tree)


def test_parameters_that_tags_cannot_name_are_any(words: Words) -> None:
    odd = {"type": "object", "properties": {"<a>": {"type": "integer"}}}
    grammar = CallGrammar(Calling(STYLE["tagged_parameters"], [FIND]), {"find": odd}, words.special).forced(None)
    said = "<tool_call>\n<function=find>\n<parameter=x y>\n<b>\n</parameter>\n</function>\n</tool_call>"
    assert words.accepts(grammar, said)
    assert json.dumps(odd) not in grammar


def create(server: tool.Running, **given: Any) -> dict[str, Any]:
    body = {"messages": [{"role": "user", "content": "Who is it?"}], "tools": list(TOOLS), "max_tokens": 120, **given}
    reply = web.post(f"{server.url}/v1/chat/completions", json=body, timeout=60)
    assert reply.status_code == 200, reply.text
    found: dict[str, Any] = reply.json()
    return found


def served(pair: Pipeline, source: str) -> Any:
    return tool.serving(Pipeline(replace(pair.target, template=ChatTemplate(source)), pair.drafter), answer=200)


ENDS: dict[str, Any] = {
    "type": "object",
    "properties": {"kind": {"enum": ["fact", "story"]}, "most": {"type": "integer", "minimum": 0, "maximum": 99}},
    "required": ["kind", "most"],
    "additionalProperties": False,
}
SHORT = [{"type": "function", "function": {"name": name, "parameters": ENDS}} for name in ("find", "look")]
NAMED = {"type": "function", "function": {"name": "look"}}


@pytest.mark.parametrize("name", [name for name in NAMES if name in STYLES])
def test_a_model_that_knows_of_no_tools_calls_them_as_it_must(pair: Pipeline, name: str) -> None:
    with served(pair, STYLES[name]) as running:
        for choice, temperature in (("required", None), (NAMED, 1.5)):
            more = {"parallel_tool_calls": False, "temperature": temperature, "seed": 1, "logprobs": True}
            found = create(running, tools=SHORT, tool_choice=choice, **more)
            assert "ignored" not in found["usage"]["sp"]
            (one,) = found["choices"]
            (call,) = one["message"]["tool_calls"]
            assert one["finish_reason"] == "tool_calls"
            assert call["function"]["name"] in (["look"] if choice is NAMED else ["find", "look"])
            jsonschema.validate(json.loads(call["function"]["arguments"]), ENDS)


MUSE = STYLES["tagged_json"].replace("<tool_call>", "<atem:invoke name=>")
"""Calls in messages whose marks are text, which are held only where one must be."""


def test_tools_beside_a_format(pair: Pipeline) -> None:
    form = {"type": "json_schema", "json_schema": {"schema": {"enum": ["ab", "cd"]}}}
    with served(pair, STYLES["tagged_json"]) as running:
        for seed in range(2):
            found = create(running, tools=SHORT, response_format=form, temperature=2.0, seed=seed, max_tokens=40)[
                "choices"
            ][0]
            said, calls = found["message"]["content"], found["message"].get("tool_calls")
            assert calls or found["finish_reason"] == "length" or json.loads(said) in ("ab", "cd")
    with served(pair, MUSE) as running:
        body = {"messages": [{"role": "user", "content": "x"}], "tools": SHORT, "response_format": form}
        reply = web.post(f"{running.url}/v1/chat/completions", json=body, timeout=60)
        assert (reply.status_code, reply.json()["error"]["param"]) == (400, "response_format")


OPENED = "{# </think> #}" + STYLES["tagged_json"].replace("assistant\\n' }}{% e", "assistant\\n<think>\\n' }}{% e")
"""A model that thinks first, whose prompt begins that."""


def job(**body: Any) -> CompletionJob:
    return parse_request("chat", {"messages": [{"role": "user", "content": "x"}], **body}, Defaults())


def strict(name: str, schema: dict[str, Any]) -> dict[str, Any]:
    return {"type": "function", "function": {"name": name, "parameters": schema, "strict": True}}


def test_what_is_held_and_what_is_told(pair: Pipeline) -> None:
    def checked(source: str, **body: Any) -> CompletionJob:
        return Grammars(pair.target.tokenizer, ChatTemplate(source)).checked(job(**body))

    odd = {"type": "object", "properties": {"a": {"not": {"type": "string"}}}}
    free = checked(STYLES["tagged_json"], tools=[LIST])
    assert (free.tools.call_schemas, free.ignored) == (None, ())
    both = checked(STYLES["tagged_json"], tools=[strict("find", SCHEMA), LIST])
    assert (both.tools.call_schemas, both.ignored) == ({"find": SCHEMA}, ())
    for source in (STYLES["bare_json"], MUSE):
        told = checked(source, tools=[strict("find", SCHEMA)])
        assert told.tools.call_schemas is None
        assert told.ignored[0].startswith("tools[0].function.strict: arguments are not constrained to a schema")
    lost = checked(STYLES["tagged_json"], tools=[{"type": "function", "function": {"name": "f", "parameters": odd}}],
                   tool_choice="required")  # fmt: skip
    assert lost.tools.call_schemas == {}
    assert lost.ignored[0].startswith("tools[0].function.parameters: not supported, so a call may have any object")
    with pytest.raises(RequestError, match="leave strict out"):
        checked(STYLES["tagged_json"], tools=[strict("f", odd)])
    inner = {"type": "object", "properties": {"a": {"type": "array", "items": {"$ref": "#/properties/b"}}, "b": {}}}
    assert checked(STYLES["tagged_json"], tools=[strict("f", inner)]).tools.call_schemas == {"f": inner}
    with pytest.raises(RequestError, match="not supported"):  # between tags each parameter is a schema of its own
        checked(STYLES["tagged_parameters"], tools=[strict("f", inner)])
    for wrong in ({"required": True}, {"properties": {"a": {"enum": 3}}}, {"properties": {"a": {"type": 3}}}):
        for source in (STYLES["tagged_json"], STYLES["tagged_parameters"]):
            with pytest.raises(RequestError, match="not supported"):
                checked(source, tools=[strict("f", {"type": "object", "properties": {}, **wrong})])
    huge = {"enum": ["x" * 70_000]}
    with pytest.raises(RequestError, match="over 65536 characters"):
        checked(STYLES["tagged_json"], tools=[strict("f", huge)])


def test_a_draft_that_is_asked_for_by_name_guesses_no_calls_that_are_held(pair: Pipeline) -> None:
    grammars = Grammars(pair.target.tokenizer, ChatTemplate(STYLES["tagged_json"]))

    def checked(**body: Any) -> CompletionJob:
        given = {"messages": [{"role": "user", "content": "x"}], "tools": [LIST], **body}
        options = replace(tool.OPTIONS, decode=DDTree())
        return grammars.checked(parse_request("chat", given, Defaults(options, draft=True)))

    with pytest.raises(RequestError, match="cannot follow a grammar"):
        checked(tool_choice="required", sp={"decode": "ddtree"})
    assert checked(tool_choice="required").tools.call_schemas is not None
    assert checked(sp={"decode": "ddtree"}).tools.call_schemas is None


THOUGHT = "<|channel|>analysis<|message|>See {x.<|end|><|start|>assistant"
TO_FIND = f"{THOUGHT} to=functions.find<|channel|>commentary json<|message|>"
FINAL = f"{THOUGHT}<|channel|>final<|message|>"


@pytest.mark.parametrize(
    ("wanted", "more", "said"),
    [
        (f"{TO_FIND}No.", {}, "call"),
        (f"{TO_FIND}No.", {"response_format": {"type": "json_object"}}, "call"),
        (f"{FINAL}No.", {"response_format": {"type": "json_object"}}, "json"),
        (f"{FINAL}No.", {}, "No."),
        (f"{THOUGHT} to=functions.look<|channel|>commentary json<|message|>No.", {}, "free"),
    ],
)
def test_messages_of_channels_are_held_one_by_one(pair: Pipeline, wanted: str, more: Any, said: str) -> None:
    """A call to its schema, behind a header that the model writes; an answer to the format."""
    tokenizer, template = pair.target.tokenizer, ChatTemplate(STYLES["in_channel"])
    grammars = Grammars(tokenizer, template)
    tools = [strict("find", ENDS), {"type": "function", "function": {"name": "look", "parameters": ENDS}}]
    given = grammars.checked(job(tools=tools, **more))
    assert given.ignored == ()
    prompt, _ = to_prompt(given, template, tokenizer)
    text = ReplyText(tokenizer, thinks=prompt.thinks, calling=given.tools.calling(template, prompt.thinks))
    held = grammars.constraint(given, prompt.thinks, lambda: not text.answering, lambda: text.tool)
    chooser, ids, parts = Chooser(None, 0, constraint=held), tokenizer.encode(wanted, begins=False).ids.tolist(), []
    for at in range(len(ids) + 60):
        flat = np.zeros((1, tokenizer.vocab_size), np.float32)
        flat[0, ids[at] if at < len(ids) else tokenizer.eos_id] = 5
        token = int(chooser.choose(flat)[0])
        if token in tokenizer.eos_ids:
            break
        parts.append(text.push(token))
    parts.append(text.finish())
    calls, content = [call for part in parts for call in part.calls], "".join(part.content for part in parts)
    assert "".join(part.reasoning for part in parts) == "See {x."
    if said == "call":
        (call,) = calls
        jsonschema.validate(call.arguments, ENDS)
    else:
        assert not calls
        assert content.startswith("{" if said == "json" else "No." if said == "No." else "to=functions.look")


def test_in_the_words_of_anthropic(pair: Pipeline) -> None:
    form = {"format": {"type": "json_schema", "schema": {"type": "object"}}}
    body = {"max_tokens": 5, "messages": [{"role": "user", "content": "x"}],
            "tools": [{"name": "find", "input_schema": SCHEMA, "strict": True}]}  # fmt: skip

    def asked(source: str, **more: Any) -> tuple[CompletionJob, tuple[str, ...]]:
        template = ChatTemplate(source)
        found, told = job_of(body | more, Defaults(), template, pair.target.tokenizer)
        return Grammars(pair.target.tokenizer, template).checked(found), told.ignored

    forced, ignored = asked(OPENED, tool_choice={"type": "any"})
    assert (forced.tools.forced, forced.tools.call_schemas) == (True, {"find": SCHEMA})
    assert ignored == ("thinking with a tool_choice that forces a call",)
    both, ignored = asked(STYLES["tagged_json"], output_config=form)
    assert both.format is not None
    assert (both.tools.call_schemas, ignored) == ({"find": SCHEMA}, ())
    neither, ignored = asked(MUSE, output_config=form)
    assert (neither.format, ignored) == (None, ("output_config.format with tools",))
    assert neither.ignored[0].startswith("tools[0].function.strict")


def test_without_the_library_calls_are_as_free_as_they_were(pair: Pipeline, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(__import__("sys").modules, "llguidance", None)
    tokenizer = pair.target.tokenizer
    grammars = Grammars(tokenizer, ChatTemplate(STYLES["tagged_json"]))
    forced = grammars.checked(job(tools=[LIST], tool_choice="required"))
    assert forced.tools.call_schemas is None
    begun = to_prompt(forced, ChatTemplate(STYLES["tagged_json"]), tokenizer)[0].text
    assert begun.endswith('<tool_call>\n{"name": "list_files", "arguments":')
    assert grammars.checked(job(tools=[strict("f", SCHEMA)])).ignored
    with pytest.raises(RequestError, match="thinks first, so a call cannot be forced"):
        to_prompt(forced, ChatTemplate(OPENED), tokenizer)


def test_a_model_that_thinks_first_is_held_once_it_has(pair: Pipeline) -> None:
    """Its thinking is free, and what follows is a call."""
    tokenizer = pair.target.tokenizer
    template = ChatTemplate(OPENED)
    grammars = Grammars(tokenizer, template)
    given = grammars.checked(job(tools=SHORT, tool_choice=NAMED))
    prompt, _ = to_prompt(given, template, tokenizer)
    assert prompt.thinks is not None
    assert prompt.text.endswith("<think>\n")
    text = ReplyText(tokenizer, thinks=prompt.thinks, calling=given.tools.calling(template, prompt.thinks))
    chooser = Chooser(None, 0, constraint=grammars.constraint(given, prompt.thinks, lambda: not text.answering))
    wanted = tokenizer.encode('Look, <tool_call>{"x</think>\n\nNo.', begins=False).ids.tolist()
    parts, said = [], []
    for at in range(80):
        flat = np.zeros((1, tokenizer.vocab_size), np.float32)
        flat[0, wanted[at] if at < len(wanted) else tokenizer.eos_id] = 5
        said.append(int(chooser.choose(flat)[0]))
        if said[-1] in tokenizer.eos_ids:
            break
        parts.append(text.push(said[-1]))
    parts.append(text.finish())
    assert "".join(part.reasoning for part in parts) == 'Look, <tool_call>{"x'
    assert "".join(part.content for part in parts) == ""
    (call,) = (call for part in parts for call in part.calls)
    assert call.name == "look"
    jsonschema.validate(call.arguments, ENDS)


@pytest.mark.parametrize("large", ["1e400", "9" * 400, "123456789012345678901"])
def test_numbers_of_any_size_in_schemas(pair: Pipeline, large: str) -> None:
    """A model is shown them; what no grammar can hold is one line."""
    tools = json.dumps([strict("find", {"type": "object", "properties": {"a": {"type": "number", "maximum": 0}}})])
    shown, held = (tools.replace("0", large).replace("true", word) for word in ("false", "true"))
    form = f'{{"type": "json_schema", "json_schema": {{"schema": {{"type": "number", "maximum": {large}}}}}}}'
    with served(pair, STYLES["tagged_json"]) as running:
        for fields, fine in (
            (f'"tools": {shown}', True),
            (f'"tools": {held}', False),
            (f'"response_format": {form}', False),
        ):
            raw = f'{{"messages": [{{"role": "user", "content": "x"}}], "max_tokens": 2, {fields}}}'
            headers = {"Content-Type": "application/json"}
            reply = web.post(f"{running.url}/v1/chat/completions", content=raw.encode(), headers=headers, timeout=60)
            assert reply.status_code == (200 if fine else 400)
            assert fine or "this schema is not supported" in reply.json()["error"]["message"]
