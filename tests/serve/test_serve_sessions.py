"""Sessions over HTTP with the `openai` client: found, streamed, forked, left, evicted; and requests that have none."""

from __future__ import annotations

import asyncio
import json
import re
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import replace
from itertools import pairwise
from pathlib import Path
from typing import Any

import pytest
import serving as tool
import web
from command_line import invoke
from serving import client, document, question
from tool_templates import TAGGED, TOOLS

from sp.gguf import ChatTemplate
from sp.selection import SELECTORS
from sp.session import Conversations, Pipeline
from sp.session.disk.shelf import Shelf
from sp.session.store import lasting

openai: Any = pytest.importorskip("openai")

OPTIONS = replace(tool.OPTIONS, compress="always", selector=SELECTORS.build("sentence"))
FACTS = {"quiet-coral": "3254257", "amber-lantern": "2058756", "cloudy-harbor": "5279348", "silver-meadow": "2978347"}


@contextmanager
def remembering(pair: Pipeline, talks: Conversations | None = None, **memory: Any) -> Iterator[tool.Running]:
    """A server with sessions."""
    talks = Conversations(pair, **({"most": 4} | memory)) if talks is None else talks
    with tool.serving(pair, talks=talks, options=OPTIONS) as running:
        yield running


@pytest.fixture(scope="module")
def warm(pair: Pipeline) -> Iterator[tool.Running]:
    """One for tests that do not mind each other's sessions."""
    with remembering(pair, most=16) as running:
        yield running


def asked(facts: dict[str, str], keys: list[str], filler: int = 3) -> list[dict[str, Any]]:
    """A chat: a document of facts with a question, an answer, a question, ..., the last one open."""
    text = " ".join(document(key, int(value), filler) for key, value in facts.items())
    parts = [{"type": "text", "text": part} for part in (text, question(keys[0]))]
    messages: list[dict[str, Any]] = [{"role": "user", "content": parts}]
    for before, key in pairwise(keys):
        messages += [{"role": "assistant", "content": f"{facts[before]}."}, {"role": "user", "content": question(key)}]
    return messages


def ask(server: tool.Running, messages: list[dict[str, Any]], **body: Any) -> tuple[str, Any]:
    reply: Any = client(server).chat.completions.create(model="any", messages=messages, **body)
    assert reply.usage.prompt_tokens == reply.usage.sp["cached"] + reply.usage.sp["new"]
    assert reply.usage.prompt_tokens_details.cached_tokens == reply.usage.sp["cached"]
    return reply.choices[0].message.content, reply.usage


def metric(server: tool.Running, name: str) -> float:
    found = re.search(rf"^{re.escape(name)} (\S+)$", web.get(f"{server.url}/metrics").text, re.MULTILINE)
    assert found, name
    return float(found[1])


def test_turns_go_on_where_the_last_one_stood_and_answers_are_right(pair: Pipeline) -> None:
    """Compressed anew each time half the text answers all of it; a session must not do worse, with less to read."""
    keys = list(FACTS)
    with remembering(pair) as server:
        for turn in range(len(keys)):
            said, usage = ask(server, asked(FACTS, keys[: turn + 1]))
            told = usage.sp
            assert FACTS[keys[turn]] in said
            assert told["session"] == ("hit" if turn else "miss")
            assert told["session_reason"] is None
            assert [each["name"] for each in told["stages"][:2]] == ["render", "find conversation"]
            assert told["recalled"] == sum(each["end"] - each["start"] for each in told["recalls"])
            if turn:
                assert told["new"] < 60 < 300 < told["cached"]
                assert told["drafted"] < 60
                assert told["read"] < told["kept"]
        assert metric(server, 'sp_session_requests_total{found="hit"}') == 3
        assert metric(server, 'sp_session_requests_total{found="miss"}') == 1
        assert metric(server, "sp_sessions") == 1
        assert metric(server, "sp_session_host_bytes") > 1e5
        assert metric(server, "sp_session_device_bytes") == 0
        assert metric(server, 'sp_tokens_total{kind="cached"}') > 900


