"""The door of several replicas: which one gets a request, and the endpoints over all of them."""

from __future__ import annotations

import asyncio
import json
import logging
from collections import Counter, OrderedDict
from collections.abc import Hashable, Iterable, Mapping, Sequence
from contextlib import suppress
from hashlib import blake2b
from typing import Any, Generic, TypeVar

from prometheus_client.core import CollectorRegistry, Metric
from prometheus_client.exposition import generate_latest
from prometheus_client.parser import text_string_to_metric_families
from ray.serve.request_router import RequestRouter
from starlette.applications import Starlette
from starlette.requests import ClientDisconnect, Request
from starlette.responses import JSONResponse, Response
from starlette.routing import Mount, Route
from starlette.types import Receive, Scope, Send

from sp.errors import plain
from sp.serve.anthropic.reply import refusal
from sp.serve.app import SMALL
from sp.serve.fields import RequestError
from sp.serve.guard import Guard, around
from sp.serve.http import EXPOSITION, HEADER, Bodies, Limits
from sp.serve.protocol import parse_json
from sp.serve.replica import PASSED, Call, Message
from sp.serve.streams import disconnected, event
from sp.serve.worker import stopping

PIECE = 1024  # characters of a completion's prompt that count as a message does in a chat
REMEMBERED = 1 << 16  # prefixes in memory; a conversation has one for every message
AHEAD = 2
"""Requests by which a replica may be busier than another and still be given what it holds the beginning of.

Each of them costs about the work of one prompt read anew, which is what another replica would have to do.
"""

Holder = TypeVar("Holder", bound=Hashable)


def prefixes_of(body: Mapping[str, Any]) -> tuple[str, ...]:
    """Digests of the beginnings of a request, shortest first; requests that begin alike share the first of them. Of a
    chat they end after each message from the first of the user on: what stands before it, such as a system message, is
    common to chats that have nothing else in common. Of a completion they end after every `PIECE` characters. A
    ``prompt_cache_key`` is a beginning that its client names.
    """
    messages, prompt, key = body.get("messages", body.get("input")), body.get("prompt"), body.get("prompt_cache_key")
    prompt = messages if isinstance(messages, str) else prompt  # an input of one text
    parts: list[Any] = []
    first = 0
    if isinstance(messages, list):
        parts = messages
        roles = [each.get("role") if isinstance(each, dict) else None for each in messages]
        first = roles.index("user") if "user" in roles else 0
    elif isinstance(prompt, str):
        parts = [prompt[start : start + PIECE] for start in range(0, len(prompt), PIECE)]
    digests, so_far = [], ""
    for index, part in enumerate(parts):
        so_far = _digest([so_far, part])
        if index >= first:
            digests.append(so_far)
    return ((_digest([key]),) if isinstance(key, str) else ()) + tuple(digests)


def _digest(value: Any) -> str:
    return blake2b(json.dumps(value).encode(), digest_size=12).hexdigest()


class Beginnings(Generic[Holder]):
    """Remembers who was given which prefixes, and orders replicas for the next request."""

    def __init__(self, most: int = REMEMBERED) -> None:
        self._holders: OrderedDict[str, Holder] = OrderedDict()
        self._most, self._turn = most, 0

    def given(self, prefixes: Sequence[str], holder: Holder) -> None:
        """A replica now holds these prefixes; what was used longest ago is forgotten where there are too many."""
        for prefix in prefixes:
            self._holders[prefix] = holder
            self._holders.move_to_end(prefix)
        while len(self._holders) > self._most:
            self._holders.popitem(last=False)

    def order(self, prefixes: Sequence[str], busy: Mapping[Holder, int]) -> list[Holder]:
        """Replicas, best first: who holds the longest prefix unless it is too busy, then those with the least to do.
        `busy`: requests that each has; of equals they take turns.
        """
        self._turn += 1
        names = list(busy)
        turn = self._turn % max(len(names), 1)
        ordered = sorted(names[turn:] + names[:turn], key=lambda name: busy[name])
        holder = next((self._holders[each] for each in reversed(prefixes) if self._holders.get(each) in busy), None)
        if holder is not None and busy[holder] <= busy[ordered[0]] + AHEAD:
            ordered.remove(holder)
            ordered.insert(0, holder)
        return ordered


class ConversationRouter(RequestRouter):
    """Gives a request to the replica that has read the most of it, and what is new to the one with the least to do."""

    def initialize_state(self, **kwargs: Any) -> None:
        """Called by Ray Serve before the first request."""
        self._beginnings: Beginnings[Any] = Beginnings()
        self._busy = Counter[Any]()

    async def choose_replicas(self, candidate_replicas: list[Any], pending_request: Any = None) -> list[list[Any]]:
        """Replicas by rank, one each."""
        found = {replica.replica_id: replica for replica in candidate_replicas}
        order = self._beginnings.order(_pending_prefixes(pending_request), {each: self._busy[each] for each in found})
        return [[found[each]] for each in order]

    def on_request_routed(self, pending_request: Any, replica_id: Any, result: Any) -> None:
        """A replica has taken a request."""
        self._busy[replica_id] += 1
        self._beginnings.given(_pending_prefixes(pending_request), replica_id)

    def on_request_completed(self, replica_id: Any, internal_request_id: str) -> None:
        """A replica is done with a request, or was lost with it."""
        if self._busy[replica_id] > 0:
            self._busy[replica_id] -= 1

    def update_replicas(self, replicas: list[Any]) -> None:
        """Some are new, some are gone; what those did that are gone is forgotten."""
        super().update_replicas(replicas)
        for gone in set(self._busy) - {replica.replica_id for replica in replicas}:
            del self._busy[gone]


def _pending_prefixes(pending: Any) -> tuple[str, ...]:
    return pending.args[0].prefixes if pending is not None and pending.args else ()


log = logging.getLogger("sp.serve")

TAKEN_SECONDS = 30.0  # in which a replica must have a request; it need not have begun with it
ASKED_SECONDS = 5.0  # in which replicas must say how they are


class Door:
    """The endpoints over several replicas."""

    def __init__(
        self, handle: Any, replicas: int, limits: Limits, cors: tuple[str, ...] = (), guard: Guard | None = None
    ) -> None:
        self._handle, self._replicas, self._limits, self._around = handle, replicas, limits, around(cors, guard)
        self._calls = handle.options(method_name="answer", stream=True)
        self._bodies, self._closed = Bodies(limits), False

    def app(self) -> Starlette:
        """The ASGI application."""
        routes = [
            Route("/health", self.health),
            Route("/metrics", self.metrics),
            Mount("/", self.serve),
        ]
        return Starlette(routes=routes, middleware=self._around)

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
        return Response(generate_latest(registry), media_type=EXPOSITION)

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
            await refusal(error, scope["path"], retry)(scope, receive, send)

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
        """Send parts as they come. RequestError: nothing of the answer was sent, and none will come."""
        try:
            async with asyncio.timeout(TAKEN_SECONDS):
                await anext(parts)
            while not self.ended:
                await self._pass(await anext(parts))
        except TimeoutError:
            if not self._begun:
                said = f"no replica took the request in {TAKEN_SECONDS:.0f} s; see /health, and try again later"
                raise RequestError(said, status=503, code="no_replica") from None
        except Exception as error:
            said = "the replica that had the request is gone, and the request with it; send it again"
            told = RequestError(said, status=503, code="replica_lost")
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
