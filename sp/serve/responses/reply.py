"""The answers of OpenAI's Responses API: one object, or the events of a stream that builds it up."""

from __future__ import annotations

import json
import secrets
import time
from collections.abc import Sequence
from dataclasses import asdict
from typing import Any

from sp.chat import Call
from sp.serve.fields import TOO_LONG, RequestError
from sp.serve.responses.request import Asked
from sp.serve.streams import COMMENT
from sp.serve.text import Ended, Piece, TokenLogprob, chat_logprobs
from sp.serve.worker import Done, Reading

CODES = {429: "rate_limit_exceeded", 400: "invalid_prompt", 500: "server_error"}
"""What a response that failed may say of its error, by the status that the error would have had."""


class ResponseReply:
    """Makes the answer of one request. Items of its output stand in the order in which the model says them: thinking,
    text, calls; each is closed before the next begins.

    >>> reply = ResponseReply(Asked(), "target")
    >>> whole = reply.whole([Piece("Hi."), Ended(0, "stop")], Done({"prompt_tokens": 3, "completion_tokens": 2}))
    >>> whole["status"], whole["output"][0]["content"][0]["text"], whole["usage"]["total_tokens"]
    ('completed', 'Hi.', 5)
    """

    ping = COMMENT

    def __init__(self, asked: Asked, model: str) -> None:
        self._asked = asked
        self._head = {
            **{"id": _id("resp"), "object": "response", "created_at": int(time.time()), "model": model},
            **asked.echo,
        }
        self._output: list[dict[str, Any]] = []
        self._open: dict[str, Any] | None = None  # the item of thinking or text that goes on
        self._number, self._finish = 0, "stop"

    def whole(self, events: Sequence[Piece | Ended], done: Done) -> dict[str, Any]:
        """The one object of an answer that is not streamed."""
        for each in events:
            if isinstance(each, Piece):
                self.piece(each)
            else:
                self.ended(each)
        return self._response(self._status, done)

    def begin(self) -> bytes:
        """The response, before anything is in it."""
        return self._begin()

    def progress(self, read: Reading) -> bytes:
        """An event of a type that clients do not know, and pass over."""
        return self._begin() + self._event("sp.progress", progress=asdict(read))

    def piece(self, piece: Piece) -> bytes:
        """Events of a piece: what begins with it, what it adds, what ends before it."""
        said = [self._begin()]
        if piece.reasoning:
            said.append(self._add("reasoning", piece.reasoning))
        if piece.text:
            said.append(self._add("message", piece.text, piece.logprobs))
        return b"".join([*said, *(self._called(call) for call in piece.calls)])

    def ended(self, end: Ended) -> bytes:
        """The last item is whole, or was cut; an answer without text or calls has a message that says nothing."""
        self._finish = end.finish_reason
        said = [self._begin()]
        if self._finish == "stop" and all(item["type"] == "reasoning" for item in self._output):
            said.append(self._add("message", ""))
        return b"".join([*said, self._close("incomplete" if self._finish == "length" else "completed")])

    def last(self, done: Done) -> bytes:
        """The whole object."""
        return self._event(f"response.{self._status}", response=self._response(self._status, done))

    def failed(self, error: RequestError) -> bytes:
        """The end of a stream whose work has failed."""
        told = self.told(error).body()["error"]
        code = TOO_LONG if error.code == TOO_LONG else CODES.get(error.status, "server_error")
        response = self._response("failed") | {"error": {"code": code, "message": told["message"]}}
        return self._begin() + self._event("response.failed", response=response)

    def told(self, error: RequestError) -> RequestError:
        """An error in the words of the request."""
        return self._asked.told(error)

    @property
    def _status(self) -> str:
        return "incomplete" if self._finish == "length" else "completed"

    def _response(self, status: str, done: Done | None = None) -> dict[str, Any]:
        """The object as it stands."""
        cut = {"reason": "max_output_tokens"} if status == "incomplete" else None
        return {
            **self._head,
            **{"status": status, "error": None, "incomplete_details": cut, "output": list(self._output)},
            "usage": None if done is None else usage_of(done.usage),
        }

    def _event(self, name: str, /, **fields: Any) -> bytes:
        """One event, with its number."""
        value = {"type": name, "sequence_number": self._number, **fields}
        self._number += 1
        return f"event: {name}\ndata: {json.dumps(value, ensure_ascii=False)}\n\n".encode()

    def _begin(self) -> bytes:
        """What stands before everything else."""
        if self._number:
            return b""
        response = self._response("in_progress")
        names = ("response.created", "response.in_progress")
        return b"".join(self._event(name, response=response) for name in names)

    def _item(self, item: dict[str, Any]) -> bytes:
        """An item begins."""
        self._output.append(item)
        return self._event("response.output_item.added", output_index=len(self._output) - 1, item=item)

    def _at(self) -> dict[str, Any]:
        """Where an event of the last item belongs."""
        return {"item_id": self._output[-1]["id"], "output_index": len(self._output) - 1}

    def _add(self, kind: str, text: str, logprobs: Sequence[TokenLogprob] = ()) -> bytes:
        """Thinking or text goes on, in a new item if the last is another."""
        said = []
        if self._open is None or self._open["type"] != kind:
            said.append(self._close())
            begun = {"message": self._message, "reasoning": self._reasoning}[kind]
            said.append(begun())
        assert self._open is not None
        if kind == "reasoning":
            self._open["summary"][0]["text"] += text
            name, more = "response.reasoning_summary_text.delta", {"summary_index": 0, "delta": text}
        else:
            told = chat_logprobs(logprobs)["content"]
            part = self._open["content"][0]
            part["text"] += text
            part["logprobs"] += told
            name, more = "response.output_text.delta", {"content_index": 0, "delta": text, "logprobs": told}
        if text:
            said.append(self._event(name, **self._at(), **more))
        return b"".join(said)

    def _message(self) -> bytes:
        self._open = {"id": _id("msg"), "type": "message", "status": "in_progress", "role": "assistant", "content": []}
        said, part = self._item(self._open), {"type": "output_text", "text": "", "annotations": [], "logprobs": []}
        self._open["content"].append(part)
        return said + self._event("response.content_part.added", **self._at(), content_index=0, part=part)

    def _reasoning(self) -> bytes:
        self._open = {"id": _id("rs"), "type": "reasoning", "status": "in_progress", "summary": []}
        said, part = self._item(self._open), {"type": "summary_text", "text": ""}
        self._open["summary"].append(part)
        return said + self._event("response.reasoning_summary_part.added", **self._at(), summary_index=0, part=part)

    def _close(self, status: str = "completed") -> bytes:
        """The open item ends, if there is one."""
        item, self._open = self._open, None
        if item is None:
            return b""
        item["status"] = status
        if item["type"] == "reasoning":
            part, where = item["summary"][0], {**self._at(), "summary_index": 0}
            said = self._event("response.reasoning_summary_text.done", **where, text=part["text"])
            said += self._event("response.reasoning_summary_part.done", **where, part=part)
        else:
            part, where = item["content"][0], {**self._at(), "content_index": 0}
            told = {"text": part["text"], "logprobs": part["logprobs"]}
            said = self._event("response.output_text.done", **where, **told)
            said += self._event("response.content_part.done", **where, part=part)
        return said + self._event("response.output_item.done", output_index=len(self._output) - 1, item=item)

    def _called(self, call: Call) -> bytes:
        """A call, which comes whole."""
        said, name = self._close(), self._asked.named_call(call.name)
        item = {"id": _id("fc"), "type": "function_call", "status": "in_progress", "call_id": _id("call"), **name}
        said += self._item(item | {"arguments": ""})
        self._output[-1] = item | {"arguments": call.json, "status": "completed"}
        said += self._event("response.function_call_arguments.delta", **self._at(), delta=call.json)
        said += self._event(
            "response.function_call_arguments.done", **self._at(), name=name["name"], arguments=call.json
        )
        index = len(self._output) - 1
        return said + self._event("response.output_item.done", output_index=index, item=self._output[index])


def usage_of(told: dict[str, Any]) -> dict[str, Any]:
    """The usage block of a chat in the words of a response."""
    read, written = told["prompt_tokens"], told["completion_tokens"]
    cached = told.get("prompt_tokens_details", {}).get("cached_tokens", 0)
    return {
        "input_tokens": read,
        "input_tokens_details": {"cached_tokens": cached, "cache_write_tokens": 0},
        "output_tokens": written,
        "output_tokens_details": told.get("completion_tokens_details", {"reasoning_tokens": 0}),
        "total_tokens": read + written,
        "sp": told.get("sp", {}),
    }


def _id(kind: str) -> str:
    return f"{kind}_{secrets.token_hex(12)}"
