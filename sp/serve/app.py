"""The endpoints of the server, and the replies that they send or stream."""

from __future__ import annotations

import asyncio
import logging
import secrets
import time
from collections import Counter
from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager
from dataclasses import asdict, dataclass, field
from functools import cached_property, partial
from typing import Any, Literal

from starlette.applications import Starlette
from starlette.exceptions import HTTPException
from starlette.requests import Request
from starlette.responses import HTMLResponse, JSONResponse, Response
from starlette.routing import Route

from sp.chat import Call
from sp.errors import short
from sp.serve.anthropic.reply import VERSION, model_of, models_of, refusal
from sp.serve.anthropic.routes import Messages, guarded
from sp.serve.fields import RequestError
from sp.serve.guard import Guard, around
from sp.serve.http import EXPOSITION, HEADERS, Bodies, Limits, chat_page
from sp.serve.lanes import Lane, lane_of
from sp.serve.options import Defaults
from sp.serve.protocol import Job, Kind, parse_json, parse_request
from sp.serve.responses.reply import ResponseReply
from sp.serve.responses.request import Asked
from sp.serve.streams import COMMENT, Answer, EventStream, accepted, event
from sp.serve.text import Ended, Piece, chat_logprobs, completion_logprobs
from sp.serve.tokens import Tokens
from sp.serve.worker import Done, Reading, Worker, Writer


class Reply:
    """Makes all JSON objects of one request's answers; they share an id."""

    ping = COMMENT

    def __init__(self, job: Job, model: str) -> None:
        self.chat, self.include_usage = job.kind == "chat", job.include_usage
        self._begun, self._called = set[int](), Counter[int]()
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

    def begin(self) -> bytes:
        """Nothing: many clients take the first chunk for the first token."""
        return b""

    def progress(self, read: Reading) -> bytes:
        """A chunk without choices."""
        return event({**self._head, "object": self._kind, "choices": [], "sp": {"progress": asdict(read)}})

    def piece(self, piece: Piece) -> bytes:
        """A chunk, of a chat with thinking and answer under their names; two for a call: its name, its arguments."""
        begin, index, logprobs = self._begin(piece.index), piece.index, self._logprobs(piece)
        if not self.chat:
            return begin + self._chunk(piece.text, index, logprobs=logprobs)
        named = {"reasoning_content": piece.reasoning, "reasoning": piece.reasoning, "content": piece.text}
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

    def failed(self, error: RequestError) -> bytes:
        """The end of a stream whose work has failed."""
        return event(error.body())

    def told(self, error: RequestError) -> RequestError:
        """An error in the words of the request."""
        return error

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
            message |= {"reasoning_content": reasoning, "reasoning": reasoning}  # clients know one or the other
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
        return (chat_logprobs if self.chat else completion_logprobs)(piece.logprobs)

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


log = logging.getLogger("sp.serve")

Spoken = Kind | Literal["response"]  # what an endpoint takes
SMALL = 1 << 14  # bytes of a body that the event loop parses itself


