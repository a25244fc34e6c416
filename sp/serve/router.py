"""The router of several replicas: the choice of a replica for each request, and the endpoints over all of them."""

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
from sp.serve.fields import RequestError
from sp.serve.guard import Guard, access_middleware
from sp.serve.http import EXPOSITION, HEADER, SMALL_BODY, Bodies, ClientLimits
from sp.serve.protocol import parse_json
from sp.serve.replica import PASSED, Message, ReplicaCall
from sp.serve.streams import disconnected, event
from sp.serve.worker import stopping

PREFIX_STEP = 1024  # characters of a completion's prompt between the ends of two prefixes
MOST_PREFIXES = 1 << 16  # prefixes in memory; a conversation has one per message
EXTRA_LOAD = 2
"""Requests by which the holder of a prefix may be busier than another replica and still be chosen.

Waiting for one request costs about as much as reading the prompt again, which another replica would have to do.
"""

NO_REPLICA = "no replica is running"  # status of `/health`; Ray Serve starts lost ones again

Holder = TypeVar("Holder", bound=Hashable)


def prefixes_of(body: Mapping[str, Any]) -> tuple[str, ...]:
    """Return digests of the prefixes of a request, shortest first; requests with a common prefix share the first ones.

    In a chat a prefix ends after each message from the user's first on, because earlier ones, such as a system message,
    are shared by unrelated chats. In a completion a prefix ends every `PREFIX_STEP` characters. A ``prompt_cache_key``
    is a prefix that the client names.
    """
    messages, prompt, key = body.get("messages", body.get("input")), body.get("prompt"), body.get("prompt_cache_key")
    prompt = messages if isinstance(messages, str) else prompt  # `input` of the Responses API may be a text
    parts: list[Any] = []
    first = 0
    if isinstance(messages, list):
        parts = messages
        roles = [message.get("role") if isinstance(message, dict) else None for message in messages]
        first = roles.index("user") if "user" in roles else 0
    elif isinstance(prompt, str):
        parts = [prompt[start : start + PREFIX_STEP] for start in range(0, len(prompt), PREFIX_STEP)]
    digests, so_far = [], ""
    for index, part in enumerate(parts):
        so_far = _digest([so_far, part])  # chained: it covers everything before it, in linear time
        if index >= first:
            digests.append(so_far)
    return ((_digest([key]),) if isinstance(key, str) else ()) + tuple(digests)


def _digest(value: Any) -> str:
    return blake2b(json.dumps(value).encode(), digest_size=12).hexdigest()


class PrefixIndex(Generic[Holder]):
    """Maps prefixes to the replicas that read them last, and ranks replicas for the next request.

    `most`: prefixes in memory; the least recently used are dropped.
    """

    def __init__(self, most: int = MOST_PREFIXES) -> None:
        self._holders: OrderedDict[str, Holder] = OrderedDict()
        self._most, self._turn = most, 0

    def add(self, prefixes: Sequence[str], holder: Holder) -> None:
        """Record that a replica holds these prefixes."""
        for prefix in prefixes:
            self._holders[prefix] = holder
            self._holders.move_to_end(prefix)
        while len(self._holders) > self._most:
            self._holders.popitem(last=False)

    def order(self, prefixes: Sequence[str], busy: Mapping[Holder, int]) -> list[Holder]:
        """Return replicas, best first: the holder of the longest prefix unless it is too busy, then the least busy
        ones.

        `busy`: unfinished requests by replica, waiting ones included; replicas with equal load take turns.
        """
        self._turn += 1
        names = list(busy)
        turn = self._turn % max(len(names), 1)  # rotates the list, so that ties are broken in turns
        ordered = sorted(names[turn:] + names[:turn], key=lambda name: busy[name])
        holder = next(
            (self._holders[prefix] for prefix in reversed(prefixes) if self._holders.get(prefix) in busy), None
        )
        if holder is not None and busy[holder] <= busy[ordered[0]] + EXTRA_LOAD:
            ordered.remove(holder)
            ordered.insert(0, holder)
        return ordered


