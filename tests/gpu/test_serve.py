"""The server with its pair on the device: answers are the pipeline's own, memory comes back, a full GPU is told."""

from __future__ import annotations

import asyncio
import gc
import json
from dataclasses import replace
from typing import Any

import cupy
import pytest

httpx = pytest.importorskip("httpx")
pytest.importorskip("starlette")
pytest.importorskip("uvicorn")
pytest.importorskip("prometheus_client")

import serving as tool  # noqa: E402

from sp.kernels.device import device_count, nccl_version  # noqa: E402
from sp.serve.messages import chat_prompt  # noqa: E402
from sp.session import Pipeline, embedded  # noqa: E402

TASKS = [(f"{a}-{b}", 1372619 * n + 1358274) for n, (a, b) in enumerate((a, b) for a in ("quiet", "cloudy", "amber")
         for b in ("lantern", "coral"))]  # fmt: skip
LENGTHS = (4, 40, 120)  # repeats of the filler


@pytest.fixture(scope="module")
def pair() -> Pipeline:
    return tool.load("cuda")


def body(number: int, **changes: Any) -> dict[str, Any]:
    key, value = TASKS[number % len(TASKS)]
    parts = [tool.document(key, value, LENGTHS[number % len(LENGTHS)]), tool.question(key)]
    messages = [{"role": "user", "content": [{"type": "text", "text": part} for part in parts]}]
    return {"messages": messages, "sp": {"compress": "always"}, "max_tokens": 12} | changes


def own_answer(pair: Pipeline, number: int) -> str:
    key, value = TASKS[number % len(TASKS)]
    parts = [tool.document(key, value, LENGTHS[number % len(LENGTHS)]), tool.question(key)]
    prompt = chat_prompt(({"role": "user", "parts": parts},), (), pair.target.template, pair.target.tokenizer)
    result = pair.run(prompt, replace(tool.OPTIONS, compress="always"), full=False)
    return pair.target.tokenizer.decode(result.answer.tokens)


def test_under_load_every_answer_is_the_pipelines_own_and_memory_comes_back(pair: Pipeline) -> None:
    expected = [own_answer(pair, number) for number in range(6)]
    pool = cupy.get_default_memory_pool()

    async def polite(http: Any, number: int) -> str:
        reply = await http.post("/v1/chat/completions", json=body(number))
        assert reply.status_code == 200, reply.text
        return str(reply.json()["choices"][0]["message"]["content"])

    async def leaving(http: Any, number: int) -> None:
        async with http.stream("POST", "/v1/chat/completions", json=body(number, stream=True)) as reply:
            async for _ in reply.aiter_bytes():
                return

    async def malformed(http: Any, number: int) -> None:
        headers = {"content-type": "application/json"}
        reply = await http.post("/v1/chat/completions", content=json.dumps({"messages": number}), headers=headers)
        assert reply.status_code == 400

    async def everyone(url: str) -> list[Any]:
        async with httpx.AsyncClient(base_url=url, timeout=60, limits=httpx.Limits(max_connections=None)) as http:
            crowd = [polite(http, n) for n in range(18)] + [leaving(http, n) for n in range(4)]
            return await asyncio.gather(*crowd, *(malformed(http, n) for n in range(4)))

    with tool.serving(pair) as server:
        used = []
        for _ in range(2):
            answers = asyncio.run(everyone(server.url))
            tool.until(lambda: not server.worker.state["running"] and not server.worker.state["waiting"])
            assert answers[:18] == [expected[number % 6] for number in range(18)]
            gc.collect()
            used.append(pool.used_bytes())
        assert used[1] <= used[0]


def test_answers_do_not_depend_on_how_they_are_decoded_nor_on_who_leaves(pair: Pipeline) -> None:
    expected = [own_answer(pair, number) for number in range(3)]
    with tool.serving(pair.with_speculator(embedded("draft"))) as server, httpx.Client(base_url=server.url) as http:
        for number, decode in ((n, how) for how in ("ddtree", "greedy", "dflash", "ddtree") for n in range(3)):
            given = body(number, sp={"compress": "always", "decode": decode})
            with http.stream("POST", "/v1/chat/completions", json=given | {"stream": True}, timeout=60) as reply:
                next(reply.iter_bytes())  # and away in the middle of an answer
            reply = http.post("/v1/chat/completions", json=given, timeout=60).json()
            assert reply["choices"][0]["message"]["content"] == expected[number]
            length = reply["usage"]["sp"]["acceptance_length"]
            assert (length is None) == (decode == "greedy")


def test_a_budget_that_is_too_small_refuses_one_request_and_the_next_is_served(pair: Pipeline) -> None:
    expected = own_answer(pair, 2)
    with tool.serving(pair) as server:
        sessions = server.worker._sessions
        sessions.pipeline = pair.within(1 << 20)
        reply = httpx.post(f"{server.url}/v1/chat/completions", json=body(2), timeout=60)
        assert reply.status_code == 400, reply.text
        assert "GiB at least, and the budget is 0.00 GiB" in reply.json()["error"]["message"]
        sessions.pipeline = pair.within(None)
        reply = httpx.post(f"{server.url}/v1/chat/completions", json=body(2), timeout=60)
        assert reply.json()["choices"][0]["message"]["content"] == expected
        assert reply.json()["usage"]["sp"]["kept_tokens"] < reply.json()["usage"]["prompt_tokens"]


@pytest.mark.skipif(device_count() < 2 or not nccl_version(), reason="needs 2 GPUs and NCCL")
@pytest.mark.parametrize(
    "changes",
    [
        {},
        {"temperature": 0.8, "seed": 5, "n": 2},
        {"response_format": {"type": "json_object"}, "logprobs": True, "top_logprobs": 2, "max_tokens": 24},
    ],
    ids=str,
)
def test_two_cards_serve_the_answers_of_one(pair: Pipeline, changes: dict[str, Any]) -> None:
    found = []
    for served in (pair, Pipeline.open(gpus=2)):
        with tool.serving(served) as server, httpx.Client(base_url=server.url, timeout=60) as http:
            replies = [http.post("/v1/chat/completions", json=body(number, **changes)) for number in (0, 1, 2, 0)]
        assert [reply.status_code for reply in replies] == [200] * 4, replies[-1].text
        found.append([[one["message"] for one in reply.json()["choices"]] for reply in replies])
    assert found[1] == found[0]
    assert found[0][0] == found[0][3]
