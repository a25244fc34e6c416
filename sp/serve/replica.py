"""Replicas: the actor that holds a service, and how Ray Serve starts, checks and restarts them."""

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

Message = MutableMapping[str, Any]  # an ASGI message: a part of an answer
Build = Callable[[Callable[[str], None]], Service]
"""Makes a service. Its argument receives notes for the user who started it, a line each."""
PASSED = ("type", "http_version", "method", "scheme", "path", "raw_path", "query_string", "headers", "client", "server")


@dataclass(frozen=True)
class ReplicaCall:
    """A request whose body was read."""

    scope: dict[str, Any]  # the plain values of its ASGI scope
    body: bytes
    prefixes: tuple[str, ...] = ()  # digests of its prefixes, see `sp.serve.router`


class Replica:
    """A service that answers calls.

    `folder`: base of relative paths, if it exists on this host; `alone`: the cluster is this machine, and only it may
    reach the replica.
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
        sys.setswitchinterval(SWITCH_SECONDS)  # this and the rest as in `sp.serve.http.Server`
        gc.collect()
        gc.freeze()

    async def answer(self, call: ReplicaCall) -> AsyncIterator[Message | None]:
        """Yield the parts of an answer, and before them None as soon as the call is here. To close the iterator is to
        the service as if its client had disconnected.
        """
        yield None  # tells the router that this replica has the request
        parts: asyncio.Queue[Message | None] = asyncio.Queue()
        body, gone = [call.body], asyncio.Event()

        async def receive() -> Message:
            if body:
                return {"type": "http.request", "body": body.pop(), "more_body": False}
            await gone.wait()  # ASGI: the next message after the body is the disconnect
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
            gone.set()  # the service cancels its work, as for a client that disconnects
            await working

    async def state(self) -> dict[str, Any]:
        """Return the state for the router's `/health`, and notes of the service."""
        return {**self.service.worker.state, "model": self.service.model, "process": os.getpid(), "notes": self.notes}

    async def metrics(self) -> tuple[int, str]:
        """Return the process id and the metrics."""
        return os.getpid(), self.service.worker.metrics.text().decode()

    async def check_health(self) -> None:
        """Raise if this replica must be replaced; Ray Serve calls this."""
        if self.service.worker.state["status"] != "ok":
            raise RuntimeError("the worker's thread has ended")


def listen_here_only() -> None:
    """Bind the port of this replica to 127.0.0.1; Ray Serve would open it on all interfaces.

    There is no option for it, and any process that reaches the port may send pickled objects. A test checks the open
    ports.
    """
    module: Any = import_module("ray.serve._private.replica")
    add: Callable[[Any, str], int] = module.add_port_to_grpc_server
    module.add_port_to_grpc_server = lambda server, address: add(server, address.replace("[::]", "127.0.0.1"))


MAX_ONGOING = 1 << 14  # Ray Serve's limit of requests per replica; the replica's own queue refuses long before
HEALTH_SECONDS = 2.0  # between health checks; a killed replica is replaced after at most this time
DRAIN_SECONDS = (
    0.1  # between checks whether a stopping replica still has a request; the default would wait at least 2 s
)
ERROR_LINE = re.compile(r"^(?:ray\.exceptions\.)?[\w.]*(?:Error|Exception)\b(?:\(\w+\))?: (.+)$", re.MULTILINE)


@contextmanager
def deployed(cluster: Cluster, build: Build, replicas: int, kind: Literal["GPU", "CPU"]) -> Iterator[Any]:
    """Start replicas and yield their handle once all are ready; inside they are restarted when they fail, afterwards
    they are stopped.

    `build`: makes the service of a replica, in its process. ConfigError: the cluster has no room for them, or a service
    cannot be made.
    """
    if (free := cluster.free(kind, replicas)) < replicas:
        raise ConfigError(
            f"--replicas {replicas}: the cluster has {free} {kind}{'s' * (free != 1)} free, and each replica needs "
            "one; start fewer, or add hosts"
        )
    try:
        serve: Any = import_module("ray.serve")
        router: Any = import_module("ray.serve.config").RequestRouterConfig
        choice: Any = import_module("sp.serve.router").ConversationRouter
    except ImportError as error:
        raise ConfigError(f"--replicas needs Ray Serve ({plain(str(error))}); pip install 'sp-prefill[ray]'") from None
    logging.getLogger("ray.serve").setLevel(logging.CRITICAL)  # important messages also come as exceptions
    name = f"sp-{secrets.token_hex(4)}"  # unique, since others may serve on the same cluster
    deployment = serve.deployment(
        num_replicas=replicas,
        ray_actor_options=cluster.share(kind, replicas),
        max_ongoing_requests=MAX_ONGOING,
        health_check_period_s=HEALTH_SECONDS,
        graceful_shutdown_timeout_s=HEALTH_SECONDS,
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
        with suppress(Exception):  # of Ray: the cluster may be gone
            serve.shutdown() if cluster.alone else serve.delete(name)


def _reason(serve: Any, name: str, error: Exception) -> str:
    """Return the error of a replica's constructor, from the traceback in Ray Serve's status."""
    texts = [str(error)]
    with suppress(Exception):
        application = serve.status().applications[name]
        texts += [
            application.message,
            *(deployment_status.message for deployment_status in application.deployments.values()),
        ]
    raised = [line for text in texts for line in ERROR_LINE.findall(text)]
    return plain(raised[-1] if raised else texts[0])
