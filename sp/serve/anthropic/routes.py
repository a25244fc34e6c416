"""The endpoints of Anthropic's Messages API: answers, and how many tokens a prompt has."""

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
from sp.serve.anthropic.request import Asked, job_of
from sp.serve.fields import RequestError, as_request_error
from sp.serve.http import Bodies
from sp.serve.lanes import Lane, lane_of
from sp.serve.messages import to_prompt
from sp.serve.options import Defaults
from sp.serve.protocol import Job, parse_json
from sp.serve.worker import Worker

log = logging.getLogger("sp.serve")


class Answering(Protocol):
    """What answers jobs; see `sp.serve.app.Service`."""

    worker: Worker
    defaults: Defaults

    @property
    def bodies(self) -> Bodies: ...

    @property
    def model(self) -> str: ...

    async def respond(self, request: Request, job: Job, lane: Lane, reply: MessageReply) -> Response:
        """Queue a job, and have its answer written."""


async def guarded(service: Answering, work: Callable[[Request], Awaitable[Response]], request: Request) -> Response:
    """Serve one request; whatever goes wrong becomes one JSON error, in the shape that clients of its path read."""
    try:
        return await work(request)
    except ClientDisconnect:
        return Response(status_code=499)
    except Exception as error:
        told = as_request_error(error)
        service.worker.metrics.refused(told)
        if told.status == 500:
            log.exception("a request failed")
        return refusal(told, request.url.path, {"Retry-After": "1"} if told.status in (429, 503) else None)


class Messages:
    """The endpoints over a service."""

    def __init__(self, service: Answering) -> None:
        self._service = service
        self._counting = asyncio.Semaphore(1)  # a client may have every tool counted at once; the answer comes first

    def routes(self) -> list[Route]:
        """Where they are."""
        return [
            Route(PATH, partial(guarded, self._service, self._create), methods=["POST"]),
            Route(f"{PATH}/count_tokens", partial(guarded, self._service, self._count), methods=["POST"]),
        ]

    async def _create(self, request: Request) -> Response:
        service = self._service
        service.worker.check_room()
        async with service.bodies.read(request) as raw:
            job, asked, lane = await asyncio.to_thread(self._parse, request, raw)
        return await service.respond(request, job, lane, MessageReply(asked, service.model))

    async def _count(self, request: Request) -> Response:
        async with self._service.bodies.read(request) as raw, self._counting:
            return JSONResponse({"input_tokens": await asyncio.to_thread(self._tokens, request, raw)})

    def _tokens(self, request: Request, raw: bytes) -> int:
        """Tokens of the prompt of a body; on any thread."""
        job, asked, _ = self._parse(request, raw)
        target = self._service.worker.pipeline.target
        try:
            prompt, _ = to_prompt(job, target.template, target.tokenizer)
            return len(prompt.tokenise(target.tokenizer))
        except Exception as error:
            raise asked.translated(as_request_error(error)) from error

    def _parse(self, request: Request, raw: bytes) -> tuple[Job, Asked, Lane]:
        """A body, checked, and whose request it is; on any thread."""
        service, body = self._service, parse_json(raw)
        target = service.worker.pipeline.target
        job, asked = job_of(body, service.defaults, target.template, target.tokenizer)
        try:
            job = service.worker.grammars.checked(job)
        except RequestError as error:
            raise asked.translated(error) from None
        service.worker.metrics.lines.inc(asked.lines)
        return job, asked, lane_of(asked.body, *whose(request))


def whose(request: Request) -> tuple[str, str]:
    """Address and API key of a client; the key may come in either header."""
    headers: Any = request.headers
    key = headers.get("x-api-key") or headers.get("authorization", "")
    return request.client.host if request.client else "", key
