"""The one address: requests are read here, answered by a replica, and their answers passed on as they come."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Iterable
from contextlib import suppress
from typing import Any

from prometheus_client.core import CollectorRegistry, Metric
from prometheus_client.exposition import generate_latest
from prometheus_client.parser import text_string_to_metric_families
from starlette.applications import Starlette
from starlette.requests import ClientDisconnect, Request
from starlette.responses import JSONResponse, Response
from starlette.routing import Mount, Route
from starlette.types import Receive, Scope, Send

from sp.errors import plain
from sp.serve.app import SMALL, disconnected
from sp.serve.fields import RequestError
from sp.serve.http.access import HEADER, Bodies, Limits, around
from sp.serve.protocol import parse_json
from sp.serve.replicas.replica import PASSED, Call, Message
from sp.serve.replicas.router import prefixes_of
from sp.serve.replies import event
from sp.serve.worker import stopping

log = logging.getLogger("sp.serve")

TAKEN_SECONDS = 30.0
"""In which a replica must have a request; it need not have begun with it."""
ASKED_SECONDS = 5.0
"""In which replicas must say how they are."""


class Door:
    """The endpoints over several replicas."""

    def __init__(self, handle: Any, replicas: int, limits: Limits, cors: tuple[str, ...] = ()) -> None:
        self._handle, self._replicas, self._limits, self._cors = handle, replicas, limits, cors
        self._calls = handle.options(method_name="answer", stream=True)
        self._bodies, self._closed = Bodies(limits), False

    def app(self) -> Starlette:
        """The ASGI application."""
        routes = [
            Route("/health", self.health),
            Route("/metrics", self.metrics),
            Mount("/", self.serve),
        ]
        return Starlette(routes=routes, middleware=around(self._cors))

    def close(self) -> None:
        """Take no more requests; those that are here go on."""
        self._closed = True

    async def health(self, _: Request) -> Response:
        """Replicas that answer, each with its queue; 503 if none does."""
        found = [state for state in await self._all("state") if state["status"] == "ok"]
        status = "stopping" if self._closed else "ok" if found else "starting"
        model = found[0].pop("model") if found else None
        told = [{key: state[key] for key in ("process", "waiting", "running", "queue_limit")} for state in found]
        body = {"status": status, "model": model, "asked": self._replicas, "replicas": told}
        return JSONResponse(body, 200 if status == "ok" else 503)

    async def metrics(self, _: Request) -> Response:
        """Metrics of all replicas, each sample with the label `replica`."""
        registry = CollectorRegistry(auto_describe=False)
        registry.register(Together(await self._all("metrics")))
        return Response(generate_latest(registry), media_type="text/plain; version=0.0.4; charset=utf-8")

    async def states(self) -> list[dict[str, Any]]:
        """What all replicas say of themselves."""
        return await self._all("state")

    async def _all(self, method: str) -> list[Any]:
        try:
            found = await self._handle.broadcast(method).results_async(timeout_s=ASKED_SECONDS, return_exceptions=True)
        except Exception as error:  # of Ray: there is none, or it does not answer in time
            log.info("replicas do not say their %s: %s", method, plain(repr(error)))
            return []
        return [each for each in found if not isinstance(each, BaseException)]

    async def serve(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Answer one request; whatever goes wrong before its answer has begun becomes one JSON error."""
        request = Request(scope, receive)
        try:
            if self._closed:
                raise stopping()
            if request.method != "POST":
                await self._pass_on(request, Call(_passed(scope), b""), send)
                return
            async with self._bodies.read(request) as raw:
                prefixes = _prefixes(raw) if len(raw) <= SMALL else await asyncio.to_thread(_prefixes, raw)
                await self._pass_on(request, Call(_passed(scope), raw, prefixes), send)
        except ClientDisconnect:
            return
        except RequestError as error:
            retry = {"Retry-After": "1"} if error.status in (429, 503) else None
            await JSONResponse(error.body(), error.status, retry)(scope, receive, send)

    async def _pass_on(self, request: Request, call: Call, send: Send) -> None:
        """Have a call answered, until that is done or its client leaves."""
        answer = Passing(send, self._limits.stall_seconds)
        parts = self._calls.remote(call)
        work, gone = asyncio.ensure_future(answer.pass_on(parts)), asyncio.ensure_future(disconnected(request))
        await asyncio.wait({work, gone}, return_when=asyncio.FIRST_COMPLETED)
        if not answer.ended:  # a client counts as gone, too, once it has the last of its answer
            work.cancel()
        gone.cancel()
        try:
            await work
        except asyncio.CancelledError:
            log.debug("a client has left")
        finally:
            if not answer.ended:
                parts.cancel()


class Passing:
    """The answer to one call, on its way from a replica to the client; `ended` once its last part is sent."""

    def __init__(self, send: Send, stall_seconds: float) -> None:
        self._send, self._stall = send, stall_seconds
        self._begun = self._streams = self.ended = False

    async def pass_on(self, parts: Any) -> None:
        """Send parts as they come.

        Raises
        ------
        RequestError
            Nothing of the answer was sent, and none will come.
        """
        try:
            async with asyncio.timeout(TAKEN_SECONDS):
                await anext(parts)
            while not self.ended:
                await self._pass(await anext(parts))
        except TimeoutError:
            if not self._begun:
                raise _not_taken() from None
        except Exception as error:
            told = _lost()
            log.warning("%s: %s", told, plain(repr(error)))
            if not self._begun:
                raise told from None
            if not self._streams:
                return  # the body was promised whole: that the connection breaks is all that can be said
            with suppress(TimeoutError):
                await self._pass({"type": "http.response.body", "body": event(told.body()), "more_body": False})

    async def _pass(self, part: Message) -> None:
        if part["type"] == "http.response.start":
            part["headers"] = [(name, value) for name, value in part["headers"] if name != HEADER]  # the door has it
            self._streams = any(name == b"content-type" and b"event-stream" in value for name, value in part["headers"])
        self._begun = True
        self.ended = part["type"] == "http.response.body" and not part.get("more_body", False)
        async with asyncio.timeout(self._stall):  # a reader that takes nothing is dropped
            await self._send(part)


class Together:
    """A collector of what several replicas have collected."""

    def __init__(self, texts: Iterable[tuple[int, str]]) -> None:
        self._texts = list(texts)

    def collect(self) -> Iterable[Metric]:
        """Metrics by name, with the samples of all."""
        found: dict[str, Metric] = {}
        for process, text in self._texts:
            for family in text_string_to_metric_families(text):
                kept = found.setdefault(family.name, Metric(family.name, family.documentation, family.type))
                for each in family.samples:
                    kept.add_sample(each.name, {"replica": str(process), **each.labels}, each.value)
        return found.values()


def _passed(scope: Scope) -> dict[str, Any]:
    return {name: scope[name] for name in PASSED if name in scope}


def _prefixes(raw: bytes) -> tuple[str, ...]:
    """Of a body that is sound; what is wrong with another its replica tells."""
    try:
        return prefixes_of(parse_json(raw))
    except RequestError:
        return ()


def _not_taken() -> RequestError:
    said = f"no replica took the request in {TAKEN_SECONDS:.0f} s; see /health, and try again later"
    return RequestError(said, status=503, code="no_replica")


def _lost() -> RequestError:
    """What a client is told when its replica ends."""
    said = "the replica that had the request is gone, and the request with it; send it again"
    return RequestError(said, status=503, code="replica_lost")
