"""A scripted server behind, and fronts before it that go by words or by the embedded drafter."""

from __future__ import annotations

import json
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any

import pytest

pytest.importorskip("starlette")
pytest.importorskip("httpx")

from sp.front.history import History, Rules, Store
from sp.front.proxy import Front
from sp.front.shorten import Compressor
from sp.serve.http import Server, listen


@dataclass
class Behind:
    """What the scripted server got, and what it says."""

    url: str = ""
    got: list[tuple[str, str, dict[str, str], bytes]] = field(default_factory=list)
    reply: bytes = b'{"choices": [], "usage": {"prompt_tokens": 7, "completion_tokens": 1}}'
    status: int = 200
    media: str = "application/json"
    extra: dict[str, str] = field(default_factory=dict)

    @property
    def body(self) -> Any:
        """The last body."""
        return json.loads(self.got[-1][3])


@pytest.fixture
def behind() -> Iterator[Behind]:
    told = Behind()

    class Handler(BaseHTTPRequestHandler):
        protocol_version = "HTTP/1.1"

        def answer(self) -> None:
            raw = self.rfile.read(int(self.headers.get("content-length", 0)))
            told.got.append((self.command, self.path, {k.lower(): v for k, v in self.headers.items()}, raw))
            self.send_response(told.status)
            for name, value in {"Content-Type": told.media, **told.extra}.items():
                self.send_header(name, value)
            if told.media == "text/event-stream":
                self.send_header("Transfer-Encoding", "chunked")
                self.end_headers()
                for piece in told.reply.split(b"\n\n"):
                    part = piece + b"\n\n"
                    self.wfile.write(f"{len(part):x}\r\n".encode() + part + b"\r\n")
                self.wfile.write(b"0\r\n\r\n")
            else:
                self.send_header("Content-Length", str(len(told.reply)))
                self.end_headers()
                self.wfile.write(told.reply)

        do_GET = do_POST = do_DELETE = answer  # noqa: N815  the library's names

        def log_message(self, *args: Any) -> None:
            """Nothing."""

    server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
    told.url = f"http://127.0.0.1:{server.server_port}"
    thread = threading.Thread(target=server.serve_forever, args=[0.02])
    thread.start()
    yield told
    server.shutdown()
    thread.join()
    server.server_close()


@pytest.fixture(scope="session")
def words() -> Compressor:
    return Compressor.open(scorer="bm25")


@contextmanager
def before(url: str, compressor: Compressor, rules: Rules | None = None) -> Iterator[tuple[str, Front]]:
    """A front on a free port."""
    front = Front(History(compressor, Store(1 << 20)), url, rules or Rules(threshold=256))
    server, listener = Server(front, grace=1), listen("127.0.0.1", 0)
    port = listener.getsockname()[1]
    thread = threading.Thread(target=server.serve_on, args=[listener])
    thread.start()
    try:
        yield f"http://127.0.0.1:{port}", front
    finally:
        server.should_exit = True
        thread.join(10)
        assert not thread.is_alive()
