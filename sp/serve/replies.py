"""The JSON of answers, whole and in chunks, as OpenAI's clients read it."""

from __future__ import annotations

import json
import secrets
import time
from collections import Counter
from collections.abc import Sequence
from typing import Any

from sp.chat import Call
from sp.serve.choices.speaker import Ended, Piece, chat_logprobs, completion_logprobs
from sp.serve.protocol import Job
from sp.serve.worker import Done


class Reply:
    """Makes all JSON objects of one request's answers; they share an id."""

    def __init__(self, job: Job, model: str) -> None:
        self.chat, self.include_usage = job.kind == "chat", job.include_usage
        self._begun, self._called, self._offsets = set[int](), Counter[int](), Counter[int]()
        self._head = {
            "id": f"{'chatcmpl' if self.chat else 'cmpl'}-{secrets.token_hex(12)}",
            "created": int(time.time()),
            "model": model,
        }

    def whole(self, events: Sequence[Piece | Ended], done: Done) -> dict[str, Any]:
        """The one object of answers that are not streamed."""
        choices = []
        for end in events:
            if isinstance(end, Ended):
                pieces = [each for each in events if isinstance(each, Piece) and each.index == end.index]
                choices.append(self._choice(pieces, end))
        kind = "chat.completion" if self.chat else "text_completion"
        return {**self._head, "object": kind, "choices": choices, "usage": done.usage}

    def piece(self, piece: Piece) -> bytes:
        """A chunk, of a chat with thinking and answer under their names; two for a call: its name, its arguments."""
        begin, index, logprobs = self._begin(piece.index), piece.index, self._logprobs(piece)
        if not self.chat:
            return begin + self._chunk(piece.text, index, logprobs=logprobs)
        named = {"reasoning_content": piece.reasoning, "content": piece.text}
        said = {name: text for name, text in named.items() if text}
        chunks = [begin, self._chunk(said, index, logprobs=logprobs)] if said or logprobs else [begin]
        for call in piece.calls:
            at, whole = self._called[index], self._call(call, index)
            written = whole["function"]["arguments"]
            whole["function"] |= {"arguments": ""}
            chunks.append(self._chunk({"tool_calls": [{"index": at, **whole}]}, index))
            chunks.append(self._chunk({"tool_calls": [{"index": at, "function": {"arguments": written}}]}, index))
        return b"".join(chunks)

    def ended(self, end: Ended) -> bytes:
        """Why an answer ended."""
        return self._begin(end.index) + self._chunk({} if self.chat else "", end.index, end.finish_reason)

    def last(self, done: Done) -> bytes:
        """The usage if it was asked for, and the end mark."""
        told = b""
        if self.include_usage:
            told = event({**self._head, "object": self._kind, "choices": [], "usage": done.usage})
        return told + b"data: [DONE]\n\n"

    def _begin(self, index: int) -> bytes:
        """Whose turn it is, before the first piece of an answer; nothing for completions."""
        if index in self._begun:
            return b""
        self._begun.add(index)
        return self._chunk({"role": "assistant", "content": ""}, index) if self.chat else b""

    def _choice(self, pieces: Sequence[Piece], end: Ended) -> dict[str, Any]:
        """One answer in full."""
        text, reasoning = ("".join(part) for part in ([p.text for p in pieces], [p.reasoning for p in pieces]))
        message: dict[str, Any] = {"role": "assistant", "content": text}
        if reasoning:
            message["reasoning_content"] = reasoning
        if calls := [self._call(call, end.index) for piece in pieces for call in piece.calls]:
            message |= {"content": text or None, "tool_calls": calls}
        content = {"message": message} if self.chat else {"text": text}
        tokens = tuple(each for piece in pieces for each in piece.logprobs)
        logprobs = self._logprobs(Piece("", index=end.index, logprobs=tokens))
        return {"index": end.index, **content, "finish_reason": end.finish_reason, "logprobs": logprobs}

    def _logprobs(self, piece: Piece) -> dict[str, Any] | None:
        """Those of a piece, where they were asked for."""
        if not piece.logprobs:
            return None
        if self.chat:
            return chat_logprobs(piece.logprobs)
        told = completion_logprobs(piece.logprobs, self._offsets[piece.index])
        self._offsets[piece.index] += sum(map(len, told["tokens"]))
        return told

    def _call(self, call: Call, index: int) -> dict[str, Any]:
        """A call as clients read it, with an id of its own."""
        self._called[index] += 1
        function = {"name": call.name, "arguments": call.json}
        return {"id": f"call_{secrets.token_hex(12)}", "type": "function", "function": function}

    @property
    def _kind(self) -> str:
        return "chat.completion.chunk" if self.chat else "text_completion"

    def _chunk(self, content: Any, index: int, finish: str | None = None, logprobs: Any = None) -> bytes:
        said = {"delta" if self.chat else "text": content}
        choice = {"index": index, **said, "finish_reason": finish, "logprobs": logprobs}
        return event({**self._head, "object": self._kind, "choices": [choice]})


def event(value: dict[str, Any]) -> bytes:
    """One server-sent event."""
    return b"data: " + json.dumps(value, ensure_ascii=False).encode() + b"\n\n"