def test_streamed_turns_say_the_same_with_usage_at_the_end(warm: tool.Running) -> None:
    keys, texts, last = list(FACTS)[:2], [], None
    for count in (1, 2):
        body = {"stream": True, "stream_options": {"include_usage": True}}
        chunks = list(client(warm).chat.completions.create(model="any", messages=asked(FACTS, keys[:count]), **body))
        texts.append("".join(chunk.choices[0].delta.content or "" for chunk in chunks if chunk.choices))
        last = chunks[-1].usage
    assert [FACTS[key] in text for key, text in zip(keys, texts, strict=True)] == [True, True]
    assert last.sp["session"] == "hit"
    assert last.prompt_tokens_details.cached_tokens == last.sp["cached"] > 300


@pytest.mark.slow
def test_clients_that_take_turns_have_sessions_of_their_own(warm: tool.Running) -> None:
    async def talk(api: Any, number: int) -> list[str]:
        facts = {f"{key}-{number}": str(int(value) + number * 1111) for key, value in list(FACTS.items())[:2]}
        keys, found = list(facts), []
        for turn in range(2):
            messages = asked(facts, keys[: turn + 1], 2)
            create = api.chat.completions.create
            reply: Any = await create(
                model="any", messages=messages, user=f"{number}", extra_body={"sp": {"off": True}}
            )
            alone = {"sp": {"off": True, "session": False}}
            by_itself: Any = await create(model="any", messages=messages, user=f"{number}", extra_body=alone)
            assert reply.choices[0].message.content == by_itself.choices[0].message.content
            found.append(reply.usage.sp["session"])
        return found

    async def everyone() -> list[list[str]]:
        async with tool.async_client(warm.url) as api:
            return await asyncio.gather(*(talk(api, number) for number in range(2)))

    for found in asyncio.run(everyone()):
        assert found[1] == "hit"


def test_an_edited_history_forks_and_the_old_one_goes_on(pair: Pipeline) -> None:
    """Everything is read, so that each answer must be that of a run by itself."""
    off = {"sp": {"off": True}}
    alone = {"sp": {"off": True, "session": False}}
    keys = list(FACTS)[:3]
    with remembering(pair) as server:
        messages = asked(FACTS, keys[:2], 1)
        edited = [*messages[:1], {"role": "assistant", "content": "I do not know."}, *messages[2:]]
        for chat, session in (
            (messages[:1], "miss"),
            (messages, "hit"),
            (edited, "fork"),
            (asked(FACTS, keys, 1), "hit"),
            ([*edited, {"role": "assistant", "content": "So?"}, {"role": "user", "content": question(keys[0])}], "hit"),
        ):
            said, usage = ask(server, chat, extra_body=off)
            assert usage.sp["session"] == session
            assert usage.sp["kept"] == usage.prompt_tokens
            if len(chat) > 3 or chat is edited:
                want, by_itself = ask(server, chat, extra_body=alone)
                assert said == want
                assert (by_itself.sp["session"], by_itself.sp["cached"]) == ("none", 0)
        assert metric(server, "sp_sessions") == 2
        assert metric(server, 'sp_session_requests_total{found="fork"}') == 1


class Slow(Conversations):
    """Takes its time for each token of an answer, and notes how many there were."""

    tokens = 0

    def answer(self, prompt: Any, options: Any, on_token: Any = None, **given: Any) -> Any:
        def wait(token: int) -> Any:
            self.tokens += 1
            time.sleep(0.02)
            return on_token(token)

        return super().answer(prompt, options, wait, **given)


