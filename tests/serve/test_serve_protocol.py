"""Bodies good and bad: what is refused, and that the message names the field."""

from __future__ import annotations

import json
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from sp.chat import Call
from sp.serve.fields import RequestError
from sp.serve.options import Defaults
from sp.serve.protocol import parse_json, parse_request
from sp.serve.tools import ToolUse

HELLO = [{"role": "user", "content": "hi"}]
DEEP = json.loads('{"a":' * 70 + "1" + "}" * 70)


def tool(**function: Any) -> dict[str, Any]:
    return {"type": "function", "function": {"name": "look", **function}}


def call(**function: Any) -> dict[str, Any]:
    return {"id": "c1", "type": "function", "function": {"name": "look", "arguments": "{}", **function}}


def say(**message: Any) -> dict[str, Any]:
    return {"role": "assistant", "content": None, **message}


def result(**message: Any) -> dict[str, Any]:
    return {"role": "tool", "content": "seen", "tool_call_id": "c1", **message}


LOOK = tool()
DEFAULTS = Defaults(max_new_tokens=64)


def parse(**body: Any) -> Any:
    return parse_request("chat", parse_json(json.dumps({"messages": HELLO} | body).encode()), DEFAULTS)


@pytest.mark.parametrize(
    ("raw", "said"),
    [
        (b"", "not valid JSON"),
        (b"{", "not valid JSON"),
        (b"[]", "send an object"),
        (b"\xff", "not UTF-8"),
        (b'{"a": NaN}', "not JSON"),
        (b'{"a": 1e999}', "only schemas"),
        (b'{"tools": 1e9999}', "10000 digits"),
        (b'{"tools": -1e99999999999999999999}', "more digits"),
        (b'{"tools": [' + b"9" * 4301 + b"]}", "4301 digits"),
        (b'{"max_tokens": -18446744073709551617}', "numbers beyond 2\\^53"),
        (b'{"max_tokens": ' + b"9" * 100_000 + b"}", "digits"),
        (b"[" * 200_000, "nested too deeply"),
    ],
)
def test_what_is_no_body(raw: bytes, said: str) -> None:
    with pytest.raises(RequestError, match=said):
        parse_json(raw)


