"""A server on a free port in a thread of this process, over the embedded pair."""

from __future__ import annotations

import random
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any, Literal

import sp
from sp.evals.text.filler import filler
from sp.serve.app import Service
from sp.serve.guard import Guard
from sp.serve.http import ClientLimits, Metrics, Server, listen
from sp.serve.options import Defaults
from sp.serve.worker import PipelineWorker
from sp.session import Conversations, Pipeline, RunOptions

OPTIONS = RunOptions(keep_ratio=0.5, max_new_tokens=12)
ALWAYS = {"sp": {"compress": "always"}}
TASKS = [(f"{a}-{b}", 1372619 * n + 1358274) for n, (a, b) in enumerate((a, b) for a in ("quiet", "cloudy", "amber")
         for b in ("lantern", "coral"))]  # fmt: skip
"""Keys and values of needles, all different."""


@dataclass(frozen=True)
class Running:
    """Where the server is, and its parts."""

    url: str
    port: int
    worker: PipelineWorker
    server: Server


def document(key: str, value: int, repeats: int = 2) -> str:
    """A text of the embedded pair's kind that holds one needle."""
    stream = filler("grammar", random.Random(f"{key} {repeats}"))
    before, after = (" ".join(next(stream).text for _ in range(n)) for n in (3 * repeats // 2, 2))
    return f"{before} {key} was assigned the number {value}. {after} "


def question(key: str) -> str:
    return f"What is the number of {key}?"


def chat(key: str, value: int) -> list[dict[str, Any]]:
    """Messages of a chat: a document with a needle, and the question about it."""
    parts = [{"type": "text", "text": text} for text in (document(key, value), question(key))]
    return [{"role": "user", "content": parts}]


def client(server: Running) -> Any:
    """The `openai` package's client of a server."""
    import httpx
    import openai

    plain = httpx.Client(verify=False, timeout=60)  # reading the machine's certificates takes longer than most requests
    return openai.OpenAI(base_url=f"{server.url}/v1", api_key="none", max_retries=0, timeout=60, http_client=plain)


def async_client(url: str) -> Any:
    """The same for many requests at once."""
    import httpx
    import openai

    plain = httpx.AsyncClient(verify=False, timeout=60)
    return openai.AsyncOpenAI(base_url=f"{url}/v1", api_key="none", max_retries=0, timeout=60, http_client=plain)


@contextmanager
def serving(
    pipeline: Pipeline,
    *,
    queue: int = 64,
    limits: ClientLimits | None = None,
    answer: int = 64,
    talks: Conversations | None = None,
    options: RunOptions = OPTIONS,
    cors: tuple[str, ...] = (),
    guard: Guard | None = None,
) -> Iterator[Running]:
    """Start, yield, stop; the end of the thread is asserted."""
    worker = PipelineWorker(pipeline, Metrics(), queue, talks)
    defaults = Defaults(options, answer, pipeline.speculator is not None)
    service = Service(worker, defaults, limits or ClientLimits(body_bytes=1 << 20), cors, guard)
    server, listener = Server(service, grace=5), listen("127.0.0.1", 0)
    port = listener.getsockname()[1]
    thread = threading.Thread(target=server.serve_on, args=[listener])
    thread.start()
    while not server.started:
        assert thread.is_alive()
        time.sleep(0.005)
    try:
        yield Running(f"http://127.0.0.1:{port}", port, worker, server)
    finally:
        server.should_exit = True
        thread.join(20)
        assert not thread.is_alive()


def until(condition, seconds: float = 10.0, pause: float = 0.01) -> None:  # type: ignore[no-untyped-def]
    """Wait for a condition; AssertionError if it does not come. A longer pause is for what costs much to ask."""
    end = time.monotonic() + seconds
    while not condition():
        assert time.monotonic() < end, "the condition did not come true"
        time.sleep(pause)


def load(device: Literal["cpu", "cuda"] = "cpu") -> Pipeline:
    return sp.load(device=device)
