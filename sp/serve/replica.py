"""Replicas: the actor that holds a service, and how Ray Serve starts, watches and restarts them."""

from __future__ import annotations

import asyncio
import gc
import logging
import os
import re
import secrets
import sys
from collections.abc import AsyncIterator, Callable, Iterator, MutableMapping
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from importlib import import_module
from typing import Any, Literal

from sp.cluster import Cluster
from sp.errors import ConfigError, plain
from sp.serve.app import Service
from sp.serve.http import SWITCH_SECONDS

log = logging.getLogger("sp.serve")

Message = MutableMapping[str, Any]  # a part of an answer, as ASGI has it
Build = Callable[[Callable[[str], None]], Service]
"""Makes a service; what it is called with is told notes for the one who started it, a line each."""
PASSED = ("type", "http_version", "method", "scheme", "path", "raw_path", "query_string", "headers", "client", "server")


@dataclass(frozen=True)
class Call:
    """A request that has been read."""

    scope: dict[str, Any]  # what ASGI says of it, plain
    body: bytes
    prefixes: tuple[str, ...] = ()  # beginnings of its conversation, by which a replica is chosen


class Replica:
    """A service that answers calls. `folder`: what relative paths start from, if there is such a folder on this host;
    `alone`: whether the cluster is this machine, and nobody else is to reach the replica.
    """

    def __init__(self, build: Build, folder: str, alone: bool) -> None:
        if alone:
            listen_here_only()
        with suppress(OSError):
            os.chdir(folder)
        self.notes: list[str] = []
        self.service = build(self.notes.append)
        self._app = self.service.app()
        self.service.worker.start()
        sys.setswitchinterval(SWITCH_SECONDS)
        gc.collect()
        gc.freeze()

    async def answer(self, call: Call) -> AsyncIterator[Message | None]:
        """The parts of an answer as they come; before them None, as soon as the call is here. Whoever no longer wants
        them closes the iterator, which is to the service as if its client had left.
        """
        yield None
        parts: asyncio.Queue[Message | None] = asyncio.Queue()
        body, gone = [call.body], asyncio.Event()

        async def receive() -> Message:
            if body:
                return {"type": "http.request", "body": body.pop(), "more_body": False}
            await gone.wait()
            return {"type": "http.disconnect"}

        async def work() -> None:
            try:
                await self._app(dict(call.scope), receive, parts.put)
            except Exception:
                log.exception("a request failed")
            finally:
                parts.put_nowait(None)

        working = asyncio.create_task(work())
        try:
            while (part := await parts.get()) is not None:
                yield part
        finally:
            gone.set()
            await working

    async def state(self) -> dict[str, Any]:
        """For the door's `/health`, and what there is to note of the service."""
        return {**self.service.worker.state, "model": self.service.model, "process": os.getpid(), "notes": self.notes}

    async def metrics(self) -> tuple[int, str]:
        """Process and its metrics."""
        return os.getpid(), self.service.worker.metrics.text().decode()

    async def check_health(self) -> None:
        """Raise if this replica is to be replaced; Ray Serve asks."""
        if self.service.worker.state["status"] != "ok":
            raise RuntimeError("the thread that answers has ended")


def listen_here_only() -> None:
    """Have the port of this replica, which Ray Serve opens to every network after its constructor, be on 127.0.0.1.
    There is no option for it, and whoever reaches the port may send pickled objects. A test looks at the open ports.
    """
    module: Any = import_module("ray.serve._private.replica")
    add: Callable[[Any, str], int] = module.add_port_to_grpc_server
    module.add_port_to_grpc_server = lambda server, address: add(server, address.replace("[::]", "127.0.0.1"))


MANY = 1 << 14  # requests that a replica may have at once as Ray Serve counts: its own queue refuses long before
LOOK_SECONDS = 2.0  # between looks whether a replica lives; one that was killed is replaced after at most so long
DRAIN_SECONDS = 0.1  # between looks whether one that is to end has a request in hand; by default it waits 2 s at least
RAISED = re.compile(r"^(?:ray\.exceptions\.)?[\w.]*(?:Error|Exception)\b(?:\(\w+\))?: (.+)$", re.MULTILINE)


@contextmanager
def deployed(cluster: Cluster, build: Build, replicas: int, kind: Literal["GPU", "CPU"]) -> Iterator[Any]:
    """A handle of so many replicas, all of which are ready; inside they are kept alive, afterwards they end. `build`:
    makes the service of a replica, in its process; ConfigError: the cluster has no room for them, or a service cannot
    be made.
    """
    if (free := cluster.free(kind, replicas)) < replicas:
        raise ConfigError(
            f"--replicas {replicas}: the cluster has {free} {kind}{'s' * (free != 1)} free, and each replica needs "
            "one; start fewer, or add hosts"
        )
    try:
        serve: Any = import_module("ray.serve")
        router: Any = import_module("ray.serve.config").RequestRouterConfig
        choice: Any = import_module("sp.serve.door").ConversationRouter
    except ImportError as error:
        raise ConfigError(f"--replicas needs Ray Serve ({plain(str(error))}); pip install 'sp-prefill[ray]'") from None
    logging.getLogger("ray.serve").setLevel(logging.CRITICAL)  # what matters of it comes as an error
    name = f"sp-{secrets.token_hex(4)}"  # so that others may serve on the same cluster
    deployment = serve.deployment(
        num_replicas=replicas,
        ray_actor_options=cluster.share(kind, replicas),
        max_ongoing_requests=MANY,
        health_check_period_s=LOOK_SECONDS,
        graceful_shutdown_timeout_s=LOOK_SECONDS,
        graceful_shutdown_wait_loop_s=DRAIN_SECONDS,
        max_constructor_retry_count=1,
        request_router_config=router(request_router_class=choice),
    )(Replica)
    try:
        serve.start(proxy_location="Disabled")
        try:
            handle = serve.run(deployment.bind(build, os.getcwd(), cluster.alone), name=name, route_prefix=None)
        except RuntimeError as error:
            raise ConfigError(f"no replica could be started: {_reason(serve, name, error)}") from None
        yield handle
    finally:
        with suppress(Exception):  # of Ray, whose cluster may be gone
            serve.shutdown() if cluster.alone else serve.delete(name)


def _reason(serve: Any, name: str, error: Exception) -> str:
    """What the constructor of a replica ended by, out of the traceback that Ray Serve keeps of it."""
    texts = [str(error)]
    with suppress(Exception):
        found = serve.status().applications[name]
        texts += [found.message, *(each.message for each in found.deployments.values())]
    raised = [line for text in texts for line in RAISED.findall(text)]
    return plain(raised[-1] if raised else texts[0])
