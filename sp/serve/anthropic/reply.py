"""Replies as clients of Anthropic's Messages API read them: blocks, events of a stream, usage, errors."""

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
from sp.serve.anthropic.request import Asked
from sp.serve.fields import LONGEST_MESSAGE, TOO_LONG, RequestError
from sp.serve.text import Ended, Piece
from sp.serve.worker import Done, Reading

PATH = "/v1/messages"
VERSION = "anthropic-version"  # the header by which requests of these clients are known
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
SHORTEN = "prompt is too long"  # words by which Claude Code knows that it must shorten the conversation
OVERLOADED = 529
"""What Anthropic answers instead of 503; its clients try both again."""


def error_body(error: RequestError) -> dict[str, Any]:
    """An error in Anthropic's shape.

    >>> error_body(RequestError("there is no text", status=404))["error"]
    {'type': 'not_found_error', 'message': 'there is no text'}
    """
    kind = ERRORS.get(OVERLOADED if error.status == 503 else error.status, "invalid_request_error")
    message = f"{SHORTEN}: {error}" if error.code == TOO_LONG else str(error)
    return {"type": "error", "error": {"type": kind, "message": plain(message, LONGEST_MESSAGE)}}


def refusal(error: RequestError, path: str, headers: Mapping[str, str] | None = None) -> JSONResponse:
    """The answer to a request that failed, in the shape that clients of this path read."""
    if path == PATH or path.startswith(f"{PATH}/"):
        return JSONResponse(error_body(error), OVERLOADED if error.status == 503 else error.status, headers)
    return JSONResponse(error.body(), error.status, headers)


def model_of(given: Mapping[str, Any]) -> dict[str, Any]:
    """A model as Anthropic's clients read it. `given`: as OpenAI's do.

    >>> model_of({"id": "target", "created": 0})["created_at"]
    '1970-01-01T00:00:00Z'
    """
    at = datetime.fromtimestamp(given["created"], UTC).strftime("%Y-%m-%dT%H:%M:%SZ")
    return {"type": "model", "id": given["id"], "display_name": given["id"], "created_at": at}


def models_of(given: Mapping[str, Any]) -> dict[str, Any]:
    """The list of the one model that there is."""
    return {"data": [model_of(given)], "has_more": False, "first_id": given["id"], "last_id": given["id"]}


def usage_of(used: Mapping[str, Any], asked: Asked) -> dict[str, Any]:
    """The usage block. What a session remembered is read from the cache; the rest is input: nobody pays for writing
    to the cache, so none of it is told as such. `used`: OpenAI's.
    """
    cached = used["prompt_tokens_details"]["cached_tokens"]
    thought = used.get("completion_tokens_details", {}).get("reasoning_tokens", 0)
    return {
        "input_tokens": used["prompt_tokens"] - cached,
        "cache_creation_input_tokens": 0,
        "cache_read_input_tokens": cached,
        "output_tokens": used["completion_tokens"],
        **({"output_tokens_details": {"thinking_tokens": thought}} if thought else {}),
        "sp": {**used["sp"], **asked.told(used["sp"].get("ignored", ()))},
    }


def signature_of(thinking: str) -> str:
    """What stands for a signature: clients want one, and send it back; nobody checks it."""
    return f"sp-{blake2b(thinking.encode(errors='replace'), digest_size=16).hexdigest()}"


def named(kind: str, **value: Any) -> bytes:
    """One server-sent event with its name.

    >>> named("ping")
    b'event: ping\\ndata: {"type": "ping"}\\n\\n'
    """
    return f"event: {kind}\ndata: {json.dumps({'type': kind, **value}, ensure_ascii=False)}\n\n".encode()