@pytest.mark.parametrize(
    ("body", "param", "said"),
    [
        ({"messages": []}, "messages", "1 to"),
        ({"messages": "hi"}, "messages", "list"),
        ({"messages": [7]}, "messages[0]", "send an object"),
        ({"messages": [{"role": "usr", "content": "x"}]}, "messages[0].role", "use one of"),
        ({"messages": [{"role": "user"}]}, "messages[0].content", "send a string"),
        ({"messages": [{"role": "user", "content": []}]}, "messages[0].content", "empty"),
        ({"messages": [{"role": "user", "content": [{"type": "image_url"}]}]}, "messages[0].content[0]", "is not text"),
        ({"messages": [{"role": "user", "content": "\ud800"}]}, "messages[0].content", "surrogate"),
        ({"messages": [{"role": "assistant", "tool_calls": [{}]}]}, "messages[0].tool_calls[0]", "not a function call"),
        ({"max_tokens": -2}, "max_tokens", "from -1 to"),
        ({"max_tokens": 1.5}, "max_tokens", "whole"),
        ({"max_tokens": True}, "max_tokens", "whole"),
        ({"max_completion_tokens": 0}, "max_completion_tokens", "from 1"),
        ({"seed": 0.5}, "seed", "whole"),
        ({"temperature": 2.5}, "temperature", "from 0 to 2"),
        ({"temperature": False}, "temperature", "a number"),
        ({"temperature": 1, "top_p": 1.5}, "top_p", "from 0 to 1"),
        ({"top_k": 1.5}, "top_k", "whole"),
        ({"min_p": -1}, "min_p", "from 0 to 1"),
        ({"n": 0}, "n", "from 1 to 16"),
        ({"n": 17}, "n", "from 1 to 16"),
        ({"best_of": 2}, "best_of", "leave best_of out"),
        ({"logprobs": 3}, "logprobs", "true or false"),
        ({"top_logprobs": 3}, "top_logprobs", "needs logprobs"),
        ({"logprobs": True, "top_logprobs": 21}, "top_logprobs", "from 0 to 20"),
        ({"response_format": "json"}, "response_format", "one of text, json_object, json_schema"),
        ({"response_format": {"type": "xml"}}, "response_format", "'xml'"),
        ({"response_format": {"type": "json_object", "schema": {}}}, "response_format", "unknown with type"),
        ({"response_format": {"type": "json_schema"}}, "response_format.json_schema", "schema is not an object"),
        (
            {"response_format": {"type": "json_schema", "json_schema": {"name": "x", "schema": DEEP}}},
            "response_format.json_schema",
            "nested deeper",
        ),
        (
            {"response_format": {"type": "json_schema", "json_schema": {"schema": {"const": "x" * 70_000}}}},
            "response_format.json_schema",
            "over 65536",
        ),
        ({"sp": {"decode": "sample"}, "temperature": 3}, "temperature", "from 0 to 2"),
        ({"stream": "yes"}, "stream", "true or false"),
        ({"stream_options": {"include_usage": 3}}, "stream_options", "include_usage"),
        ({"stop": [""]}, "stop", "1 to 256"),
        ({"stop": ["a"] * 17}, "stop", "16"),
        ({"tools": {}}, "tools", "list"),
        ({"tools": [{"name": "f"}]}, "tools[0]", "not a function"),
        ({"tools": [{"type": "function", "function": {}}]}, "tools[0].function.name", "send a string"),
        ({"tools": [{"type": "function", "function": {"name": "a b"}}]}, "tools[0].function.name", "letters"),
        ({"tools": [LOOK, LOOK]}, "tools[1]", "twice"),
        ({"tools": [tool(parameters=[])]}, "tools[0].function.parameters", "schema"),
        ({"tools": [tool(description=3)]}, "tools[0].function.description", "a string"),
        ({"tools": [tool(description="\ud800")]}, "tools", "surrogate"),
        ({"tools": [tool(parameters=DEEP)]}, "tools", "nested"),
        ({"tools": [LOOK] * 257}, "tools", "256"),
        ({"tool_choice": "required"}, "tool_choice", "no tools"),
        ({"tool_choice": "any"}, "tool_choice", "none, auto, required"),
        ({"tool_choice": 3}, "tool_choice", "send one of"),
        ({"tool_choice": {"type": "function", "name": "f"}}, "tool_choice", "tool_choice is not valid"),
        ({"tool_choice": {"type": "function", "function": {"name": "f"}}}, "tool_choice", "not among the tools"),
        ({"parallel_tool_calls": 1}, "parallel_tool_calls", "true or false"),
        ({"messages": [say(tool_calls={})]}, "messages[0].tool_calls", "list"),
        ({"messages": [say(tool_calls=[call(arguments="{")])]}, "messages[0].tool_calls[0].function.arguments", "JSON"),
        (
            {"messages": [say(tool_calls=[call(arguments=1)])]},
            "messages[0].tool_calls[0].function.arguments",
            "string",
        ),
        ({"messages": [say(tool_calls=[call(name="<x>")])]}, "messages[0].tool_calls[0].function.name", "letters"),
        ({"messages": [say(tool_calls=[call() | {"id": ""}])]}, "messages[0].tool_calls[0].id", "id of 1"),
        ({"messages": [say(tool_calls=[call(), call()])]}, "messages[0].tool_calls", "twice"),
        ({"messages": [say(tool_calls=[call()])]}, "messages[0].tool_calls", "no message of role tool answers 'c1'"),
        ({"messages": [say(tool_calls=[call()]), HELLO[0]]}, "messages[0].tool_calls", "answers 'c1'"),
        ({"messages": [HELLO[0], result()]}, "messages[1].tool_call_id", "'c1' matches no call"),
        ({"messages": [say(tool_calls=[call()]), result(), result()]}, "messages[2].tool_call_id", "no call"),
        ({"messages": [say(tool_calls=[call()]), result(tool_call_id=None)]}, "messages[1].tool_call_id", "a string"),
        ({"messages": [say(tool_calls=[call()]), result(content=None)]}, "messages[1].content", "a string"),
        ({"messages": [HELLO[0] | {"tool_calls": [call()]}]}, "messages[0].tool_calls", "not supported"),
        ({"messages": [HELLO[0] | {"function_call": {}}]}, "messages[0].function_call", "not supported"),
        ({"sp": 3}, "sp", "send an object"),
        ({"sp": {"keep_ration": 0.1}}, "sp", "did you mean 'keep_ratio'"),
        ({"sp": {"keep_ratio": 0}}, "sp", "above 0"),
        ({"sp": {"keep_ratio": -(2**53)}}, "sp", "above 0"),
        ({"sp": {"keep_ratio": "0.1"}}, "sp", "must be"),
        ({"sp": {"scorer": "tial"}}, "sp", "did you mean 'tail'"),
        ({"sp": {"scorer": "x" * 1000}}, "sp", "longer than any name"),
        ({"sp": {"scorer": "leave_one_out"}}, "sp", "for evaluations"),
        ({"sp": {"scorer": "answer_attention"}}, "sp", "for evaluations"),
        ({"sp": {"selector": "top"}}, "sp", "unknown selector"),
        ({"sp": {"alpha": -1}}, "sp", "alpha"),
        ({"sp": {"alpha": 0.1, "scorer": "random"}}, "sp", "leave it out"),
        ({"sp": {"off": 1}}, "sp", "off"),
        ({"sp": {"off": True, "compress": "always"}}, "sp", "one of them"),
        ({"sp": {"threshold": -5}}, "sp.threshold", "from 0"),
        ({"sp": {"protect": "all"}}, "sp", "protect"),
    ],
)
def test_the_field_at_fault_is_named(body: dict[str, Any], param: str, said: str) -> None:
    with pytest.raises(RequestError, match=said) as caught:
        parse(**body)
    assert caught.value.param == param
    assert 400 <= caught.value.status < 500


