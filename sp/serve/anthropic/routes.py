"""Endpoints of Anthropic's Messages API: answers, and token counts of prompts."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Awaitable, Callable
from functools import partial
from typing import Any, Protocol

from starlette.requests import ClientDisconnect, Request
from starlette.responses import JSONResponse, Response
from starlette.routing import Route

from sp.serve.anthropic.reply import PATH, MessageReply, refusal
from sp.serve.anthropic.request import MessagesRequest, job_of
from sp.serve.fair_queue import QueueKey, queue_key_of
from sp.serve.fields import RequestError, as_request_error
from sp.serve.http import Bodies
from sp.serve.messages import to_prompt
from sp.serve.options import Defaults
from sp.serve.protocol import CompletionJob, parse_json
from sp.serve.worker import PipelineWorker

log = logging.getLogger("sp.serve")


class AnswerService(Protocol):
    """A service that answers jobs; see `sp.serve.app.Service`."""

    worker: PipelineWorker
    defaults: Defaults

    @property
    def bodies(self) -> Bodies: ...

    @property
    def model(self) -> str: ...

    async def respond(self, request: Request, job: CompletionJob, queue_key: QueueKey, reply: MessageReply) -> Response:
        """Queue a job and return its response."""


async def guarded(service: AnswerService, work: Callable[[Request], Awaitable[Response]], request: Request) -> Response:
    """Serve one request; any exception becomes one JSON error, in the format that clients of its path parse."""
    try:
        return await work(request)
    except ClientDisconnect:
        return Response(status_code=499)
    except Exception as error:
        failure = as_request_error(error)
        service.worker.metrics.refused(failure)
        if failure.status == 500:
            log.exception("a request failed")
        return refusal(failure, request.url.path, {"Retry-After": "1"} if failure.status in (429, 503) else None)


class MessagesEndpoints:
    """The endpoints of a service."""

    def __init__(self, service: AnswerService) -> None:
        self._service = service
        self._counting = asyncio.Semaphore(
            1
        )  # one at a time: a client may count all of its tools at once, and answers need the cores

    def routes(self) -> list[Route]:
        """Return the routes."""
        return [
            Route(PATH, partial(guarded, self._service, self._create), methods=["POST"]),
            Route(f"{PATH}/count_tokens", partial(guarded, self._service, self._count), methods=["POST"]),
        ]

    async def _create(self, request: Request) -> Response:
        service = self._service
        service.worker.check_room()
        async with service.bodies.read(request) as raw:
            job, messages_request, queue_key = await asyncio.to_thread(self._parse, request, raw)
        return await service.respond(request, job, queue_key, MessageReply(messages_request, service.model))

    async def _count(self, request: Request) -> Response:
        async with self._service.bodies.read(request) as raw, self._counting:
            return JSONResponse({"input_tokens": await asyncio.to_thread(self._tokens, request, raw)})

    def _tokens(self, request: Request, raw: bytes) -> int:
        """Count the tokens of the prompt of a body; safe on any thread."""
        job, messages_request, _ = self._parse(request, raw)
        target = self._service.worker.pipeline.target
        try:
            prompt, _ = to_prompt(job, target.template, target.tokenizer)
            return len(prompt.tokenise(target.tokenizer))
        except Exception as error:
            raise messages_request.translated(as_request_error(error)) from error

    def _parse(self, request: Request, raw: bytes) -> tuple[CompletionJob, MessagesRequest, QueueKey]:
        """Parse a body; return its job, the translated request and its key in the queue. Safe on any thread."""
        service, body = self._service, parse_json(raw)
        target = service.worker.pipeline.target
        job, messages_request = job_of(body, service.defaults, target.template, target.tokenizer)
        try:
            job = service.worker.grammars.checked(job)
        except RequestError as error:
            raise messages_request.translated(error) from None
        service.worker.metrics.lines.inc(messages_request.lines)
        return job, messages_request, queue_key_of(messages_request.body, *client_of(request))


def client_of(request: Request) -> tuple[str, str]:
    """Return the address and the API key of a client; the key may be in either header."""
    headers: Any = request.headers
    key = headers.get("x-api-key") or headers.get("authorization", "")
    return request.client.host if request.client else "", key
