"""A scripted server behind, and what shortens by words."""

from __future__ import annotations

import threading
from collections.abc import Iterator
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any

import pytest

pytest.importorskip("starlette")
pytest.importorskip("httpx")

from fronting import Behind

from sp.front.shorten import Compressor


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