@pytest.mark.parametrize(
    ("body", "param", "said"),
    [
        ({"mesages": 1}, "mesages", "did you mean 'messages'"),
        ({"prompt": "x"}, "prompt", "unknown field"),
        ({"messages": [HELLO[0] | {"depth": 3}]}, "messages[0].depth", "is unknown"),
    ],
)
def test_unknown_fields_are_ignored_and_told_or_refused(body: dict[str, Any], param: str, said: str) -> None:
    assert parse(**body).ignored == (f"{param}: unknown field",)
    with pytest.raises(RequestError, match=said) as caught:
        parse_request("chat", {"messages": HELLO} | body, Defaults(strict_fields=True))
    assert caught.value.param == param


def test_what_is_null_is_left_out() -> None:
    names = ("max_tokens", "n", "tools", "stop", "stream", "sp", "logit_bias", "unheard_of")
    assert parse(**dict.fromkeys(names)) == parse()
    assert not parse(tools=[tool(strict=None, description=None)]).ignored
    assert not parse(stream_options={"include_usage": None}, response_format={"type": "text", "x": None}).ignored
    assert parse(stream_options={"chunks": 3}).ignored == ("stream_options.chunks: unknown field",)


@pytest.mark.parametrize(
    ("raw", "value"),
    [("1e400", 10**400), ("-2.5E400", -25 * 10**399), ("9" * 4300, int("9" * 4300)), ("1" * 21, int("1" * 21))],
    ids=["exponent", "negative", "longest", "long"],
)
def test_numbers_of_schemas_are_data(raw: str, value: int) -> None:
    found = parse_json(f'{{"tools": [{{"bound": {raw}}}], "a": 1e300}}'.encode())
    assert found == {"tools": [{"bound": value}], "a": 1e300}
    assert json.loads(json.dumps(found)) == found
    with pytest.raises(RequestError, match="digits; only schemas") as caught:
        parse_json(f'{{"seed": [{raw}]}}'.encode())
    assert caught.value.param == "seed"


LARGE = st.sampled_from([10**20, -(10**400), 10**4299])


@given(LARGE, st.sampled_from(["tools", "messages", "response_format", "text", "metadata"]), st.data())
@settings(max_examples=60, deadline=None)
def test_large_numbers_anywhere_in_data_are_taken_or_refused(large: int, name: str, data: Any) -> None:
    schema = {"type": "object", "properties": {"a": {"maximum": 1}}}
    whole: Any = {
        "messages": [{"role": "user", "content": "hi"}, say(tool_calls=[call()]), result()],
        "tools": [tool(parameters=schema, strict=True, description="x")],
        "response_format": {"type": "json_schema", "json_schema": {"name": "x", "strict": True, "schema": schema}},
        "text": {"a": [1]},
        "metadata": {"a": "b"},
    }
    at = whole
    keys = [name]
    while isinstance(at[keys[-1]], dict | list) and at[keys[-1]] and data.draw(st.booleans()):
        at = at[keys[-1]]
        keys.append(data.draw(st.sampled_from(list(at) if isinstance(at, dict) else list(range(len(at))))))
    at[keys[-1]] = large
    try:
        parse(**whole)
    except RequestError as error:
        body = error.body()["error"]
        assert len(body["message"]) <= 300
        assert body["param"] in body["message"]


