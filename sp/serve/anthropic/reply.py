"""Replies in the format of Anthropic's Messages API: content blocks, stream events, usage, errors."""

from __future__ import annotations

import json
import secrets
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import asdict
from datetime import UTC, datetime
from hashlib import blake2b
from typing import Any

from starlette.responses import JSONResponse

from sp.chat import Call
from sp.errors import plain
from sp.serve.anthropic.request import MessagesRequest
from sp.serve.fields import LONGEST_MESSAGE, TOO_LONG, RequestError
from sp.serve.text import Ended, Piece
from sp.serve.worker import Done, StageProgress

PATH = "/v1/messages"
VERSION = "anthropic-version"  # a header that only these clients send
REASONS = {"length": "max_tokens", "tool_calls": "tool_use", "stop": "end_turn"}
ERRORS = {
    401: "authentication_error",
    403: "permission_error",
    404: "not_found_error",
    413: "request_too_large",
    429: "rate_limit_error",
    500: "api_error",
    529: "overloaded_error",
}
USED = ("input_tokens", "cache_creation_input_tokens", "cache_read_input_tokens", "output_tokens")
SHORTEN = "prompt is too long"  # the text by which Claude Code knows that it must shorten the conversation
OVERLOADED = 529
"""Anthropic's status instead of 503; its clients retry after either."""


def error_body(error: RequestError) -> dict[str, Any]:
    """Return an error in Anthropic's format.

    >>> error_body(RequestError("there is no text", status=404))["error"]
    {'type': 'not_found_error', 'message': 'there is no text'}
    >>> error_body(RequestError("the upstream server does not answer", status=502))["error"]["type"]
    'api_error'
    """
    kind = ERRORS.get(OVERLOADED if error.status == 503 else error.status)
    kind = kind or ("api_error" if error.status >= 500 else "invalid_request_error")
    message = f"{SHORTEN}: {error}" if error.code == TOO_LONG else str(error)
    return {"type": "error", "error": {"type": kind, "message": plain(message, LONGEST_MESSAGE)}}


def refusal(error: RequestError, path: str, headers: Mapping[str, str] | None = None) -> JSONResponse:
    """Return the response to a request that failed, in the format that clients of its path parse."""
    if path == PATH or path.startswith(f"{PATH}/"):
        return JSONResponse(error_body(error), OVERLOADED if error.status == 503 else error.status, headers)
    return JSONResponse(error.body(), error.status, headers)


def model_of(model: Mapping[str, Any]) -> dict[str, Any]:
    """Return a model in Anthropic's format. `model`: the same in OpenAI's.

    >>> model_of({"id": "target", "created": 0})["created_at"]
    '1970-01-01T00:00:00Z'
    """
    created = datetime.fromtimestamp(model["created"], UTC).strftime("%Y-%m-%dT%H:%M:%SZ")
    return {"type": "model", "id": model["id"], "display_name": model["id"], "created_at": created}


def models_of(model: Mapping[str, Any]) -> dict[str, Any]:
    """Return the list of the only model."""
    return {"data": [model_of(model)], "has_more": False, "first_id": model["id"], "last_id": model["id"]}


def usage_of(used: Mapping[str, Any], request: MessagesRequest) -> dict[str, Any]:
    """Return the usage block. Tokens from a session count as read from the cache, all others as input; none count as
    written to the cache, because nobody pays for that here. `used`: OpenAI's usage block.
    """
    cached = used["prompt_tokens_details"]["cached_tokens"]
    thought = used.get("completion_tokens_details", {}).get("reasoning_tokens", 0)
    return {
        "input_tokens": used["prompt_tokens"] - cached,
        "cache_creation_input_tokens": 0,
        "cache_read_input_tokens": cached,
        "output_tokens": used["completion_tokens"],
        **({"output_tokens_details": {"thinking_tokens": thought}} if thought else {}),
        "sp": {**used["sp"], **request.usage_fields(used["sp"].get("ignored", ()))},
    }


def signature_of(thinking: str) -> str:
    """Return a placeholder for a signature: clients require one and send it back; nobody checks it."""
    return f"sp-{blake2b(thinking.encode(errors='replace'), digest_size=16).hexdigest()}"


def named_event(kind: str, **value: Any) -> bytes:
    """Return one server-sent event with its name.

    >>> named_event("ping")
    b'event: ping\\ndata: {"type": "ping"}\\n\\n'
    """
    return f"event: {kind}\ndata: {json.dumps({'type': kind, **value}, ensure_ascii=False)}\n\n".encode()


