"""What the server adds to the time to first token, and what it does under load, on the embedded pair and document.

    python experiments/serve_load.py results [--device cuda] [--characters 2000,8000] [--requests 30] [--clients 16]

Appends to results/<machine>/serve_load.jsonl. Starts `sp serve` and asks over its socket. "Added" is what the client
waits for its first token less what the pipeline's own stages of the same request took, and less the wait in the queue;
rendering, parsing, sending and receiving count as added, the client's making of JSON does not. First one client at a
time at every prompt length, then all clients at once with the shortest. Where the embedded document is shorter than a
length it is repeated. A record holds all samples.
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

from sp.bench.record import append, make_record
from sp.kernels.device import pick_device
from sp.studies.sample import sample


def body(document: str, question: str) -> bytes:
    """A streamed request that compresses, as JSON."""
    content = [{"type": "text", "text": text} for text in (document, question)]
    given = {
        "messages": [{"role": "user", "content": content}],
        "stream": True, "stream_options": {"include_usage": True}, "max_tokens": 12,
        "sp": {"compress": "always", "keep_ratio": 0.3},
    }  # fmt: skip
    return json.dumps(given).encode()


async def ask(client: httpx.AsyncClient, request: bytes) -> dict[str, Any]:
    """Milliseconds of one request, as the client and as the server saw it."""
    start, first, text, usage = time.perf_counter(), None, "", None
    headers = {"Content-Type": "application/json"}
    async with client.stream("POST", "/v1/chat/completions", content=request, headers=headers) as reply:
        if reply.status_code != 200:
            return {"status": reply.status_code, "said": (await reply.aread()).decode()}
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


def cut(length: int) -> str:
    """So many characters of the embedded document round its needle, or the document repeated before it."""
    document, example = sample()
    start = max(0, document.index(example.needle) - length // 2)
    piece = document[start : start + length]
    plain = document.replace(example.needle, "")
    more = plain * -(-max(0, length - len(piece)) // len(plain))
    return more[: length - len(piece)] + piece


async def measure(
    url: str, lengths: list[int], requests: int, clients: int
) -> list[tuple[dict[str, Any], list[dict[str, Any]], float]]:
    """(configuration, answers, seconds) of each part."""
    question = sample()[1].question
    parts = []
    async with httpx.AsyncClient(base_url=url, timeout=600, limits=httpx.Limits(max_connections=None)) as client:
        for length in lengths:
            request = body(cut(length), question)
            await ask(client, request)
            began = time.perf_counter()
            answers = [await ask(client, request) for _ in range(requests)]
            config = {"clients": 1, "document_characters": length, "requests": requests}
            parts.append((config, answers, time.perf_counter() - began))
        request = body(cut(lengths[0]), question)
        began = time.perf_counter()

        async def busy() -> list[dict[str, Any]]:
            return [await ask(client, request) for _ in range(4)]

        answers = [answer for found in await asyncio.gather(*(busy() for _ in range(clients))) for answer in found]
        config = {"clients": clients, "document_characters": lengths[0], "requests": 4 * clients}
        parts.append((config, answers, time.perf_counter() - began))
    return parts


def summary(answers: list[dict[str, Any]], seconds: float) -> dict[str, Any]:
    """Medians and tails of the answers that came."""
    good = [answer for answer in answers if answer["status"] == 200]
    assert good, f"no answer: {answers[0]}"
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
    parser.add_argument("results", type=Path)
    parser.add_argument("--device", default="auto")
    parser.add_argument("--characters", default="2000,8000", help="of the document, ascending")
    parser.add_argument("--requests", type=int, default=30)
    parser.add_argument("--clients", type=int, default=16)
    given = parser.parse_args()
    device, lengths = pick_device(given.device), [int(item) for item in given.characters.split(",")]
    command = [sys.executable, "-m", "sp.cli", "serve", "--port", "0", "--queue", str(4 * given.clients)]
    server = subprocess.Popen([*command, "--device", device], stderr=subprocess.PIPE, text=True)
    try:
        assert server.stderr is not None
        said = ""
        while not (found := re.search("http://[0-9.:]+", said)):
            said = server.stderr.readline()
            assert said, "the server did not start"
        parts = asyncio.run(measure(found[0], lengths, given.requests, given.clients))
    finally:
        server.terminate()
        server.wait(60)
    for config, answers, seconds in parts:
        metrics = summary(answers, seconds)
        samples = [{k: v for k, v in answer.items() if k != "text"} for answer in answers]
        append(make_record("serve_load", config, metrics, samples, (), device=device), given.results)
        print(json.dumps({**config, **metrics}))


if __name__ == "__main__":
    main()