class ConversationRouter(RequestRouter):
    """Prefers the replica with the longest cached prefix of a request, unless it is much busier than the least busy
    one, which also gets requests without a prefix.
    """

    def initialize_state(self, **kwargs: Any) -> None:
        """Initialise; Ray Serve calls this before the first request."""
        self._prefix_index: PrefixIndex[Any] = PrefixIndex()
        self._busy = Counter[Any]()

    async def choose_replicas(self, candidate_replicas: list[Any], pending_request: Any = None) -> list[list[Any]]:
        """Return replicas by rank, each rank a list of one."""
        by_id = {replica.replica_id: replica for replica in candidate_replicas}
        order = self._prefix_index.order(
            _pending_prefixes(pending_request), {replica_id: self._busy[replica_id] for replica_id in by_id}
        )
        return [[by_id[replica_id]] for replica_id in order]

    def on_request_routed(self, pending_request: Any, replica_id: Any, result: Any) -> None:
        """Count a request that a replica has accepted."""
        self._busy[replica_id] += 1
        self._prefix_index.add(_pending_prefixes(pending_request), replica_id)

    def on_request_completed(self, replica_id: Any, internal_request_id: str) -> None:
        """Count a request as completed, also if its replica was lost."""
        if self._busy[replica_id] > 0:
            self._busy[replica_id] -= 1

    def update_replicas(self, replicas: list[Any]) -> None:
        """Take a new list of replicas and drop the counts of those that are gone."""
        super().update_replicas(replicas)
        for gone in set(self._busy) - {replica.replica_id for replica in replicas}:
            del self._busy[gone]


def _pending_prefixes(pending: Any) -> tuple[str, ...]:
    return pending.args[0].prefixes if pending is not None and pending.args else ()


log = logging.getLogger("sp.serve")

HANDOFF_SECONDS = 30.0  # until a replica must have received a request; it need not have started it
STATE_SECONDS = 5.0  # until replicas must report their state


