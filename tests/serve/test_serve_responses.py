"""`/v1/responses`: shapes, the order of events, tools over several turns, and what is refused or ignored."""

from __future__ import annotations

import json
import re
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import serving as tool
import web
from hypothesis import given, settings
from hypothesis import strategies as st
from test_serve_thinking import thoughtful
from test_serve_tools import ONE, SEEN, TWO, scripted
from thinking_templates import SWITCHED
from tool_templates import READ, TAGGED

from sp.serve.fields import RequestError
from sp.serve.options import Defaults
from sp.serve.protocol import parse_json
from sp.serve.responses.request import ResponsesRequest
from sp.session import Conversations, Pipeline

openai = pytest.importorskip("openai")

from openai.types import responses as types  # noqa: E402
from pydantic import TypeAdapter  # noqa: E402

EVENT: Any = TypeAdapter(types.ResponseStreamEvent)
DEFAULTS = Defaults(max_new_tokens=64)
TOOL: Any = {"type": "function", **READ["function"], "strict": True}
LISTING: Any = {"type": "function", "name": "list_files", "parameters": None, "strict": None}
BOTH = [TOOL, LISTING]
CALL: Any = {"type": "function_call", "call_id": "c1", "name": "read_file", "arguments": '{"path": "a.py"}'}
SEEN_IT: Any = {"type": "function_call_output", "call_id": "c1", "output": "seen"}
TEXT = ["content_part.added", "output_text.delta", "output_text.done", "content_part.done"]
THOUGHT = ["reasoning_summary_part.added", "reasoning_summary_text.delta", "reasoning_summary_text.done",
           "reasoning_summary_part.done"]  # fmt: skip
CALLED = ["function_call_arguments.delta", "function_call_arguments.done"]


@pytest.fixture(scope="module")
def agent(pair: Pipeline) -> Iterator[tool.Running]:
    with tool.serving(scripted(pair, TAGGED, TWO), answer=256) as running:
        yield running


@pytest.fixture(scope="module")
def thinker(pair: Pipeline) -> Iterator[tool.Running]:
    with tool.serving(thoughtful(pair, SWITCHED)) as running:
        yield running


def post(server: tool.Running, **body: Any) -> Any:
    return web.post(f"{server.url}/v1/responses", json={"input": "Who is there?"} | body)


def events(server: tool.Running, **body: Any) -> list[dict[str, Any]]:
    """Those of a stream, each as the client's library knows it, under its own name."""
    found = []
    for block in post(server, stream=True, **body).text.removesuffix("\n\n").split("\n\n"):
        if block.startswith(": "):  # a comment, where the answer takes a while
            continue
        name, data = block.split("\n")
        value = json.loads(data.removeprefix("data: "))
        assert name == f"event: {value['type']}"
        EVENT.validate_python(value)
        found.append(value)
    assert [each["sequence_number"] for each in found] == list(range(len(found)))
    return found


def order(found: list[dict[str, Any]]) -> list[str]:
    """The names of events; of deltas in a row one."""
    names = [each["type"].removeprefix("response.") for each in found]
    return [name for at, name in enumerate(names) if not name.endswith("delta") or names[at - 1] != name]


def item(*inner: str) -> list[str]:
    return ["output_item.added", *inner, "output_item.done"]


def test_a_whole_answer(server: tool.Running) -> None:
    told = post(server, metadata={"a": "b"}, user="me", temperature=0, instructions="Be brief.").json()
    types.Response.model_validate(told)
    (message,) = told["output"]
    (part,) = message["content"]
    assert told["id"].startswith("resp_")
    assert (told["object"], told["status"], told["error"]) == ("response", "completed", None)
    assert (message["type"], message["role"], message["status"]) == ("message", "assistant", "completed")
    assert (part["type"], part["annotations"]) == ("output_text", [])
    assert (told["metadata"], told["user"], told["instructions"]) == ({"a": "b"}, "me", "Be brief.")
    usage = told["usage"]
    assert usage["total_tokens"] == usage["input_tokens"] + usage["output_tokens"]
    assert usage["input_tokens_details"]["cached_tokens"] == 0
    assert usage["output_tokens_details"] == {"reasoning_tokens": 0}
    assert usage["sp"]["question"]["found"] == "turn"


