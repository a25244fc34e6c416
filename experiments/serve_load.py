"""What the server adds to the time to first token, and what it does under load, on the embedded pair and document.

    python experiments/serve_load.py results [--device cuda] [--characters 2000,8000] [--requests 30] [--clients 16]

Appends to results/<machine>/serve_load.jsonl. Starts `sp serve` and asks over its socket. "Added" is what the client
waits for its first token less what the pipeline's own stages of the same request took, and less the wait in the queue;
rendering, parsing, sending and receiving count as added, the client's making of JSON and HTTP does not, for which it
writes to a socket: httpx takes 1 to 1.5 ms of its own. First one client at a time at every prompt length, then all
clients at once with the shortest. Where the embedded document is shorter than a length it is repeated. A record holds
all samples.
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
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import h11

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


class Client:
    """One connection that is kept; its requests follow each other."""

    def __init__(self, host: str, port: int) -> None:
        self.host, self.port = host, port

    async def __aenter__(self) -> Client:
        self.reader, self.writer = await asyncio.open_connection(self.host, self.port)
        return self

    async def __aexit__(self, *_: object) -> None:
        self.writer.close()
        await self.writer.wait_closed()

    async def post(self, body: bytes, path: str = "/v1/chat/completions") -> tuple[int, bytes, tuple[float, float]]:
        """Status, what came, and when the request began to be sent and the first event of the answer was there."""
        http = h11.Connection(h11.CLIENT)
        headers = {"Host": self.host, "Content-Type": "application/json", "Content-Length": str(len(body))}
        request = h11.Request(method="POST", target=path, headers=list(headers.items()))
        wire = b"".join(http.send(part) or b"" for part in (request, h11.Data(body), h11.EndOfMessage()))
        start, first, status, got = time.perf_counter(), 0.0, 0, []
        self.writer.write(wire)
        while not isinstance(event := http.next_event(), h11.EndOfMessage):
            if event is h11.NEED_DATA:
                http.receive_data(await self.reader.read(1 << 16))
            elif isinstance(event, h11.Response):
                status = event.status_code
            elif isinstance(event, h11.Data):
                got.append(bytes(event.data))
                if not first and b"data:" in got[-1]:  # not the comment that tells that a prompt is being read
                    first = time.perf_counter()
        return status, b"".join(got), (start, first)


async def ask(client: Client, request: bytes) -> dict[str, Any]:
    """Milliseconds of one request, as the client and as the server saw it."""
    status, got, (start, first) = await client.post(request)
    end = time.perf_counter()
    if status != 200:
        return {"status": status, "said": got.decode()}
    chunks = [json.loads(line[6:]) for line in got.decode().splitlines() if line.startswith("data: {")]
    assert chunks, "an answer without a chunk"
    usage = chunks[-1].get("usage")
    assert usage is not None, "an answer without a usage block"
    found = usage["sp"]
    own = sum(s["ms"] for s in found["stages"] if s["name"] not in ("render", "decode"))
    ttft = 1e3 * (first - start)
    return {
        "status": 200,
        "text": "".join(choice["delta"].get("content", "") for chunk in chunks for choice in chunk["choices"]),
        "prompt_tokens": usage["prompt_tokens"], "kept_tokens": found["kept_tokens"], "ttft_ms": ttft,
        "queue_ms": found["queue_ms"], "pipeline_ms": own, "added_ms": ttft - own - found["queue_ms"],
        "total_ms": 1e3 * (end - start),
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
    address: tuple[str, int], lengths: list[int], requests: int, clients: int
) -> list[tuple[dict[str, Any], list[dict[str, Any]], float]]:
    """(configuration, answers, seconds) of each part."""
    question = sample()[1].question
    parts = []
    async with Client(*address) as client:
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
        async with Client(*address) as client:
            return [await ask(client, request) for _ in range(4)]

    answers = [answer for found in await asyncio.gather(*(busy() for _ in range(clients))) for answer in found]
    config = {"clients": clients, "document_characters": lengths[0], "requests": 4 * clients}
    parts.append((config, answers, time.perf_counter() - began))
    return parts


@contextmanager
def serving(*options: str, name: str = "serve") -> Iterator[tuple[tuple[str, int], int]]:
    """`sp serve` or `sp front`, on a port that it picks itself: its address, and the id of its process."""
    command = [sys.executable, "-m", "sp.cli", name, "--port", "0", "--no-access-log", *options]
    server = subprocess.Popen(command, stderr=subprocess.PIPE, text=True)  # which nobody reads after its first lines
    try:
        assert server.stderr is not None
        said = ""
        while not (found := re.search("http://([0-9.]+):([0-9]+)", said)):
            said = server.stderr.readline()
            assert said, "the server did not start"
        yield (found[1], int(found[2])), server.pid
    finally:
        server.terminate()
        server.wait(60)


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
    with serving("--queue", str(4 * given.clients), "--device", device) as (address, _):
        parts = asyncio.run(measure(address, lengths, given.requests, given.clients))
    for config, answers, seconds in parts:
        metrics = summary(answers, seconds)
        samples = [{k: v for k, v in answer.items() if k != "text"} for answer in answers]
        append(make_record("serve_load", config, metrics, samples, (), device=device), given.results)
        print(json.dumps({**config, **metrics}))


if __name__ == "__main__":
    main()