class RouterService:
    """The endpoints over several replicas."""

    def __init__(
        self, handle: Any, replicas: int, limits: ClientLimits, cors: tuple[str, ...] = (), guard: Guard | None = None
    ) -> None:
        self._handle, self._replicas, self._limits, self._middleware = (
            handle,
            replicas,
            limits,
            access_middleware(cors, guard),
        )
        self._calls = handle.options(method_name="answer", stream=True)
        self._bodies, self._closed = Bodies(limits), False

    def app(self) -> Starlette:
        """Return the ASGI application."""
        routes = [
            Route("/health", self.health),
            Route("/metrics", self.metrics),
            Mount("/", self.serve),
        ]
        return Starlette(routes=routes, middleware=self._middleware)

    def close(self) -> None:
        """Take no more requests; those that run continue."""
        self._closed = True

    async def health(self, _: Request) -> Response:
        """Return the replicas that answer, each with its queue; 503 if there is none.

        All have answered before the router listens, so that none answers only if all were lost.
        """
        states = [state for state in await self._ask_all("state") if state["status"] == "ok"]
        status = "stopping" if self._closed else "ok" if states else NO_REPLICA
        model = states[0].pop("model") if states else None
        queues = [{key: state[key] for key in ("process", "waiting", "running", "queue_limit")} for state in states]
        body = {"status": status, "model": model, "asked": self._replicas, "replicas": queues}
        return JSONResponse(body, 200 if status == "ok" else 503)

    async def metrics(self, _: Request) -> Response:
        """Return the metrics of all replicas; each sample has the label `replica`."""
        registry = CollectorRegistry(auto_describe=False)
        registry.register(MergedMetrics(await self._ask_all("metrics")))
        return Response(generate_latest(registry), media_type=EXPOSITION)

    async def states(self) -> list[dict[str, Any]]:
        """Return the states of all replicas that answer."""
        return await self._ask_all("state")

    async def _ask_all(self, method: str) -> list[Any]:
        try:
            replies = await self._handle.broadcast(method).results_async(
                timeout_s=STATE_SECONDS, return_exceptions=True
            )
        except Exception as error:  # of Ray: no replica, or no answer in time
            log.info("replicas do not report their %s: %s", method, plain(repr(error)))
            return []
        return [reply for reply in replies if not isinstance(reply, BaseException)]

    async def serve(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Serve one request; an exception before its answer begins becomes one JSON error."""
        request = Request(scope, receive)
        try:
            if self._closed:
                raise stopping()
            if request.method != "POST":
                await self._relay(request, ReplicaCall(_passed(scope), b""), send)
                return
            async with self._bodies.read(request) as raw:
                # Large bodies in a thread, since parsing them would block the event loop.
                prefixes = _prefixes(raw) if len(raw) <= SMALL_BODY else await asyncio.to_thread(_prefixes, raw)
                await self._relay(request, ReplicaCall(_passed(scope), raw, prefixes), send)
        except ClientDisconnect:
            return
        except RequestError as error:
            retry = {"Retry-After": "1"} if error.status in (429, 503) else None
            await refusal(error, scope["path"], retry)(scope, receive, send)

    async def _relay(self, request: Request, call: ReplicaCall, send: Send) -> None:
        """Relay the answer to a call until it is complete or its client disconnects."""
        relay = AnswerRelay(send, self._limits.stall_seconds)
        parts = self._calls.remote(call)
        work, gone = asyncio.ensure_future(relay.relay(parts)), asyncio.ensure_future(disconnected(request))
        await asyncio.wait({work, gone}, return_when=asyncio.FIRST_COMPLETED)
        if not relay.ended:  # a complete answer also looks like a disconnect, and must not be cancelled
            work.cancel()
        gone.cancel()
        try:
            await work
        except asyncio.CancelledError:
            log.debug("a client disconnected")
        finally:
            if not relay.ended:
                parts.cancel()  # the replica stops its work


class AnswerRelay:
    """Relays the answer to one call from a replica to the client; `ended` is set when its last part is sent."""

    def __init__(self, send: Send, stall_seconds: float) -> None:
        self._send, self._stall = send, stall_seconds
        self._started = self._streams = self.ended = False

    async def relay(self, parts: Any) -> None:
        """Send parts as they come. RequestError: the replica failed before anything of the answer was sent."""
        try:
            async with asyncio.timeout(HANDOFF_SECONDS):
                await anext(parts)  # None, which says that the replica has the request
            while not self.ended:
                await self._pass(await anext(parts))
        except TimeoutError:
            if not self._started:
                message = (
                    f"no replica accepted the request within {HANDOFF_SECONDS:.0f} s; see /health and try again later"
                )
                raise RequestError(message, status=503, code="no_replica") from None
        except Exception as error:
            message = "the replica that served the request failed; send the request again"
            failure = RequestError(message, status=503, code="replica_lost")
            log.warning("%s: %s", failure, plain(repr(error)))
            if not self._started:
                raise failure from None
            if not self._streams:
                return  # the body has a length: only a broken connection can signal the error
            with suppress(TimeoutError):
                await self._pass({"type": "http.response.body", "body": event(failure.body()), "more_body": False})

    async def _pass(self, part: Message) -> None:
        if part["type"] == "http.response.start":
            part["headers"] = [
                (name, value) for name, value in part["headers"] if name != HEADER
            ]  # the router sets its own
            self._streams = any(name == b"content-type" and b"event-stream" in value for name, value in part["headers"])
        self._started = True
        self.ended = part["type"] == "http.response.body" and not part.get("more_body", False)
        async with asyncio.timeout(self._stall):  # drops a client that reads nothing
            await self._send(part)


class MergedMetrics:
    """A collector of the metrics of several replicas."""

    def __init__(self, texts: Iterable[tuple[int, str]]) -> None:
        self._texts = list(texts)

    def collect(self) -> Iterable[Metric]:
        """Return the metrics by name, with the samples of all replicas."""
        metrics: dict[str, Metric] = {}
        for process, text in self._texts:
            for family in text_string_to_metric_families(text):
                metric = metrics.setdefault(family.name, Metric(family.name, family.documentation, family.type))
                for sample in family.samples:
                    metric.add_sample(sample.name, {"replica": str(process), **sample.labels}, sample.value)
        return metrics.values()


def _passed(scope: Scope) -> dict[str, Any]:
    return {name: scope[name] for name in PASSED if name in scope}


def _prefixes(raw: bytes) -> tuple[str, ...]:
    """Return the prefixes of a body; none for one that is invalid, which its replica will refuse."""
    try:
        return prefixes_of(parse_json(raw))
    except RequestError:
        return ()
