"""Replies in the format of OpenAI's Responses API: one object, or the stream events that build it."""

from __future__ import annotations

import json
import secrets
import time
from collections.abc import Sequence
from dataclasses import asdict
from typing import Any

from sp.chat import Call
from sp.serve.fields import TOO_LONG, RequestError
from sp.serve.responses.request import ResponsesRequest
from sp.serve.streams import COMMENT
from sp.serve.text import Ended, Piece, TokenLogprob, chat_logprobs
from sp.serve.worker import Done, StageProgress

CODES = {429: "rate_limit_exceeded", 400: "invalid_prompt", 500: "server_error"}
"""Error codes of a failed response, by the HTTP status that the error would have had."""


class ResponseReply:
    """Writes the reply to one request. Output items are in the order of generation: thinking, text, calls. Each is
    closed before the next begins.

    >>> reply = ResponseReply(ResponsesRequest(), "target")
    >>> whole = reply.whole([Piece("Hi."), Ended(0, "stop")], Done({"prompt_tokens": 3, "completion_tokens": 2}))
    >>> whole["status"], whole["output"][0]["content"][0]["text"], whole["usage"]["total_tokens"]
    ('completed', 'Hi.', 5)
    """

    ping = COMMENT

    def __init__(self, request: ResponsesRequest, model: str) -> None:
        self._request = request
        self._head = {
            **{"id": _id("resp"), "object": "response", "created_at": int(time.time()), "model": model},
            **request.echo,
        }
        self._output: list[dict[str, Any]] = []
        self._open: dict[str, Any] | None = None  # the item of thinking or text that may be extended
        self._number, self._finish = 0, "stop"

    def whole(self, events: Sequence[Piece | Ended], done: Done) -> dict[str, Any]:
        """Return the object of a reply that is not streamed."""
        for item in events:
            if isinstance(item, Piece):
                self.piece(item)
            else:
                self.ended(item)
        return self._response(self._status, done)

    def begin(self) -> bytes:
        """Return the response without output."""
        return self._begin()

    def progress(self, progress: StageProgress) -> bytes:
        """Return an event with a type of our own, which clients skip."""
        return self._begin() + self._event("sp.progress", progress=asdict(progress))

    def piece(self, piece: Piece) -> bytes:
        """Return the events of a piece: items that it ends, begins and extends."""
        events = [self._begin()]
        if piece.reasoning:
            events.append(self._add("reasoning", piece.reasoning))
        if piece.text:
            events.append(self._add("message", piece.text, piece.logprobs))
        return b"".join([*events, *(self._called(call) for call in piece.calls)])

    def ended(self, end: Ended) -> bytes:
        """Close the last item as complete or incomplete. An answer without text and calls gets an empty message."""
        self._finish = end.finish_reason
        events = [self._begin()]
        if self._finish == "stop" and all(item["type"] == "reasoning" for item in self._output):
            events.append(self._add("message", ""))
        return b"".join([*events, self._close("incomplete" if self._finish == "length" else "completed")])

    def last(self, done: Done) -> bytes:
        """Return the event with the whole object."""
        return self._event(f"response.{self._status}", response=self._response(self._status, done))

    def failed(self, error: RequestError) -> bytes:
        """Return the end of a stream that failed."""
        body = self.translated(error).body()["error"]
        code = TOO_LONG if error.code == TOO_LONG else CODES.get(error.status, "server_error")
        response = self._response("failed") | {"error": {"code": code, "message": body["message"]}}
        return self._begin() + self._event("response.failed", response=response)

    def translated(self, error: RequestError) -> RequestError:
        """Return an error with the names of the request's own fields."""
        return self._request.translated(error)

    @property
    def _status(self) -> str:
        return "incomplete" if self._finish == "length" else "completed"

    def _response(self, status: str, done: Done | None = None) -> dict[str, Any]:
        """Return the object in its present state."""
        details = {"reason": "max_output_tokens"} if status == "incomplete" else None
        return {
            **self._head,
            **{"status": status, "error": None, "incomplete_details": details, "output": list(self._output)},
            "usage": None if done is None else usage_of(done.usage),
        }

    def _event(self, name: str, /, **fields: Any) -> bytes:
        """Return one event with its sequence number."""
        value = {"type": name, "sequence_number": self._number, **fields}
        self._number += 1
        return f"event: {name}\ndata: {json.dumps(value, ensure_ascii=False)}\n\n".encode()

    def _begin(self) -> bytes:
        """Return the events before all others, once."""
        if self._number:
            return b""
        response = self._response("in_progress")
        names = ("response.created", "response.in_progress")
        return b"".join(self._event(name, response=response) for name in names)

    def _item(self, item: dict[str, Any]) -> bytes:
        """Add an item to the output and return its first event."""
        self._output.append(item)
        return self._event("response.output_item.added", output_index=len(self._output) - 1, item=item)

    def _at(self) -> dict[str, Any]:
        """Return the fields that say which item an event is about, the last one."""
        return {"item_id": self._output[-1]["id"], "output_index": len(self._output) - 1}

    def _add(self, kind: str, text: str, logprobs: Sequence[TokenLogprob] = ()) -> bytes:
        """Add thinking or text, to a new item if the open one is of another kind."""
        events = []
        if self._open is None or self._open["type"] != kind:
            events.append(self._close())
            open_item = {"message": self._message, "reasoning": self._reasoning}[kind]
            events.append(open_item())
        assert self._open is not None
        if kind == "reasoning":
            self._open["summary"][0]["text"] += text
            name, more = "response.reasoning_summary_text.delta", {"summary_index": 0, "delta": text}
        else:
            entries = chat_logprobs(logprobs)["content"]
            part = self._open["content"][0]
            part["text"] += text
            part["logprobs"] += entries
            name, more = "response.output_text.delta", {"content_index": 0, "delta": text, "logprobs": entries}
        if text:
            events.append(self._event(name, **self._at(), **more))
        return b"".join(events)

    def _message(self) -> bytes:
        self._open = {"id": _id("msg"), "type": "message", "status": "in_progress", "role": "assistant", "content": []}
        events, part = self._item(self._open), {"type": "output_text", "text": "", "annotations": [], "logprobs": []}
        self._open["content"].append(part)
        return events + self._event("response.content_part.added", **self._at(), content_index=0, part=part)

    def _reasoning(self) -> bytes:
        self._open = {"id": _id("rs"), "type": "reasoning", "status": "in_progress", "summary": []}
        events, part = self._item(self._open), {"type": "summary_text", "text": ""}
        self._open["summary"].append(part)
        return events + self._event("response.reasoning_summary_part.added", **self._at(), summary_index=0, part=part)

    def _close(self, status: str = "completed") -> bytes:
        """Close the open item, if there is one."""
        item, self._open = self._open, None
        if item is None:
            return b""
        item["status"] = status
        if item["type"] == "reasoning":
            part, where = item["summary"][0], {**self._at(), "summary_index": 0}
            events = self._event("response.reasoning_summary_text.done", **where, text=part["text"])
            events += self._event("response.reasoning_summary_part.done", **where, part=part)
        else:
            part, where = item["content"][0], {**self._at(), "content_index": 0}
            content = {"text": part["text"], "logprobs": part["logprobs"]}
            events = self._event("response.output_text.done", **where, **content)
            events += self._event("response.content_part.done", **where, part=part)
        return events + self._event("response.output_item.done", output_index=len(self._output) - 1, item=item)

    def _called(self, call: Call) -> bytes:
        """Add a call, which is always complete."""
        events, name = self._close(), self._request.named_call(call.name)
        item = {"id": _id("fc"), "type": "function_call", "status": "in_progress", "call_id": _id("call"), **name}
        events += self._item(item | {"arguments": ""})
        self._output[-1] = item | {"arguments": call.json, "status": "completed"}
        events += self._event("response.function_call_arguments.delta", **self._at(), delta=call.json)
        events += self._event(
            "response.function_call_arguments.done", **self._at(), name=name["name"], arguments=call.json
        )
        index = len(self._output) - 1
        return events + self._event("response.output_item.done", output_index=index, item=self._output[index])


def usage_of(usage: dict[str, Any]) -> dict[str, Any]:
    """Translate the usage block of a chat to that of a response."""
    prompt, completion = usage["prompt_tokens"], usage["completion_tokens"]
    cached = usage.get("prompt_tokens_details", {}).get("cached_tokens", 0)
    return {
        "input_tokens": prompt,
        "input_tokens_details": {"cached_tokens": cached, "cache_write_tokens": 0},
        "output_tokens": completion,
        "output_tokens_details": usage.get("completion_tokens_details", {"reasoning_tokens": 0}),
        "total_tokens": prompt + completion,
        "sp": usage.get("sp", {}),
    }


def _id(kind: str) -> str:
    return f"{kind}_{secrets.token_hex(12)}"
