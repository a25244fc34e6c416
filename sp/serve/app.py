"""The endpoints of the server, and replies in the format of OpenAI's chat and text completions."""

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
from sp.serve.anthropic.routes import MessagesEndpoints, guarded
from sp.serve.fair_queue import QueueKey, queue_key_of
from sp.serve.fields import RequestError
from sp.serve.guard import Guard, access_middleware
from sp.serve.http import EXPOSITION, HEADERS, SMALL_BODY, Bodies, ClientLimits, chat_page
from sp.serve.options import Defaults
from sp.serve.protocol import CompletionJob, Kind, parse_json, parse_request
from sp.serve.responses.reply import ResponseReply
from sp.serve.responses.request import ResponsesRequest
from sp.serve.streams import COMMENT, EventStream, TicketEvents, event, first_event
from sp.serve.text import Ended, Piece, chat_logprobs, completion_logprobs
from sp.serve.tokens import TokenEndpoints
from sp.serve.worker import Done, PipelineWorker, StageProgress, Writer


class Reply:
    """Writes the JSON objects of one request's answers, which share an id."""

    ping = COMMENT

    def __init__(self, job: CompletionJob, model: str) -> None:
        self.chat, self.include_usage = job.kind == "chat", job.include_usage
        self._open_choices = set[int]()  # choices whose role was sent
        self._called = Counter[int]()  # calls by choice, for the index of the next
        self._head = {
            "id": f"{'chatcmpl' if self.chat else 'cmpl'}-{secrets.token_hex(12)}",
            "created": int(time.time()),
            "model": model,
        }

    def whole(self, events: Sequence[Piece | Ended], done: Done) -> dict[str, Any]:
        """Return the object of answers that are not streamed."""
        choices = []
        for end in events:
            if isinstance(end, Ended):
                pieces = [item for item in events if isinstance(item, Piece) and item.index == end.index]
                choices.append(self._choice(pieces, end))
        kind = "chat.completion" if self.chat else "text_completion"
        return {**self._head, "object": kind, "choices": choices, "usage": done.usage}

    def begin(self) -> bytes:
        """Return nothing, because many clients take the first chunk for the first token."""
        return b""

    def progress(self, progress: StageProgress) -> bytes:
        """Return a chunk without choices."""
        return event({**self._head, "object": self._kind, "choices": [], "sp": {"progress": asdict(progress)}})

    def piece(self, piece: Piece) -> bytes:
        """Return the chunks of a piece. Thinking and answer of a chat share one chunk; a call has two, its name and its
        arguments.
        """
        begin, index, logprobs = self._begin(piece.index), piece.index, self._logprobs(piece)
        if not self.chat:
            return begin + self._chunk(piece.text, index, logprobs=logprobs)
        texts = {"reasoning_content": piece.reasoning, "reasoning": piece.reasoning, "content": piece.text}
        delta = {name: text for name, text in texts.items() if text}
        chunks = [begin, self._chunk(delta, index, logprobs=logprobs)] if delta or logprobs else [begin]
        for call in piece.calls:
            number, whole = self._called[index], self._call(call, index)
            arguments = whole["function"]["arguments"]
            whole["function"] |= {"arguments": ""}
            chunks.append(self._chunk({"tool_calls": [{"index": number, **whole}]}, index))
            chunks.append(self._chunk({"tool_calls": [{"index": number, "function": {"arguments": arguments}}]}, index))
        return b"".join(chunks)

    def ended(self, end: Ended) -> bytes:
        """Return the chunk with the finish reason of an answer."""
        return self._begin(end.index) + self._chunk({} if self.chat else "", end.index, end.finish_reason)

    def last(self, done: Done) -> bytes:
        """Return the usage if the request wants it, and the end mark."""
        usage = b""
        if self.include_usage:
            usage = event({**self._head, "object": self._kind, "choices": [], "usage": done.usage})
        return usage + b"data: [DONE]\n\n"

    def failed(self, error: RequestError) -> bytes:
        """Return the end of a stream that failed."""
        return event(error.body())

    def translated(self, error: RequestError) -> RequestError:
        """Return the error as it is: its names are those of the request."""
        return error

    def _begin(self, index: int) -> bytes:
        """Return the chunk with the role, before the first piece of an answer; nothing for completions."""
        if index in self._open_choices:
            return b""
        self._open_choices.add(index)
        return self._chunk({"role": "assistant", "content": ""}, index) if self.chat else b""

    def _choice(self, pieces: Sequence[Piece], end: Ended) -> dict[str, Any]:
        """Return one answer in full."""
        text, reasoning = ("".join(part) for part in ([p.text for p in pieces], [p.reasoning for p in pieces]))
        message: dict[str, Any] = {"role": "assistant", "content": text}
        if reasoning:
            message |= {"reasoning_content": reasoning, "reasoning": reasoning}  # clients read one or the other
        if calls := [self._call(call, end.index) for piece in pieces for call in piece.calls]:
            message |= {"content": text or None, "tool_calls": calls}
        content = {"message": message} if self.chat else {"text": text}
        tokens = tuple(token for piece in pieces for token in piece.logprobs)
        logprobs = self._logprobs(Piece("", index=end.index, logprobs=tokens))
        return {"index": end.index, **content, "finish_reason": end.finish_reason, "logprobs": logprobs}

    def _logprobs(self, piece: Piece) -> dict[str, Any] | None:
        """Return the log probabilities of a piece; None if the request does not want them."""
        if not piece.logprobs:
            return None
        return (chat_logprobs if self.chat else completion_logprobs)(piece.logprobs)

    def _call(self, call: Call, index: int) -> dict[str, Any]:
        """Return a call in OpenAI's format, with an id of its own."""
        self._called[index] += 1
        function = {"name": call.name, "arguments": call.json}
        return {"id": f"call_{secrets.token_hex(12)}", "type": "function", "function": function}

    @property
    def _kind(self) -> str:
        return "chat.completion.chunk" if self.chat else "text_completion"

    def _chunk(self, content: Any, index: int, finish: str | None = None, logprobs: Any = None) -> bytes:
        content_field = {"delta" if self.chat else "text": content}
        choice = {"index": index, **content_field, "finish_reason": finish, "logprobs": logprobs}
        return event({**self._head, "object": self._kind, "choices": [choice]})


