"""The page at `/`, and what a reply says of kept text when it is asked to."""

from __future__ import annotations

import pytest
import serving as tool
import web
from markup_read import Read
from serving import TASKS, chat

from sp.serve.fields import RequestError
from sp.serve.options import Defaults
from sp.serve.protocol import parse_request


def test_the_page_needs_nothing_else_and_is_framed_by_nobody(server: tool.Running) -> None:
    reply = web.get(f"{server.url}/")
    assert reply.status_code == 200
    assert reply.headers["content-type"] == "text/html; charset=utf-8"
    assert "frame-ancestors 'none'" in reply.headers["content-security-policy"]
    seen = Read(reply.text)
    assert not [attributes for _, attributes in seen.tags if "src" in attributes or "href" in attributes]
    labelled = {attributes["for"] for name, attributes in seen.tags if name == "label" and "for" in attributes}
    assert labelled == {"document", "question"}
    assert web.post(f"{server.url}/").status_code == 405


@pytest.mark.parametrize("session", [True, False])
def test_kept_text_is_told_to_who_asks(server: tool.Running, session: bool) -> None:
    key, value = TASKS[0]
    asked = {"compress": "always", "return_kept": True, "session": session}
    body = {"messages": chat(key, value), "max_tokens": 2, "sp": asked}
    told = web.post(f"{server.url}/v1/chat/completions", json=body, timeout=60).json()["usage"]["sp"]
    text = "".join(piece["text"] for piece in told["kept_text"])
    assert text.startswith("<|im_start|>user\n" + tool.document(key, value).strip()[:40])
    by_kind = {kind: "".join(p["text"] for p in told["kept_text"] if p["kind"] == kind) for kind in
               ("kept", "question", "dropped")}  # fmt: skip
    assert by_kind["question"] == tool.question(key)
    assert 0 < len(by_kind["dropped"]) < len(text)
    for one, other in zip(told["kept_text"], told["kept_text"][1:], strict=False):
        assert one["kind"] != other["kind"]
    assert sum(piece["tokens"] for piece in told["kept_text"]) == told["cached"] + told["new"]
    del body["sp"]["return_kept"]  # type: ignore[attr-defined]
    told = web.post(f"{server.url}/v1/chat/completions", json=body, timeout=60).json()["usage"]["sp"]
    assert "kept_text" not in told


def test_it_is_yes_or_no() -> None:
    body = {"messages": [{"role": "user", "content": "x"}], "sp": {"return_kept": "yes"}}
    with pytest.raises(RequestError, match="return_kept"):
        parse_request("chat", body, Defaults())
