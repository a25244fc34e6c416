"""The JSON of answers, whole and in chunks, as OpenAI's clients read it."""

from __future__ import annotations

import json
import secrets
import time
from collections.abc import Sequence
from typing import Any

from sp.chat import Call
from sp.serve.protocol import Job
from sp.serve.worker import Done, Piece


class Reply:
    """Makes all JSON objects of one answer; they share an id."""

    def __init__(self, job: Job, model: str) -> None:
        self.chat, self.include_usage, self._called = job.kind == "chat", job.include_usage, 0
        self._head = {
            "id": f"{'chatcmpl' if self.chat else 'cmpl'}-{secrets.token_hex(12)}",
            "created": int(time.time()),
            "model": model,
        }

    def whole(self, pieces: Sequence[Piece], done: Done) -> dict[str, Any]:
        """The one object of an answer that is not streamed."""
        text, reasoning = ("".join(part) for part in ([p.text for p in pieces], [p.reasoning for p in pieces]))
        message: dict[str, Any] = {"role": "assistant", "content": text}
        if reasoning:
            message["reasoning_content"] = reasoning
        if calls := [self._call(call) for piece in pieces for call in piece.calls]:
            message |= {"content": text or None, "tool_calls": calls}
        content = {"message": message} if self.chat else {"text": text}
        choice = {"index": 0, **content, "finish_reason": done.finish_reason, "logprobs": None}
        kind = "chat.completion" if self.chat else "text_completion"
        return {**self._head, "object": kind, "choices": [choice], "usage": done.usage}

    def first(self) -> bytes:
        """Whose turn it is; empty for completions."""
        return self._chunk({"role": "assistant", "content": ""}) if self.chat else b""

    def piece(self, piece: Piece) -> bytes:
        """A chunk, of a chat with thinking and answer under their names; two for a call: its name, its arguments."""
        if not self.chat:
            return self._chunk(piece.text)
        named = {"reasoning_content": piece.reasoning, "content": piece.text}
        said = {name: text for name, text in named.items() if text}
        chunks = [self._chunk(said)] if said else []
        for call in piece.calls:
            index, whole = self._called, self._call(call)
            written = whole["function"]["arguments"]
            whole["function"] |= {"arguments": ""}
            chunks.append(self._chunk({"tool_calls": [{"index": index, **whole}]}))
            chunks.append(self._chunk({"tool_calls": [{"index": index, "function": {"arguments": written}}]}))
        return b"".join(chunks)

    def last(self, done: Done) -> bytes:
        """Why the answer ended, the usage if it was asked for, and the end mark."""
        end = self._chunk({} if self.chat else "", done.finish_reason)
        if self.include_usage:
            end += event({**self._head, "object": self._kind, "choices": [], "usage": done.usage})
        return end + b"data: [DONE]\n\n"

    def _call(self, call: Call) -> dict[str, Any]:
        """A call as clients read it, with an id of its own."""
        self._called += 1
        function = {"name": call.name, "arguments": call.json}
        return {"id": f"call_{secrets.token_hex(12)}", "type": "function", "function": function}

    @property
    def _kind(self) -> str:
        return "chat.completion.chunk" if self.chat else "text_completion"

    def _chunk(self, content: Any, finish: str | None = None) -> bytes:
        choice = {"index": 0, "delta" if self.chat else "text": content, "finish_reason": finish, "logprobs": None}
        return event({**self._head, "object": self._kind, "choices": [choice]})


def event(value: dict[str, Any]) -> bytes:
    """One server-sent event."""
    return b"data: " + json.dumps(value, ensure_ascii=False).encode() + b"\n\n"
