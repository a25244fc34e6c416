"""What the server adds to the time to first token, and what it does under load, on the embedded pair and document.

    python experiments/serve_load.py results/<machine>/serve_load.jsonl [--requests 30] [--clients 16]

Starts `sp serve` and asks over its socket. "Added" is what the client waits for its first token less what the
pipeline's own stages of the same request took, and less the wait in the queue; rendering, parsing, sending and the
client's own work count as added. First one client at a time at two prompt lengths, then all clients at once. A record
holds all samples.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import re
import statistics
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import httpx
from sample_ttft import machine

from sp.studies.sample import sample

LENGTHS = (2_000, 8_000)  # characters of the document


def body(document: str, question: str) -> dict[str, Any]:
    """A streamed request that compresses."""
    content = [{"type": "text", "text": text} for text in (document, question)]
    return {
        "messages": [{"role": "user", "content": content}],
        "stream": True, "stream_options": {"include_usage": True}, "max_tokens": 12,
        "sp": {"compress": "always", "keep_ratio": 0.3},
    }  # fmt: skip


async def ask(client: httpx.AsyncClient, request: dict[str, Any]) -> dict[str, Any]:
    """Milliseconds of one request, as the client and as the server saw it."""
    start, first, text, usage = time.perf_counter(), None, "", None
    async with client.stream("POST", "/v1/chat/completions", json=request) as reply:
        if reply.status_code != 200:
            return {"status": reply.status_code}
        async for line in reply.aiter_lines():
            if line.startswith("data: {"):
                first = first or time.perf_counter()
                chunk = json.loads(line[6:])
                usage = chunk.get("usage") or usage
                text += "".join(choice["delta"].get("content", "") for choice in chunk["choices"])
    assert first is not None, "an answer without a chunk"
    assert usage is not None, "an answer without a usage block"
    found = usage["sp"]
    own = sum(s["ms"] for s in found["stages"] if s["name"] not in ("render", "decode"))
    ttft = 1e3 * (first - start)
    return {
        "status": 200, "text": text, "prompt_tokens": usage["prompt_tokens"], "kept_tokens": found["kept_tokens"],
        "ttft_ms": ttft, "queue_ms": found["queue_ms"], "pipeline_ms": own, "added_ms": ttft - own - found["queue_ms"],
        "total_ms": 1e3 * (time.perf_counter() - start),
    }  # fmt: skip


async def measure(url: str, requests: int, clients: int) -> list[tuple[dict[str, Any], list[dict[str, Any]], float]]:
    """(configuration, answers, seconds) of each part."""
    document, example = sample()
    at = document.index(example.needle)
    parts = []
    async with httpx.AsyncClient(base_url=url, timeout=600, limits=httpx.Limits(max_connections=None)) as client:
        for length in LENGTHS:
            start = max(0, at - length // 2)
            request = body(document[start : start + length], example.question)
            await ask(client, request)
            began = time.perf_counter()
            answers = [await ask(client, request) for _ in range(requests)]
            config = {"clients": 1, "document_characters": length, "requests": requests}
            parts.append((config, answers, time.perf_counter() - began))
        request = body(document[at - LENGTHS[0] // 2 : at + LENGTHS[0] // 2], example.question)
        began = time.perf_counter()

        async def busy() -> list[dict[str, Any]]:
            return [await ask(client, request) for _ in range(4)]

        answers = [answer for found in await asyncio.gather(*(busy() for _ in range(clients))) for answer in found]
        config = {"clients": clients, "document_characters": LENGTHS[0], "requests": 4 * clients}
        parts.append((config, answers, time.perf_counter() - began))
    return parts


def summary(answers: list[dict[str, Any]], seconds: float) -> dict[str, Any]:
    """Medians and tails of the answers that came."""
    good = [answer for answer in answers if answer["status"] == 200]
    added = sorted(answer["added_ms"] for answer in good)
    return {
        "answered": len(good),
        "other_statuses": sorted(answer["status"] for answer in answers if answer["status"] != 200),
        "different_answers": len({answer["text"] for answer in good}),
        "prompt_tokens": good[0]["prompt_tokens"],
        "ttft_ms_median": statistics.median(answer["ttft_ms"] for answer in good),
        "pipeline_ms_median": statistics.median(answer["pipeline_ms"] for answer in good),
        "added_ms_median": statistics.median(added),
        "added_ms_p95": added[min(len(added) - 1, int(0.95 * len(added)))],
        "requests_per_second": len(good) / seconds,
    }


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("out", type=Path)
    parser.add_argument("--requests", type=int, default=30)
    parser.add_argument("--clients", type=int, default=16)
    given = parser.parse_args()
    command = [sys.executable, "-m", "sp.cli", "serve", "--port", "0", "--queue", str(4 * given.clients)]
    server = subprocess.Popen(command, stderr=subprocess.PIPE, text=True)
    try:
        assert server.stderr is not None
        found = re.search("http://[0-9.:]+", server.stderr.readline())
        assert found, "the server did not start"
        parts = asyncio.run(measure(found[0], given.requests, given.clients))
    finally:
        server.terminate()
        server.wait(60)
    given.out.parent.mkdir(parents=True, exist_ok=True)
    with given.out.open("a", encoding="utf-8") as file:
        for config, answers, seconds in parts:
            metrics = summary(answers, seconds)
            samples = [{k: v for k, v in answer.items() if k != "text"} for answer in answers]
            record = {"bench": "serve_load", "config": config, "metrics": metrics, "samples": samples, **machine()}
            file.write(json.dumps(record) + "\n")
            print(json.dumps({**config, **metrics}))


if __name__ == "__main__":
    main()