class MessageReply:
    """Writes the reply to one request; see `sp.serve.worker.Writer`."""

    ping = named_event("ping")

    def __init__(self, request: MessagesRequest, model: str) -> None:
        self._request, self._end = request, Ended(0, "stop")
        self._open: str | None = None  # type of the open block
        self._index, self._thinking, self._has_begun = -1, list[str](), False
        self._head = {"id": f"msg_{secrets.token_hex(12)}", "type": "message", "role": "assistant", "model": model}

    def whole(self, events: Sequence[Piece | Ended], done: Done) -> dict[str, Any]:
        """Return the message of a reply that is not streamed."""
        blocks = list[dict[str, Any]]()
        end = next((item for item in events if isinstance(item, Ended)), self._end)
        for kind, content in (step for item in events if isinstance(item, Piece) for step in typed_parts(item)):
            if isinstance(content, Call):
                blocks.append({**_begin(kind, content), "input": content.arguments})
            elif blocks and blocks[-1]["type"] == kind:
                blocks[-1][kind] += content
            else:
                blocks.append({"type": kind, kind: content})
        for block in blocks:
            if block["type"] == "thinking":
                block["signature"] = signature_of(block["thinking"])
        return {**self._head, "content": blocks, **_why(end), "usage": usage_of(done.usage, self._request)}

    def begin(self) -> bytes:
        """Return the first event: the message without content. Its usage is zero, as the tokens are not counted before
        the end.
        """
        if self._has_begun:
            return b""
        self._has_begun = True
        nothing: dict[str, Any] = {"stop_reason": None, "stop_sequence": None, "usage": dict.fromkeys(USED, 0)}
        return named_event("message_start", message={**self._head, "content": [], **nothing})

    def progress(self, progress: StageProgress) -> bytes:
        """Return an event with a name of our own, which clients skip."""
        return self._started() + named_event("sp.progress", progress=asdict(progress))

    def piece(self, piece: Piece) -> bytes:
        """Return the events of one more piece. A block ends where another kind begins; every call is a block of its
        own.
        """
        events = [self._started()]
        for kind, part in typed_parts(piece):
            if kind != self._open or isinstance(part, Call):
                events.append(self._close())
                self._index, self._open = self._index + 1, kind
                events.append(named_event("content_block_start", index=self._index, content_block=_begin(kind, part)))
            if isinstance(part, Call):
                events.append(self._delta("input_json_delta", partial_json=part.json))
            elif kind == "thinking":
                self._thinking.append(part)
                events.append(self._delta("thinking_delta", thinking=part))
            else:
                events.append(self._delta("text_delta", text=part))
        return b"".join(events)

    def ended(self, end: Ended) -> bytes:
        """Return the end of the last block; the stop reason follows with the usage."""
        self._end = end
        return self._started() + self._close()

    def last(self, done: Done) -> bytes:
        """Return the usage and the end of the message."""
        usage = usage_of(done.usage, self._request)
        return named_event("message_delta", delta=_why(self._end), usage=usage) + named_event("message_stop")

    def failed(self, error: RequestError) -> bytes:
        """Return the error that ends a stream."""
        return named_event("error", error=error_body(self.translated(error))["error"])

    def translated(self, error: RequestError) -> RequestError:
        """Return an error with the names of the request's own fields."""
        return self._request.translated(error)

    def _started(self) -> bytes:
        """Return the first event, if it was not sent yet, and a ping after it as Anthropic's servers send one."""
        return start + self.ping if (start := self.begin()) else b""

    def _delta(self, kind: str, **value: str) -> bytes:
        return named_event("content_block_delta", index=self._index, delta={"type": kind, **value})

    def _close(self) -> bytes:
        """Return the end of the open block; a block of thinking ends with its signature."""
        if self._open is None:
            return b""
        signed = b""
        if self._open == "thinking":
            signed = self._delta("signature_delta", signature=signature_of("".join(self._thinking)))
        self._open, self._thinking = None, []
        return signed + named_event("content_block_stop", index=self._index)


def typed_parts(piece: Piece) -> Iterator[tuple[str, str | Call]]:
    """Yield the parts of a piece in order, each with the type of its block.

    >>> list(typed_parts(Piece("Yes.", reasoning="hm")))
    [('thinking', 'hm'), ('text', 'Yes.')]
    """
    if piece.reasoning:
        yield "thinking", piece.reasoning
    if piece.text:
        yield "text", piece.text
    for call in piece.calls:
        yield "tool_use", call


def _begin(kind: str, content: str | Call) -> dict[str, Any]:
    """Return a block before its content."""
    if isinstance(content, Call):
        return {"type": kind, "id": f"toolu_{secrets.token_hex(12)}", "name": content.name, "input": {}}
    return {"type": kind, kind: "", **({"signature": ""} if kind == "thinking" else {})}


def _why(end: Ended) -> dict[str, Any]:
    """Return the reason why an answer ended, and the stop string if there was one."""
    if end.stop is not None and end.finish_reason == "stop":
        return {"stop_reason": "stop_sequence", "stop_sequence": end.stop}
    return {"stop_reason": REASONS[end.finish_reason], "stop_sequence": None}