def test_many_lines_are_not_all_told() -> None:
    told = parse(**{f"x{n}": 1 for n in range(99)}).ignored
    assert len(told) == 32
    assert told[-1] == "and 68 more"


@pytest.mark.parametrize(("asked", "most"), [(-1, 64), (65, 64), (2**53, 64), (63, 63)])
def test_the_longest_answer_is_the_server_s(asked: int, most: int) -> None:
    assert parse(max_tokens=asked).options.max_new_tokens == most
    assert parse(max_completion_tokens=asked).options.max_new_tokens == most


def test_seeds_below_zero() -> None:
    assert parse(seed=-1).options.seed == 2**53 - 1
    assert parse(seed=-1, temperature=1).options.decode.seed == 2**53 - 1


@pytest.mark.parametrize("prompt", [[], ["a", "b"], [1, "a"], [-1], [True], [[1], [2]], [[]], [["a"]], 3])
def test_what_is_no_prompt(prompt: Any) -> None:
    with pytest.raises(RequestError) as caught:
        parse_request("completion", {"prompt": prompt}, DEFAULTS)
    assert caught.value.param == "prompt"


def test_a_request_changes_only_what_it_names() -> None:
    job = parse(sp={"keep_ratio": 0.25, "scorer": "lookahead", "alpha": 0.2}, max_tokens=9, seed=3, user="me", n=1)
    assert (job.options.keep_ratio, job.options.max_new_tokens, job.options.seed) == (0.25, 9, 3)
    assert job.options.scorer.sparse == "alpha:0.2"
    assert job.options.selector == DEFAULTS.options.selector
    assert parse(sp={"selector": "alpha", "alpha": 0.2}).options.selector.alpha == 0.2
    assert parse(sp={"off": True}).options.compress == "off"
    assert parse(sp=None).options == DEFAULTS.options
    assert parse(temperature=0, top_p=0.9, tool_choice="auto", logit_bias={}).options == DEFAULTS.options


def test_tools_and_how_they_may_be_called() -> None:
    assert parse(tools=[LOOK]).tools == ToolUse((LOOK,))
    assert parse(tools=[LOOK], tool_choice="auto", parallel_tool_calls=False).tools == ToolUse((LOOK,), single=True)
    assert parse(tools=[LOOK], tool_choice="none").tools == ToolUse()
    assert parse(tools=[LOOK], tool_choice="required").tools == ToolUse((LOOK,), True, "look")
    second = {"type": "function", "function": {"name": "find"}}
    assert parse(tools=[LOOK, second], tool_choice="required").tools == ToolUse((LOOK, second), True)
    named = {"type": "function", "function": {"name": "find"}}
    assert parse(tools=[LOOK, second], tool_choice=named).tools == ToolUse((LOOK, second), True, "find", True)


def test_calls_and_results_as_clients_send_them_back() -> None:
    sent = say(tool_calls=[call(arguments='{"at": 1}')], refusal=None, annotations=[], audio=None, function_call=None)
    said = parse(messages=[*HELLO, sent, result()]).messages
    assert said[1] == {"role": "assistant", "reasoning": "", "calls": (Call("look", {"at": 1}, "c1"),), "parts": [""]}
    assert said[2] == {"role": "tool", "call_id": "c1", "name": "look", "parts": ["seen"]}
    assert parse(messages=[*HELLO, say(tool_calls=[call(arguments="")]), result(content="")]).messages[2]["parts"] == [
        ""
    ]


JSON = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | st.text(max_size=8),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=8), inner, max_size=3),
    max_leaves=8,
)
NAMES = st.sampled_from(["messages", "max_tokens", "seed", "stop", "stream", "sp", "tools", "tool_choice", "n",
                         "temperature", "x", "user"])  # fmt: skip


@given(st.sampled_from(["chat", "completion"]), st.dictionaries(NAMES, JSON, max_size=4))
@settings(max_examples=80, deadline=None)
def test_any_json_is_a_request_or_an_error_that_can_be_sent(kind: Any, body: dict[str, Any]) -> None:
    told = None
    try:
        parse_request(kind, parse_json(json.dumps({"messages": HELLO, "prompt": "x"} | body).encode()), DEFAULTS)
    except RequestError as error:
        told = error
    if told is not None:
        assert 400 <= told.status < 500
        assert len(json.dumps(told.body(), ensure_ascii=False).encode()) < 4000