def test_it_says_what_a_chat_says(server: tool.Running) -> None:
    key, value = tool.TASKS[2]
    parts = tool.chat(key, value)[0]["content"]
    chat = web.post(f"{server.url}/v1/chat/completions", json={"messages": tool.chat(key, value), **tool.ALWAYS}).json()
    said = [{"role": "user", "content": [{"type": "input_text", "text": part["text"]} for part in parts]}]
    told = post(server, input=said, max_output_tokens=12, **tool.ALWAYS).json()
    assert told["output"][0]["content"][0]["text"] == chat["choices"][0]["message"]["content"]
    assert told["usage"]["input_tokens"] == chat["usage"]["prompt_tokens"]
    assert told["usage"]["sp"]["compressed"]


def test_the_order_of_events(server: tool.Running) -> None:
    found = events(server)
    assert order(found) == ["created", "in_progress", *item(*TEXT), "completed"]
    said = "".join(each["delta"] for each in found if each["type"].endswith("text.delta"))
    whole = post(server).json()
    assert said == whole["output"][0]["content"][0]["text"]
    assert found[-1]["response"]["output"][0]["content"][0]["text"] == said
    assert found[-1]["response"]["usage"]["output_tokens"] == whole["usage"]["output_tokens"]
    assert found[0]["response"]["output"] == []
    assert found[2]["item"]["content"] == []
    assert len({each["response"]["id"] for each in found if "response" in each}) == 1


def test_thinking_is_an_item_of_its_own(thinker: tool.Running) -> None:
    found = events(thinker)
    assert order(found) == ["created", "in_progress", *item(*THOUGHT), *item(*TEXT), "completed"]
    thought, said = found[-1]["response"]["output"]
    assert (thought["type"], thought["summary"][0]["text"]) == ("reasoning", "Is it <b>?\nIt is.")
    assert said["content"][0]["text"] == "Yes, it is: </think>."
    assert found[-1]["response"]["usage"]["output_tokens_details"]["reasoning_tokens"] > 0
    assert [each["type"] for each in post(thinker).json()["output"]] == ["reasoning", "message"]
    again = [{"role": "user", "content": "Is it?"}, thought, said, {"role": "user", "content": "Sure?"}]
    assert post(thinker, input=again).json()["status"] == "completed"


def test_an_effort_that_the_model_cannot_be_told_is_ignored(thinker: tool.Running) -> None:
    told = post(thinker, reasoning={"effort": "high", "summary": "auto"}).json()
    assert told["reasoning"]["effort"] == "high"
    assert told["usage"]["sp"]["ignored"] == [
        "reasoning.effort: the chat template reads no reasoning_effort, so high has no effect"
    ]
    assert [each["type"] for each in post(thinker, reasoning={"effort": "none"}).json()["output"]]


def test_calls_of_tools_and_their_results(agent: tool.Running) -> None:
    found = events(agent, tools=[*BOTH, {"type": "web_search"}], max_output_tokens=200)
    assert order(found) == ["created", "in_progress", *item(*TEXT), *item(*CALLED), *item(*CALLED), "completed"]
    output = found[-1]["response"]["output"]
    assert [each["type"] for each in output] == ["message", "function_call", "function_call"]
    assert json.loads(output[1]["arguments"]) == {"path": "a.py", "all": True}
    assert found[-1]["response"]["tools"] == BOTH
    assert found[-1]["response"]["usage"]["sp"]["ignored"] == [
        "tools[2]: tools of type web_search are not shown to the model"
    ]
    results = [
        {"type": "function_call_output", "call_id": each["call_id"], "output": f"seen by {each['call_id']}"}
        for each in output[1:]
    ]
    turns = [{"role": "user", "content": "What is in a.py?"}, *output, *results]
    for _ in range(2):
        told = post(agent, input=turns, tools=BOTH).json()
        assert told["status"] == "completed", told
        ids = [each["call_id"] for each in output[1:]]
        assert f"<|im_start|>assistant\n{TWO}<|im_end|>\n<|im_start|>user\n<tool_response>\nseen by {ids[0]}" in (
            SEEN[-1].text
        )
        again = [each for each in told["output"] if each["type"] == "function_call"]
        turns += [*told["output"], *({**SEEN_IT, "call_id": each["call_id"]} for each in again)]


