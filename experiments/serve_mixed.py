"""Many clients at once with requests of every kind: each gets what one client alone gets, and nothing is left over.

    python experiments/serve_mixed.py results [--clients 16] [--requests 50]

Appends to results/<machine>/serve_mixed.jsonl. Starts `sp serve` with the embedded pair and asks over its socket:
chats of one string and of several parts, completions, streamed and whole, greedy and sampled by a seed, with log
probabilities, several answers, JSON of a schema, refused ones, and some whose client leaves. First each kind once by
one client, then all at once in an order of chance; memory and open files of the server are read from /proc before and
after.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import random
import re
import subprocess
import sys
import time
from collections import Counter
from pathlib import Path
from typing import Any

import httpx

from sp.bench.record import append, make_record
from sp.evals.text.filler import filler

SCHEMA = {"type": "object", "properties": {"kind": {"enum": ["fact", "story"]}}, "required": ["kind"],
          "additionalProperties": False}  # fmt: skip


def text(number: int, sentences: int) -> str:
    """A document of its own."""
    stream = filler("grammar", random.Random(number))
    return " ".join(next(stream).text for _ in range(sentences))


def kinds() -> list[tuple[str, dict[str, Any]]]:
    """Paths and bodies, all different."""
    chat, made = "chat/completions", []
    for n in range(4):
        one = f"{text(n, 40)}\n\nWhat is the number of quiet-lantern?"
        parts = [{"type": "text", "text": each} for each in (text(n + 9, 6), "What is the sky?")]
        made += [
            (chat, {"messages": [{"role": "user", "content": one}], "sp": {"compress": "always", "keep_ratio": 0.3}}),
            (chat, {"messages": [{"role": "user", "content": parts}], "sp": {"compress": "always", "keep_ratio": 0.7}}),
            (chat, {"messages": [{"role": "user", "content": f"Who is {n}?"}], "temperature": 1.5, "seed": n, "n": 2}),
            (chat, {"messages": [{"role": "user", "content": f"Who was {n}?"}], "logprobs": True, "top_logprobs": 2}),
            (chat, {"messages": [{"role": "user", "content": f"Is it {n}?"}], "response_format": {
                "type": "json_schema", "json_schema": {"name": "x", "schema": SCHEMA}}, "temperature": 1, "seed": n}),
            ("completions", {"prompt": f"The grass is {n}", "logprobs": 1, "temperature": 2, "seed": n, "top_k": 40}),
            ("completions", {"prompt": text(n + 50, 8), "sp": {"off": True}, "stop": ["a"]}),
            (chat, {"messages": [{"role": "user", "content": f"{n}"}], "temperature": 9}),  # refused
        ]  # fmt: skip
    return [(path, {"max_tokens": 8, **body, "sp": {"session": False, **body.get("sp", {})}}) for path, body in made]


def answers(reply: dict[str, Any]) -> Any:
    """What a reply says, without ids and times."""
    if "error" in reply:
        return reply["error"]["message"]
    choices = reply["choices"]
    said = [each["text"] if "text" in each else each["message"]["content"] for each in choices]
    return said, [each["finish_reason"] for each in choices]


async def ask(http: httpx.AsyncClient, path: str, body: dict[str, Any], stream: bool) -> Any:
    """One request; a stream put together again."""
    if not stream:
        return answers((await http.post(f"/v1/{path}", json=body)).json())
    said, ends = dict[int, str](), dict[int, str]()
    async with http.stream("POST", f"/v1/{path}", json=body | {"stream": True}) as reply:
        if reply.status_code != 200:
            return answers(json.loads(await reply.aread()))
        async for line in reply.aiter_lines():
            for each in json.loads(line[6:])["choices"] if line.startswith("data: {") else ():
                more = each["text"] if "text" in each else each["delta"].get("content") or ""
                said[each["index"]] = said.get(each["index"], "") + more
                if each["finish_reason"]:
                    ends[each["index"]] = each["finish_reason"]
    return list(said.values()), list(ends.values())


async def leave(http: httpx.AsyncClient, path: str, body: dict[str, Any]) -> None:
    """Begin to listen, and go."""
    async with http.stream("POST", f"/v1/{path}", json=body | {"stream": True}) as reply:
        async for _ in reply.aiter_lines():
            break


def held(pid: int) -> dict[str, int]:
    """Resident megabytes, open files and threads of a process."""
    status = Path(f"/proc/{pid}/status").read_text()
    numbers = {name: int(re.search(rf"{name}:\s+(\d+)", status)[1]) for name in ("VmRSS", "Threads")}  # type: ignore
    return {"rss_mb": numbers["VmRSS"] >> 10, "files": len(list(Path(f"/proc/{pid}/fd").iterdir())),
            "threads": numbers["Threads"]}  # fmt: skip


async def load(url: str, pid: int, clients: int, requests: int) -> dict[str, Any]:
    """All of it; what was seen."""
    made, seen = kinds(), Counter[str]()
    async with httpx.AsyncClient(base_url=url, timeout=600) as one:
        expected = [await ask(one, path, body, False) for path, body in made]
        expected_again = [await ask(one, path, body, True) for path, body in made]
    before, start = held(pid), time.perf_counter()

    async def client(number: int) -> None:
        rng = random.Random(number)
        async with httpx.AsyncClient(base_url=url, timeout=600) as http:
            for _ in range(requests):
                at, how = rng.randrange(len(made)), rng.random()
                if how < 0.05:
                    await leave(http, *made[at])
                    seen["left"] += 1
                    continue
                found = await ask(http, *made[at], how < 0.5)
                seen["as alone" if json.dumps(found) == json.dumps(expected[at]) else f"other: {at}"] += 1

    await asyncio.gather(*(client(number) for number in range(clients)))
    seconds = time.perf_counter() - start
    await asyncio.sleep(1)
    same = json.dumps(expected) == json.dumps(expected_again)
    return {"seen": dict(seen), "streams_as_whole": same, "seconds": seconds, "before": before, "after": held(pid)}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("results", type=Path)
    parser.add_argument("--clients", type=int, default=16)
    parser.add_argument("--requests", type=int, default=50)
    given = parser.parse_args()
    command = [sys.executable, "-m", "sp.cli", "serve", "--port", "0", "--no-access-log", "--device", "cpu"]
    server = subprocess.Popen(command, stderr=subprocess.PIPE, text=True)
    try:
        assert server.stderr is not None
        said = ""
        while not (found := re.search("http://[0-9.]+:[0-9]+", said)):
            said = server.stderr.readline()
            assert said, "the server did not start"
        metrics = asyncio.run(load(found[0], server.pid, given.clients, given.requests))
    finally:
        server.terminate()
        server.wait(60)
    config = {"clients": given.clients, "requests": given.requests}
    append(make_record("serve_mixed", config, metrics, [], (), device="cpu"), given.results)
    print(json.dumps({**config, **metrics}))


if __name__ == "__main__":
    main()
