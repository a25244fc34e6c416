"""A front on a free port in a thread of this process, and what a scripted server behind it got."""

from __future__ import annotations

import json
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Any

from sp.front.history import History
from sp.front.proxy import Front
from sp.front.rules import Rules
from sp.front.shorten import Compressor
from sp.front.store import DecisionStore
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


@contextmanager
def before(url: str, compressor: Compressor, rules: Rules | None = None) -> Iterator[tuple[str, Front]]:
    """A front on a free port."""
    front = Front(History(compressor, DecisionStore(1 << 20)), url, rules or Rules(threshold=256))
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