def test_results_stand_behind_their_calls_wherever_they_came(agent: tool.Running) -> None:
    second = {**CALL, "call_id": "c2"}
    turns = [{"role": "user", "content": "x"}, CALL, second, {**SEEN_IT, "call_id": "c2", "output": "two"}, SEEN_IT]
    post(agent, input=turns, tools=[TOOL])
    assert SEEN[-1].text.count("<tool_response>\nseen\n</tool_response>\n<tool_response>\ntwo\n") == 1
    parts = [{"type": "input_text", "text": "one"}, {"type": "input_text", "text": "two"}]
    post(agent, input=[turns[0], CALL, {**SEEN_IT, "output": parts}], tools=[TOOL])
    assert "<tool_response>\none\n\ntwo\n</tool_response>" in SEEN[-1].text


@pytest.mark.parametrize(
    ("choice", "types_"),
    [
        ("required", ["function_call"]),
        ({"type": "function", "name": "read_file"}, ["function_call"]),
        ({"type": "allowed_tools", "mode": "required", "tools": [{"type": "function", "name": "read_file"}]},
         ["function_call"]),
        ("none", ["message"]),
        ({"type": "web_search"}, ["message", "function_call", "function_call"]),
    ],
)  # fmt: skip
def test_choices_of_tools(agent: tool.Running, choice: Any, types_: list[str]) -> None:
    told = post(agent, tools=BOTH, tool_choice=choice, parallel_tool_calls=not isinstance(choice, str)).json()
    assert [each["type"] for each in told["output"]][: len(types_)] == types_
    types.Response.model_validate(told)


def test_an_answer_that_is_cut(server: tool.Running) -> None:
    told = post(server, input="What colour is grass?", max_output_tokens=1).json()
    assert (told["status"], told["incomplete_details"]) == ("incomplete", {"reason": "max_output_tokens"})
    assert told["output"][0]["status"] == "incomplete"
    assert order(events(server, max_output_tokens=1))[-1] == "incomplete"


def test_a_format(server: tool.Running) -> None:
    pytest.importorskip("llguidance")
    schema = {"type": "object", "properties": {"n": {"enum": [1, 2]}}, "required": ["n"], "additionalProperties": False}
    form = {"type": "json_schema", "name": "found", "schema": schema, "strict": True}
    told = post(server, text={"format": form, "verbosity": "low"}, max_output_tokens=16).json()
    assert json.loads(told["output"][0]["content"][0]["text"])["n"] in (1, 2)
    assert told["text"]["format"] == form
    assert told["usage"]["sp"]["ignored"] == ["text.verbosity: has no effect"]
    wrong = post(server, text={"format": {**form, "schema": {"type": "foo"}}})
    assert wrong.status_code == 400
    assert wrong.json()["error"]["param"] == "text.format"
    assert "text.format: this schema is not supported" in wrong.json()["error"]["message"]


def test_log_probabilities(server: tool.Running) -> None:
    found = events(server, include=["message.output_text.logprobs"], top_logprobs=2)
    told = [one for each in found if each["type"].endswith("text.delta") for one in each["logprobs"]]
    part = found[-1]["response"]["output"][0]["content"][0]
    assert part["logprobs"] == told
    assert "".join(one["token"] for one in told) == part["text"]
    assert {len(one["top_logprobs"]) for one in told} == {2}