log = logging.getLogger("sp.serve")

EndpointKind = Kind | Literal["response"]  # kinds of requests by endpoint


@dataclass
class Service:
    """The endpoints over one worker."""

    worker: PipelineWorker
    defaults: Defaults = field(default_factory=Defaults)
    limits: ClientLimits = field(default_factory=ClientLimits)
    cors: tuple[str, ...] = ()  # origins whose web pages may use the server; "*" for all
    guard: Guard | None = None  # host names and key; a replica has none, because its router checks them

    @cached_property
    def bodies(self) -> Bodies:
        """The reader of bodies, which counts their bytes together."""
        return Bodies(self.limits)

    @property
    def model(self) -> str:
        """The name of the target in answers."""
        return self.worker.pipeline.target.path.stem

    def app(self) -> Starlette:
        """Return the ASGI application; the worker's thread runs as long as it does."""

        @asynccontextmanager
        async def lifespan(_: Starlette) -> AsyncIterator[None]:
            self.worker.start()
            yield
            await asyncio.to_thread(self.worker.stop)  # joins a thread

        answers: dict[str, EndpointKind] = {
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
            *MessagesEndpoints(self).routes(),
            *TokenEndpoints(self).routes(),
            Route("/health", self.health),
            Route("/metrics", self.show_metrics),
        ]
        errors = {HTTPException: _http_error}
        return Starlette(
            routes=routes,
            middleware=access_middleware(self.cors, self.guard),
            lifespan=lifespan,
            exception_handlers=errors,
        )

    def close(self) -> None:
        """Take no more requests; the one that runs continues."""
        self.worker.close()

    async def answer(self, kind: EndpointKind, request: Request) -> Response:
        """Parse one request and return its response."""
        self.worker.check_room()
        async with self.bodies.read(request) as raw:
            parse = partial(self._parse, request, kind, raw)
            job, queue_key, reply = parse() if len(raw) <= SMALL_BODY else await asyncio.to_thread(parse)
        return await self.respond(request, job, queue_key, reply)

    def _parse(self, request: Request, kind: EndpointKind, raw: bytes) -> tuple[CompletionJob, QueueKey, Writer | None]:
        """Parse a body; return its job, its key in the queue and the writer of its answer, if that is not `Reply`. Safe
        on any thread.
        """
        body, reply, checked = parse_json(raw), None, self.worker.grammars.checked
        if kind == "response":
            responses_request = ResponsesRequest.of(body, self.defaults, self.worker.pipeline.target.template)
            job, body, reply = (
                responses_request.job(self.defaults, checked),
                responses_request.body,
                ResponseReply(responses_request, self.model),
            )
        else:
            job = checked(parse_request(kind, body, self.defaults))
        address = request.client.host if request.client else ""
        queue_key = queue_key_of(body, address, request.headers.get("authorization", ""))
        return job, queue_key, reply

    async def respond(
        self, request: Request, job: CompletionJob, queue_key: QueueKey, reply: Writer | None = None
    ) -> Response:
        """Queue a job and return its response. A refusal has its own HTTP status; for a stream only if it is known by
        the time the headers must be sent, see `sp.serve.streams.first_event`.
        """
        ticket_events, streaming, reply = (
            TicketEvents(self.worker, request, job.stream),
            False,
            reply or Reply(job, self.model),
        )
        try:
            ticket_events.ticket = self.worker.submit(job, ticket_events.emit, queue_key)
            if job.stream:
                first = await first_event(ticket_events, self.worker.precheck)
                streaming = True
                return EventStream(ticket_events, first, reply, self.limits)
            events, item = [], await ticket_events.next()
            while isinstance(item, Piece | Ended):
                events.append(item)
                item = await ticket_events.next()
            assert isinstance(item, Done), item
            return JSONResponse(reply.whole(events, item))
        except RequestError as error:
            raise reply.translated(error) from None
        finally:
            if not streaming:  # `EventStream` closes it itself
                ticket_events.close()

    async def page(self, _: Request) -> Response:
        """Return the chat page."""
        return HTMLResponse(chat_page(), headers=HEADERS)

    async def models(self, request: Request) -> Response:
        """Return the list of models, which has one."""
        if VERSION in request.headers:
            return JSONResponse(models_of(self._model))
        return JSONResponse({"object": "list", "data": [self._model]})

    async def one_model(self, request: Request) -> Response:
        """Return the model, if it has the requested name."""
        name = request.path_params["name"]
        if name == self.model:
            return JSONResponse(model_of(self._model) if VERSION in request.headers else self._model)
        error = RequestError(
            f"there is no model {short(name)!r}; this server has {self.model}",
            "model", status=404, code="model_not_found",
        )  # fmt: skip
        return JSONResponse(error.body(), error.status)

    @property
    def _model(self) -> dict[str, Any]:
        return {"id": self.model, "object": "model", "created": self.worker.started, "owned_by": "local"}

    async def health(self, _: Request) -> Response:
        """Return the state of the worker; 503 if it takes no requests."""
        state = {**self.worker.state, "model": self.model}
        return JSONResponse(state, 200 if state["status"] == "ok" else 503)

    async def show_metrics(self, _: Request) -> Response:
        """Return the metrics in the exposition format."""
        return Response(self.worker.metrics.text(), media_type=EXPOSITION)


async def _http_error(request: Request, error: Exception) -> Response:
    assert isinstance(error, HTTPException), error
    failure = RequestError(
        f"{request.method} {request.url.path}: {error.detail}; see /v1/chat/completions, /v1/completions, "
        "/v1/responses, /v1/messages, /v1/models, /health and /metrics",
        status=error.status_code, code="not_found",
    )  # fmt: skip
    return refusal(failure, request.url.path, error.headers)
