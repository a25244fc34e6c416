"""Many clients at once over all three APIs of `sp serve`: what they are told is what each is told alone, and the server
takes no more memory and no more descriptors with time.

    python experiments/serve_mixed.py results [--device cpu] [--clients 16] [--requests 50]

Appends to results/<machine>/serve_mixed.jsonl; exit status 1 if an answer differs or fails. Each client has
conversations of five turns about a text of its own, whose turns go over chat completions, responses and Anthropic's
messages in its own order, whole and streamed. First one client after the other asks one server, then all at once ask
another; the embedded pair answers both. Resident memory and open descriptors of the server are looked at twenty times,
and compared between the second quarter, where the most sessions are remembered already, and the last.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import random
import sys
import time
from pathlib import Path
from typing import Any

import psutil
from serve_load import Client, serving

from sp.bench.record import append, make_record
from sp.evals.text.filler import filler
from sp.kernels.device import pick_device

TURNS = 5
TOKENS = 8
REFUSED = "status "
KEYS = ("quiet-lantern", "amber-coral")
SP = {"compress": "always", "keep_ratio": 0.3}
PATHS = {"chat": "/v1/chat/completions", "responses": "/v1/responses", "messages": "/v1/messages"}


def body(api: str, turns: list[dict[str, str]], stream: bool) -> bytes:
    """A request of an API, as JSON."""
    given: dict[str, Any] = {"stream": stream, "sp": SP, "model": "target"}
    if api == "responses":
        return json.dumps({**given, "input": turns, "max_output_tokens": TOKENS}).encode()
    return json.dumps({**given, "messages": turns, "max_tokens": TOKENS}).encode()


def text_of(api: str, stream: bool, got: bytes) -> str:
    """What an answer says."""
    if not stream:
        answer = json.loads(got)
        if api == "chat":
            return str(answer["choices"][0]["message"]["content"])
        content = answer["content"] if api == "messages" else [b for item in answer["output"] for b in item["content"]]
        return "".join(block["text"] for block in content)
    events = [json.loads(line[6:]) for line in got.decode().splitlines() if line.startswith("data: {")]
    if api == "chat":
        return "".join(choice["delta"].get("content", "") for event in events for choice in event["choices"])
    if api == "responses":
        return "".join(event["delta"] for event in events if event["type"] == "response.output_text.delta")
    return "".join(event["delta"].get("text", "") for event in events if event["type"] == "content_block_delta")


def document(rng: random.Random) -> str:
    """A text that holds a number of each key."""
    sentences = filler("grammar", rng)
    parts = [" ".join(next(sentences).text for _ in range(6)) for _ in range(len(KEYS) + 1)]
    said = (f"{key} was assigned the number {rng.randrange(10**6, 10**7)}." for key in KEYS)
    return " ".join(part for pair in zip(parts, (*said, ""), strict=True) for part in pair)


async def one(address: tuple[str, int], number: int, requests: int) -> list[str]:
    """What a client is told: its texts, or the status and the words of a refusal."""
    rng, told, turns = random.Random(number), list[str](), list[dict[str, str]]()
    async with Client(*address) as client:
        for asked in range(requests):
            question = f"What is the number of {KEYS[asked % len(KEYS)]}?"
            if asked % TURNS == 0:
                turns = [{"role": "user", "content": f"Client {number}, {asked}. {document(rng)}"}]
                turns += [{"role": "assistant", "content": "Yes."}]
            turns += [{"role": "user", "content": question}]
            api, stream = rng.choice(list(PATHS)), rng.random() < 0.5
            status, got, _ = await client.post(body(api, turns, stream), PATHS[api])
            told.append(text_of(api, stream, got) if status == 200 else f"{REFUSED}{status}: {got.decode()[:300]}")
            turns += [{"role": "assistant", "content": told[-1].strip() or "Nothing."}]
    return told


async def watched(pid: int, work: Any, every: float) -> tuple[list[list[str]], list[dict[str, Any]]]:
    """The answers of all, and what the server held meanwhile."""
    server, held, done = psutil.Process(pid), list[dict[str, Any]](), asyncio.ensure_future(work)
    start = time.perf_counter()
    while not done.done():
        await asyncio.wait([done], timeout=every)
        seconds = round(time.perf_counter() - start, 1)
        held.append({"s": seconds, "rss_bytes": server.memory_info().rss, "descriptors": server.num_fds()})
    return done.result(), held


async def together(address: tuple[str, int], clients: int, requests: int) -> list[list[str]]:
    return await asyncio.gather(*(one(address, number, requests) for number in range(clients)))


async def apart(address: tuple[str, int], clients: int, requests: int) -> list[list[str]]:
    return [await one(address, number, requests) for number in range(clients)]


def quarters(held: list[dict[str, Any]], name: str) -> tuple[int, int]:
    """The most that was held in the second quarter of the time, and in the last."""
    end = held[-1]["s"]
    parts = [(end / 4, end / 2), (0.75 * end, end)]
    second, last = (max(each[name] for each in held if low <= each["s"] <= high) for low, high in parts)
    return second, last


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("results", type=Path)
    parser.add_argument("--device", default="auto")
    parser.add_argument("--clients", type=int, default=16)
    parser.add_argument("--requests", type=int, default=50, help="of each client")
    given = parser.parse_args()
    device, amount = pick_device(given.device), (given.clients, given.requests)
    # More sessions than clients: none has to go while a client goes on with it.
    options = ("--device", device, "--queue", str(2 * given.clients), "--sessions", str(2 * given.clients))
    with serving(*options) as (address, pid):
        start = time.perf_counter()
        alone, _ = asyncio.run(watched(pid, apart(address, *amount), 1.0))
        seconds = time.perf_counter() - start
    with serving(*options) as (address, pid):
        start = time.perf_counter()
        told, held = asyncio.run(watched(pid, together(address, *amount), seconds / 40))
        seconds = time.perf_counter() - start
    pairs = [(one, all_) for ones, alls in zip(alone, told, strict=True) for one, all_ in zip(ones, alls, strict=True)]
    memory, descriptors = quarters(held, "rss_bytes"), quarters(held, "descriptors")
    metrics = {
        "answered": sum(not each.startswith(REFUSED) for _, each in pairs),
        "different": sum(one != all_ for one, all_ in pairs),
        "distinct_answers": len({one for one, _ in pairs}),
        "requests_per_second": len(pairs) / seconds,
        "rss_bytes": memory, "descriptors": descriptors,
    }  # fmt: skip
    config = {"clients": given.clients, "requests": len(pairs), "turns": TURNS, "apis": list(PATHS)}
    append(make_record("serve_mixed", config, metrics, held, (), device=device), given.results)
    print(json.dumps({**config, **metrics}))
    for one, all_ in [pair for pair in pairs if pair[0] != pair[1]][:5]:
        print(f"alone: {one!r}\ntogether: {all_!r}", file=sys.stderr)
    return int(any(one != all_ for one, all_ in pairs) or metrics["answered"] != len(pairs))


if __name__ == "__main__":
    sys.exit(main())