def test_a_client_that_leaves_ends_its_turn_and_spoils_nothing(pair: Pipeline) -> None:
    keys, talks = list(FACTS)[:2], Slow(pair, most=2)
    with remembering(pair, talks) as server:
        ask(server, asked(FACTS, keys[:1]))
        talks.tokens = 0
        body = {"messages": asked(FACTS, keys), "stream": True, "max_tokens": 64}
        with web.stream("POST", f"{server.url}/v1/chat/completions", json=body, timeout=30) as reply:
            assert next(line for line in reply.iter_lines() if line.startswith("data: "))
        tool.until(lambda: not server.worker.state["running"])
        assert 0 < talks.tokens < 8  # of the nine that the answer has
        assert metric(server, 'sp_requests_total{outcome="cancelled"}') == 1
        said, usage = ask(server, asked(FACTS, keys))
        assert FACTS[keys[1]] in said
        assert usage.sp["session"] == "hit"
        assert usage.sp["new"] < 60 < 300 < usage.sp["cached"]
        assert metric(server, "sp_sessions") == 1


def test_sessions_go_when_there_is_no_room(pair: Pipeline) -> None:
    key = next(iter(FACTS))
    with remembering(pair, memory=1000) as server:
        for _ in range(2):
            said, usage = ask(server, asked(FACTS, [key]))
            assert FACTS[key] in said
            assert (usage.sp["session"], usage.sp["cached"]) == ("miss", 0)
        assert metric(server, "sp_session_evictions_total") == 2
        assert metric(server, "sp_sessions") == metric(server, "sp_session_host_bytes") == 0
    with remembering(pair, most=1) as server:
        for fact in list(FACTS.items())[:3]:
            ask(server, asked(dict([fact]), [fact[0]], 1))
        assert metric(server, "sp_session_evictions_total") == 2
        assert metric(server, "sp_sessions") == 1


def test_requests_that_can_have_no_session_are_runs_by_themselves_and_told_why(
    pair: Pipeline, server: tool.Running, warm: tool.Running
) -> None:
    messages = asked(FACTS, list(FACTS)[:1], 1)
    for own, reason in (
        ({"scorer": "lookahead"}, "lookahead cannot reuse keys of earlier turns"),
        ({"session": False}, "the request wants none"),
    ):
        said, usage = ask(warm, messages, extra_body={"sp": own})
        assert usage.sp["session"] == "none"
        assert reason in usage.sp["session_reason"]
        want, told = ask(server, messages, extra_body={"sp": own | {"compress": "always", "selector": "sentence"}})
        assert (said, told.sp["kept"]) == (want, usage.sp["kept"])
        assert "--sessions 0" in told.sp["session_reason"]
    long = {"prompt": "The grass is green. " * 20, "sp": {"session": False}, "max_tokens": 2}
    assert web.post(f"{warm.url}/v1/completions", json=long).json()["usage"]["sp"]["session"] == "none"


@pytest.mark.parametrize("way", ["append", "rewind", "off"])
def test_a_request_says_how_things_come_back(warm: tool.Running, way: str) -> None:
    keys = list(FACTS)[::-1][:2]
    own = {"sp": {"recall": way, "keep_ratio": 0.2}}
    ask(warm, asked(FACTS, keys[:1]), extra_body=own)
    _, usage = ask(warm, asked(FACTS, keys), extra_body=own)
    assert usage.sp["session"] == "hit"
    assert {each["way"] for each in usage.sp["recalls"]} == (set() if way == "off" else {way})
    assert bool(usage.sp["recalled"]) == (way != "off")


def test_completions_have_sessions_too(warm: tool.Running) -> None:
    found, key = [], "amber-lantern"
    for own in ({"off": True}, {"off": True}, {"off": True, "session": False}):
        text = f"{document(key, int(FACTS[key]), 8)}\n\n{question(key)}"
        reply: Any = client(warm).completions.create(model="any", prompt=text, max_tokens=8, extra_body={"sp": own})
        told = reply.usage.sp
        found.append((told["session"], told["new"] == 1, reply.choices[0].text))
    assert [each[:2] for each in found] == [("miss", False), ("hit", True), ("none", False)]
    assert found[0][2] == found[1][2] == found[2][2]