def test_turns_go_on_with_their_session(pair: Pipeline) -> None:
    with tool.serving(pair, talks=Conversations(pair)) as running:
        turns: list[Any] = [{"role": "user", "content": tool.document(*tool.TASKS[0])}]
        for asked in ("Who?", "And then?"):
            told = post(running, input=turns, max_output_tokens=4).json()
            turns += [*told["output"], {"role": "user", "content": asked}]
        assert told["usage"]["input_tokens_details"]["cached_tokens"] > 50
        assert told["usage"]["sp"]["session"] == "hit"


def test_what_is_too_long_says_so_and_what_leaves_room_is_answered() -> None:
    narrow = tool.load()
    narrow.target.model.config = replace(narrow.target.model.config, context=60)
    with tool.serving(narrow) as running:
        error = post(running, input="a b c " * 100).json()["error"]
        assert error["code"] == "context_length_exceeded"
        assert error["type"] == "invalid_request_error"
        told = post(running, input="Who is there, and why? " * 2, sp={"off": True}, max_output_tokens=60)
        assert told.status_code == 200, told.text


@pytest.mark.parametrize(
    ("body", "param", "said"),
    [
        ({"previous_response_id": "resp_1"}, "previous_response_id", "stores no responses; send the whole"),
        ({"background": True}, "background", "leave it out"),
        ({"conversation": "conv_1"}, "conversation", "send the whole conversation"),
        ({"prompt": {"id": "p"}}, "prompt", "send instructions and input"),
        ({"input": []}, "input", "1 to"),
        ({"input": None}, "input", "a text, or a list"),
        ({"input": [3]}, "input[0]", "without a type"),
        ({"input": [{"role": "usr", "content": "x"}]}, "input[0].role", "use one of"),
        ({"input": [{"role": "user", "content": [{"type": "input_image"}]}]}, "input[0].content[0]", "text only"),
        ({"input": [{"type": "item_reference", "id": "x"}]}, "input[0]", "send the item itself"),
        ({"input": [{"type": "web_search_call"}]}, "input", "no message"),
        ({"input": [SEEN_IT]}, "input[0].call_id", "matches no function_call"),
        ({"input": [CALL]}, "input[0]", "no function_call_output answers 'c1'"),
        ({"input": [CALL, CALL, SEEN_IT]}, "input[1].call_id", "twice"),
        ({"input": [CALL, SEEN_IT, SEEN_IT]}, "input[2].call_id", "already"),
        ({"input": [CALL | {"arguments": "{"}, SEEN_IT]}, "input[0].arguments", "JSON object"),
        ({"input": [CALL | {"name": "<x>"}, SEEN_IT]}, "input[0].name", "letters"),
        ({"input": [CALL, SEEN_IT | {"output": None}]}, "input[1].output", "send a string"),
        ({"instructions": ["x"]}, "instructions", "send a string"),
        ({"max_output_tokens": 0}, "max_output_tokens", "from 1"),
        ({"temperature": 3}, "temperature", "from 0 to 2"),
        ({"tools": [{"name": "x"}]}, "tools[0]", "no type"),
        ({"tools": [{"type": "web_search"}, {"type": "function", "name": "a b"}]}, "tools[1].name", "letters"),
        ({"tool_choice": "required"}, "tool_choice", "no tools"),
        ({"text": {"format": {"type": "xml"}}}, "text.format", "text.format.type is 'xml'"),
        ({"text": {"format": {"type": "json_schema", "name": "x"}}}, "text.format", "schema is not an object"),
        ({"reasoning": {"effort": 3}}, "reasoning.effort", "send a string"),
        ({"reasoning": "low"}, "reasoning", "an object"),
        ({"sp": {"keep_ration": 1}}, "sp", "did you mean"),
        ({"user": "\ud800"}, "user", "lone surrogate"),
        ({"metadata": {"\ud800": "a"}}, "metadata", "lone surrogate"),
        ({"text": {"verbosity": "\ud800"}}, "text", "lone surrogate"),
        ({"reasoning": {"summary": "\ud800"}}, "reasoning", "lone surrogate"),
    ],
)  # fmt: skip
def test_the_field_at_fault_is_named(body: dict[str, Any], param: str, said: str) -> None:
    with pytest.raises(RequestError, match=said.replace("[", r"\[")) as caught:
        ResponsesRequest.of({"input": "x"} | body).job(DEFAULTS, lambda job: job)
    assert caught.value.param == param
    assert len(str(caught.value)) <= 300


