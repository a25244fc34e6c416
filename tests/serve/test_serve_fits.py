"""A request that cannot fit is refused with 400 before a model reads any of it, with sessions and without."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest
import serving as tool
import web

from sp.session import Conversations, Pipeline, RunOptions, request
from sp.session.device.memory_manager import MemoryManager

WINDOW = 300
PARTS = [{"type": "text", "text": part} for part in (tool.document("quiet-coral", 3254257, 40), "What is green?")]
CHAT = {"messages": [{"role": "user", "content": PARTS}], "max_tokens": 8}
TEXT = {"prompt": f"{tool.document('quiet-coral', 3254257, 40)}\n\nWhat is green?", "max_tokens": 8}


@pytest.fixture(scope="module")
def narrow() -> Pipeline:
    """A target with a short window."""
    pair = tool.load()
    pair.target.model.config = replace(pair.target.model.config, context=WINDOW)
    return pair


@pytest.fixture
def read(monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """What was drafted or read."""
    done: list[str] = []
    for name in ("score_tokens", "finish"):
        monkeypatch.setattr(request, name, lambda *_, name=name, **__: done.append(name))
    return done


@pytest.mark.parametrize("sessions", [False, True])
@pytest.mark.parametrize(("path", "body"), [("chat/completions", CHAT), ("completions", TEXT)])
@pytest.mark.parametrize("stream", [False, True])
def test_over_the_window(
    narrow: Pipeline, read: list[str], sessions: bool, path: str, body: dict[str, Any], stream: bool
) -> None:
    options = RunOptions(keep_ratio=0.5, compress="always")
    with tool.serving(narrow, talks=Conversations(narrow) if sessions else None, options=options) as server:
        reply = web.post(f"{server.url}/v1/{path}", json=body | {"stream": stream}, timeout=30)
    error = reply.json()["error"]
    assert reply.status_code == 400
    assert f"has a context of {WINDOW}; sp.keep_ratio 0.5 leaves" in error["message"]
    assert "\n" not in error["message"]
    assert not read


@pytest.mark.parametrize("sessions", [False, True])
def test_over_a_budget_of_memory(read: list[str], sessions: bool) -> None:
    pair = tool.load()
    tight = replace(pair, memory_manager=MemoryManager(pair.target.model.nbytes + 1000))
    options = RunOptions(keep_ratio=0.5, compress="always")
    with tool.serving(tight, talks=Conversations(tight) if sessions else None, options=options) as server:
        reply = web.post(f"{server.url}/v1/chat/completions", json=CHAT, timeout=30)
    assert reply.status_code == 400
    assert "GiB at least, and the budget is" in reply.json()["error"]["message"]
    assert not read