@dataclass
class Service:
    """The endpoints over one worker."""

    worker: Worker
    defaults: Defaults = field(default_factory=Defaults)
    limits: Limits = field(default_factory=Limits)
    cors: tuple[str, ...] = ()  # origins whose web pages may use the server; `"*"` for all
    guard: Guard | None = None  # whom it answers; what stands behind a door has none of its own

    @cached_property
    def bodies(self) -> Bodies:
        """What reads them."""
        return Bodies(self.limits)

    @property
    def model(self) -> str:
        """Name of the target in answers."""
        return self.worker.pipeline.target.path.stem

    def app(self) -> Starlette:
        """The ASGI application; its life is that of the worker's thread."""

        @asynccontextmanager
        async def lifespan(_: Starlette) -> AsyncIterator[None]:
            self.worker.start()
            yield
            await asyncio.to_thread(self.worker.stop)

        answers: dict[str, Spoken] = {
            "/v1/chat/completions": "chat",
            "/v1/completions": "completion",
            "/v1/responses": "response",
        }
        routes = [
            Route("/", self.page),
            *(
                Route(path, partial(guarded, self, partial(self.answer, kind)), methods=["POST"])
                for path, kind in answers.items()
            ),
            Route("/v1/models", self.models),
            Route("/v1/models/{name:path}", self.one_model),
            *Messages(self).routes(),
            *Tokens(self).routes(),
            Route("/health", self.health),
            Route("/metrics", self.show_metrics),
        ]
        errors = {HTTPException: _http_error}
        return Starlette(
            routes=routes, middleware=around(self.cors, self.guard), lifespan=lifespan, exception_handlers=errors
        )

    def close(self) -> None:
        """Take no more requests; the one at work goes on."""
        self.worker.close()

    async def answer(self, kind: Spoken, request: Request) -> Response:
        """Parse one request, and have it answered."""
        self.worker.check_room()
        async with self.bodies.read(request) as raw:
            parse = partial(self._parse, request, kind, raw)
            job, lane, reply = parse() if len(raw) <= SMALL else await asyncio.to_thread(parse)
        return await self.respond(request, job, lane, reply)

    def _parse(self, request: Request, kind: Spoken, raw: bytes) -> tuple[Job, Lane, Writer | None]:
        """A body, checked, whose request it is, and what writes its answer if not `Reply`; on any thread."""
        body, reply, checked = parse_json(raw), None, self.worker.grammars.checked
        if kind == "response":
            asked = Asked.of(body, self.defaults, self.worker.pipeline.target.template)
            job, body, reply = asked.job(self.defaults, checked), asked.body, ResponseReply(asked, self.model)
        else:
            job = checked(parse_request(kind, body, self.defaults))
        address = request.client.host if request.client else ""
        lane = lane_of(body, address, request.headers.get("authorization", ""))
        return job, lane, reply

    async def respond(self, request: Request, job: Job, lane: Lane, reply: Writer | None = None) -> Response:
        """Queue a job and have its answer written. What is refused has a status of its own, of a stream as far as that
        is known by the time its headers have to go out; see `sp.serve.streams.accepted`.
        """
        answer, streaming, reply = Answer(self.worker, request, job.stream), False, reply or Reply(job, self.model)
        try:
            answer.ticket = self.worker.submit(job, answer.emit, lane)
            if job.stream:
                first = await accepted(answer, self.worker.ahead)
                streaming = True
                return EventStream(answer, first, reply, self.limits)
            events, item = [], await answer.next()
            while isinstance(item, Piece | Ended):
                events.append(item)
                item = await answer.next()
            assert isinstance(item, Done), item
            return JSONResponse(reply.whole(events, item))
        except RequestError as error:
            raise reply.told(error) from None
        finally:
            if not streaming:
                answer.leave()

    async def page(self, _: Request) -> Response:
        return HTMLResponse(chat_page(), headers=HEADERS)

    async def models(self, request: Request) -> Response:
        if VERSION in request.headers:
            return JSONResponse(models_of(self._model))
        return JSONResponse({"object": "list", "data": [self._model]})

    async def one_model(self, request: Request) -> Response:
        name = request.path_params["name"]
        if name == self.model:
            return JSONResponse(model_of(self._model) if VERSION in request.headers else self._model)
        told = RequestError(
            f"there is no model {short(name)!r}; this server has {self.model}",
            "model", status=404, code="model_not_found",
        )  # fmt: skip
        return JSONResponse(told.body(), told.status)

    @property
    def _model(self) -> dict[str, Any]:
        return {"id": self.model, "object": "model", "created": self.worker.started, "owned_by": "local"}

    async def health(self, _: Request) -> Response:
        state = {**self.worker.state, "model": self.model}
        return JSONResponse(state, 200 if state["status"] == "ok" else 503)

    async def show_metrics(self, _: Request) -> Response:
        return Response(self.worker.metrics.text(), media_type=EXPOSITION)


async def _http_error(request: Request, error: Exception) -> Response:
    assert isinstance(error, HTTPException), error
    told = RequestError(
        f"{request.method} {request.url.path}: {error.detail}; see /v1/chat/completions, /v1/completions, "
        "/v1/responses, /v1/messages, /v1/models, /health and /metrics",
        status=error.status_code, code="not_found",
    )  # fmt: skip
    return refusal(told, request.url.path, error.headers)