def test_items_of_an_agent_become_turns() -> None:
    items = [
        {"type": "message", "role": "developer", "content": [{"type": "input_text", "text": "Rules."}]},
        {"type": "message", "role": "user", "content": "Hi"},
        {"type": "reasoning", "id": "rs_1", "summary": [{"type": "summary_text", "text": "Hm."}]},
        {"type": "message", "role": "assistant", "id": "m", "content": [{"type": "output_text", "text": "So."}]},
        CALL,
        {"type": "local_shell_call", "call_id": "z"},
        SEEN_IT,
        {"role": "user", "content": "Go on."},
    ]  # fmt: skip
    asked = ResponsesRequest.of({"instructions": "Be brief.", "input": items})
    assert [each["role"] for each in asked.body["messages"]] == ["system", "user", "assistant", "tool", "user"]
    assert [part["text"] for part in asked.body["messages"][0]["content"]] == ["Be brief.", "Rules."]
    said = asked.body["messages"][2]
    assert (said["reasoning_content"], said["content"][0]["text"], len(said["tool_calls"])) == ("Hm.", "So.", 1)
    assert asked.ignored == ["input[5]: items of type local_shell_call are not shown to the model"]


def test_functions_of_a_namespace(pair: Pipeline) -> None:
    space = {
        "type": "namespace",
        "name": "mcp__files",
        "description": "Files.",
        "tools": [TOOL, {"type": "custom", "name": "x"}],
    }
    said = ONE.replace("read_file", "mcp__files__read_file")
    with tool.serving(scripted(pair, TAGGED, said), answer=256) as running:
        found = events(running, tools=[{"type": "web_search"}, space])
        (call,) = found[-1]["response"]["output"]
        assert (call["name"], call["namespace"]) == ("read_file", "mcp__files")
        assert found[-1]["response"]["tools"] == [space]
        assert [each.split(":")[0] for each in found[-1]["response"]["usage"]["sp"]["ignored"]] == [
            "tools[0]", "tools[1].tools[1]",
        ]  # fmt: skip
        turns = [{"role": "user", "content": "x"}, call, {**SEEN_IT, "call_id": call["call_id"]}]
        choice = {"type": "function", "name": "read_file", "namespace": "mcp__files"}
        told = post(running, input=turns, tools=[space], tool_choice=choice).json()
        assert told["output"][0]["namespace"] == "mcp__files"
        assert f"assistant\n{said}<|im_end|>" in SEEN[-1].text
        wrong = {**space, "tools": [{**TOOL, "name": "a b"}]}
        error = post(running, tools=[wrong]).json()["error"]
        assert error["param"] == "tools[0].tools[0].name"


def test_a_later_system_message_that_no_template_shows_is_the_user_s(agent: tool.Running) -> None:
    turns = [{"role": "user", "content": "x"}, {"role": "developer", "content": "Be careful."}]
    told = post(agent, input=turns, tools=[TOOL]).json()  # with tools the template shows the first alone
    assert "<|im_start|>user\nBe careful.<|im_end|>" in SEEN[-1].text
    assert told["usage"]["sp"]["ignored"][0].startswith("input[1].role: shown as the user's")
    told = post(agent, input=turns).json()
    assert "<|im_start|>system\nBe careful.<|im_end|>" in SEEN[-1].text
    assert "ignored" not in told["usage"]["sp"]


