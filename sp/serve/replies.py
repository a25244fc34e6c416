"""The JSON of answers, whole and in chunks, as OpenAI's clients read it."""

from __future__ import annotations

import json
import secrets
import time
from typing import Any

from sp.serve.protocol import Job
from sp.serve.worker import Done


class Reply:
    """Makes all JSON objects of one answer; they share an id."""

    def __init__(self, job: Job, model: str) -> None:
        self.chat, self.include_usage = job.kind == "chat", job.include_usage
        self._head = {
            "id": f"{'chatcmpl' if self.chat else 'cmpl'}-{secrets.token_hex(12)}",
            "created": int(time.time()),
            "model": model,
        }

    def whole(self, text: str, done: Done) -> dict[str, Any]:
        """The one object of an answer that is not streamed."""
        content = {"message": {"role": "assistant", "content": text}} if self.chat else {"text": text}
        choice = {"index": 0, **content, "finish_reason": done.finish_reason, "logprobs": None}
        kind = "chat.completion" if self.chat else "text_completion"
        return {**self._head, "object": kind, "choices": [choice], "usage": done.usage}

    def first(self) -> bytes:
        """Whose turn it is; empty for completions."""
        return self._chunk({"role": "assistant", "content": ""}) if self.chat else b""

    def piece(self, text: str) -> bytes:
        return self._chunk({"content": text} if self.chat else text)

    def last(self, done: Done) -> bytes:
        """Why the answer ended, the usage if it was asked for, and the end mark."""
        end = self._chunk({} if self.chat else "", done.finish_reason)
        if self.include_usage:
            end += event({**self._head, "object": self._kind, "choices": [], "usage": done.usage})
        return end + b"data: [DONE]\n\n"

    @property
    def _kind(self) -> str:
        return "chat.completion.chunk" if self.chat else "text_completion"

    def _chunk(self, content: Any, finish: str | None = None) -> bytes:
        choice = {"index": 0, "delta" if self.chat else "text": content, "finish_reason": finish, "logprobs": None}
        return event({**self._head, "object": self._kind, "choices": [choice]})


def event(value: dict[str, Any]) -> bytes:
    """One server-sent event."""
    return b"data: " + json.dumps(value, ensure_ascii=False).encode() + b"\n\n"