class MessageReply:
    """Writes the answer to one request; see `sp.serve.worker.Writer`."""

    ping = named("ping")

    def __init__(self, asked: Asked, model: str) -> None:
        self._asked, self._end = asked, Ended(0, "stop")
        self._open: str | None = None  # the kind of block that is being written
        self._index, self._thinking, self._begun = -1, list[str](), False
        self._head = {"id": f"msg_{secrets.token_hex(12)}", "type": "message", "role": "assistant", "model": model}

    def whole(self, events: Sequence[Piece | Ended], done: Done) -> dict[str, Any]:
        """The message of an answer that is not streamed."""
        blocks = list[dict[str, Any]]()
        end = next((each for each in events if isinstance(each, Ended)), self._end)
        for kind, said in (step for each in events if isinstance(each, Piece) for step in steps(each)):
            if isinstance(said, Call):
                blocks.append({**_begin(kind, said), "input": said.arguments})
            elif blocks and blocks[-1]["type"] == kind:
                blocks[-1][kind] += said
            else:
                blocks.append({"type": kind, kind: said})
        for block in blocks:
            if block["type"] == "thinking":
                block["signature"] = signature_of(block["thinking"])
        return {**self._head, "content": blocks, **_why(end), "usage": usage_of(done.usage, self._asked)}

    def begin(self) -> bytes:
        """The message without its content, before everything else; what was read is known at its end."""
        if self._begun:
            return b""
        self._begun = True
        nothing: dict[str, Any] = {"stop_reason": None, "stop_sequence": None, "usage": dict.fromkeys(USED, 0)}
        return named("message_start", message={**self._head, "content": [], **nothing})

    def progress(self, read: Reading) -> bytes:
        """An event of a name that clients do not know, and pass over."""
        return self._started() + named("sp.progress", progress=asdict(read))

    def piece(self, piece: Piece) -> bytes:
        """Events of one more piece: blocks end where another kind begins, and every call is a block of its own."""
        said = [self._started()]
        for kind, part in steps(piece):
            if kind != self._open or isinstance(part, Call):
                said.append(self._close())
                self._index, self._open = self._index + 1, kind
                said.append(named("content_block_start", index=self._index, content_block=_begin(kind, part)))
            if isinstance(part, Call):
                said.append(self._delta("input_json_delta", partial_json=part.json))
            elif kind == "thinking":
                self._thinking.append(part)
                said.append(self._delta("thinking_delta", thinking=part))
            else:
                said.append(self._delta("text_delta", text=part))
        return b"".join(said)

    def ended(self, end: Ended) -> bytes:
        """The end of the last block; why the answer ended is told with the usage."""
        self._end = end
        return self._started() + self._close()

    def last(self, done: Done) -> bytes:
        """The usage, and the end of the message."""
        usage = usage_of(done.usage, self._asked)
        return named("message_delta", delta=_why(self._end), usage=usage) + named("message_stop")

    def failed(self, error: RequestError) -> bytes:
        """An error late in the answer, which is its last event."""
        return named("error", error=error_body(self.told(error))["error"])

    def told(self, error: RequestError) -> RequestError:
        """An error by the names of the request's fields."""
        return self._asked.translated(error)

    def _started(self) -> bytes:
        """The begin where it was not told yet, with a ping as Anthropic has one."""
        return begun + self.ping if (begun := self.begin()) else b""

    def _delta(self, kind: str, **value: str) -> bytes:
        return named("content_block_delta", index=self._index, delta={"type": kind, **value})

    def _close(self) -> bytes:
        """End the block that is being written; of thinking its signature comes last."""
        if self._open is None:
            return b""
        signed = b""
        if self._open == "thinking":
            signed = self._delta("signature_delta", signature=signature_of("".join(self._thinking)))
        self._open, self._thinking = None, []
        return signed + named("content_block_stop", index=self._index)


def steps(piece: Piece) -> Iterator[tuple[str, str | Call]]:
    """Parts of a piece in their order, each with the type of its block.

    >>> list(steps(Piece("Yes.", reasoning="hm")))
    [('thinking', 'hm'), ('text', 'Yes.')]
    """
    if piece.reasoning:
        yield "thinking", piece.reasoning
    if piece.text:
        yield "text", piece.text
    for call in piece.calls:
        yield "tool_use", call


def _begin(kind: str, said: str | Call) -> dict[str, Any]:
    """A block before its content."""
    if isinstance(said, Call):
        return {"type": kind, "id": f"toolu_{secrets.token_hex(12)}", "name": said.name, "input": {}}
    return {"type": kind, kind: "", **({"signature": ""} if kind == "thinking" else {})}


def _why(end: Ended) -> dict[str, Any]:
    """Why an answer ended, and the string that ended it."""
    if end.stop is not None and end.finish_reason == "stop":
        return {"stop_reason": "stop_sequence", "stop_sequence": end.stop}
    return {"stop_reason": REASONS[end.finish_reason], "stop_sequence": None}