@pytest.mark.parametrize(
    ("given", "said"),
    [
        ({"recall": "perhaps"}, "sp.*recall.*perhaps.*append"),
        ({"session": 3}, "sp.*session"),
    ],
)
def test_wrong_fields_are_refused(warm: tool.Running, given: dict[str, Any], said: str) -> None:
    body = {"messages": [{"role": "user", "content": "Hi"}], "sp": given}
    reply = web.post(f"{warm.url}/v1/chat/completions", json=body)
    assert reply.status_code == 400
    assert re.search(said, json.dumps(reply.json()))


@pytest.mark.parametrize(
    ("option", "value", "said"),
    [
        ("--session-memory", "much", "--session-memory takes a size with its unit, such as 24g or 900m, not 'much'"),
        ("--session-vram", "-3g", "--session-vram takes a size"),
        ("--recall", "maybe", "recall"),
        ("--session-keys", "q9", "keys"),
    ],
)
def test_wrong_options_end_with_one_line(option: str, value: str, said: str) -> None:
    result = invoke(["serve", option, value])
    assert result.exit_code != 0
    assert said in (result.stderr or str(result.exception))


def test_the_help_has_an_example() -> None:
    assert "sp serve --sessions 8 --session-memory 40g" in invoke(["serve", "--help"]).output


def test_sessions_go_on_after_a_restart_and_are_told(pair: Pipeline, tmp_path: Path) -> None:
    keys, said = list(FACTS)[:3], []

    def shelf() -> Shelf:
        return Shelf(tmp_path, 1 << 30, lasting(pair), said.append)

    with remembering(pair, most=4, shelf=shelf()) as server:
        for turn in range(2):
            text, usage = ask(server, asked(FACTS, keys[: turn + 1]))
        assert usage.sp["restored"] is False
        tool.until(lambda: metric(server, "sp_session_files") == 1)
        assert metric(server, "sp_session_disk_bytes") > 1e5
    (path,) = tmp_path.glob("*.sp-session")
    with remembering(pair, most=4, shelf=shelf()) as server:
        text, usage = ask(server, asked(FACTS, keys))
        told = usage.sp
        assert FACTS[keys[2]] in text
        assert (told["session"], told["restored"]) == ("hit", True)
        assert told["new"] < 60 < 300 < told["cached"]
        assert told["stages"][1]["name"] == "find conversation"
        assert metric(server, 'sp_session_requests_total{found="hit"}') == 1
    assert list(tmp_path.glob("*.sp-session")) == [path]
    assert "sessions of these models: 1, of others: 0" in said[-1]


@pytest.mark.parametrize("more", [["--replicas", "2"], ["--sessions", "0"]])
def test_a_folder_of_sessions_is_for_one_server_with_sessions(more: list[str], tmp_path: Path) -> None:
    result = invoke(["serve", "--session-dir", str(tmp_path / "x"), *more])
    assert str(result.exception).startswith("--session-dir needs a single server with --sessions of at least 1; omit")
    assert not (tmp_path / "x").exists()


def test_an_agent_that_sends_a_result_again_has_nothing_read_again(pair: Pipeline) -> None:
    """Nothing was asked since what came back for the result came back; agents retry, and change a line of no effect."""
    agent = Pipeline(replace(pair.target, template=ChatTemplate(TAGGED)), pair.drafter)
    messages: list[dict[str, Any]] = [{"role": "user", "content": question("quiet-coral")}]
    with remembering(agent) as server:
        for number, (key, value) in enumerate(FACTS.items()):
            function = {"name": "read_file", "arguments": "{}"}
            call = {"id": f"c{number}", "type": "function", "function": function}
            result = {"role": "tool", "tool_call_id": f"c{number}", "content": document(key, int(value), 6)}
            messages += [{"role": "assistant", "content": "I look.", "tool_calls": [call]}, result]
            (first, before), (again, after) = (ask(server, messages, tools=list(TOOLS)) for _ in range(2))
            assert again == first
            assert before.sp["kept"] < 0.8 * before.prompt_tokens
            assert after.sp["kept"] == before.sp["kept"]
            assert after.sp["cached"] > 0.95 * after.prompt_tokens