def test_unknown_fields_are_told_or_refused() -> None:
    job = ResponsesRequest.of({"input": "x", "depth": 3, "frequency": None}).job(DEFAULTS, lambda job: job)
    assert job.ignored == ("depth: unknown field",)
    with pytest.raises(RequestError, match="unknown field 'depth'"):
        ResponsesRequest.of({"input": "x", "depth": 3}, replace(DEFAULTS, strict_fields=True))


def test_a_failure_late_in_a_stream_is_an_event(pair: Pipeline, monkeypatch: pytest.MonkeyPatch) -> None:
    from sp.serve import worker

    def broken(*_: Any) -> Any:
        raise RuntimeError("broken")

    monkeypatch.setattr(worker, "usage", broken)
    with tool.serving(pair) as running:
        found = events(running)
    assert found[-1]["type"] == "response.failed"
    assert found[-1]["response"]["status"] == "failed"
    assert found[-1]["response"]["error"]["code"] == "server_error"


JSON = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | st.text(max_size=8)
    | st.sampled_from(["function", "function_call", "function_call_output", "message", "reasoning", "user", "c1"]),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(
        st.text(max_size=4) | st.sampled_from(["type", "role", "content", "call_id", "output", "summary", "name",
                                               "text", "format", "arguments", "effort", "tools"]), inner, max_size=4),
    max_leaves=12,
)  # fmt: skip
NAMES = st.sampled_from(["input", "instructions", "tools", "tool_choice", "text", "reasoning", "include", "metadata",
                         "sp", "max_output_tokens", "stream", "store", "user", "top_logprobs", "x"])  # fmt: skip


@given(st.dictionaries(NAMES, JSON, max_size=4))
@settings(max_examples=150, deadline=None)
def test_any_json_is_a_request_or_an_error_that_can_be_sent(body: dict[str, Any]) -> None:
    told = None
    try:
        given_ = parse_json(json.dumps({"input": "x"} | body).encode())
        job = ResponsesRequest.of(given_).job(DEFAULTS, lambda job: job)
        json.dumps(job.ignored, ensure_ascii=False).encode()
    except RequestError as error:
        told = error
    if told is not None:
        assert 400 <= told.status < 500
        message = told.body()["error"]["message"]
        assert len(message) <= 300
        assert "\n" not in message


def test_the_example_of_the_page(agent: tool.Running, capsys: pytest.CaptureFixture[str]) -> None:
    page = (Path(__file__).parents[2] / "docs" / "server.md").read_text()
    (example,) = (each for each in re.findall(r"```python\n(.*?)```", page, re.DOTALL) if "responses.create" in each)
    exec(example.replace("http://127.0.0.1:8000", agent.url), {})
    assert capsys.readouterr().out


@pytest.mark.parametrize("said", [ONE, "Text."])
def test_the_client_of_python(pair: Pipeline, said: str) -> None:
    """`create` and `stream` over several turns, a tool among them."""
    with tool.serving(scripted(pair, TAGGED, said), answer=256) as running:
        api, turns = tool.client(running).responses, [{"role": "user", "content": "What is in a.py?"}]
        for turn in range(3):
            if turn % 2:
                with api.stream(model="x", input=turns, tools=[TOOL]) as stream:
                    list(stream)
                    reply = stream.get_final_response()
            else:
                reply = api.create(model="x", input=turns, tools=[TOOL])
            assert reply.output_text == ("" if said == ONE else "Text.")
            assert reply.usage.sp["kept"] > 0
            turns += reply.output
            turns += [
                {"type": "function_call_output", "call_id": each.call_id, "output": "seen"}
                for each in reply.output
                if each.type == "function_call"
            ]
            turns.append({"role": "user", "content": "And then?"})
        with pytest.raises(openai.BadRequestError, match="previous_response_id"):
            api.create(model="x", input="x", previous_response_id=reply.id)
