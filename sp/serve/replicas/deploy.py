"""Replicas on Ray Serve: started, watched over and restarted by it, and asked through one handle."""

from __future__ import annotations

import logging
import os
import re
import secrets
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from importlib import import_module
from typing import Any, Literal

from sp.cluster import Cluster
from sp.errors import ConfigError, plain
from sp.serve.replicas.replica import Build, Replica

MANY = 1 << 14
"""Requests that a replica may have at once as Ray Serve counts: its own queue refuses long before."""
LOOK_SECONDS = 2.0
"""Between looks whether a replica lives; one that was killed is replaced after at most so long."""
RAISED = re.compile(r"^(?:ray\.exceptions\.)?[\w.]*(?:Error|Exception)\b(?:\(\w+\))?: (.+)$", re.MULTILINE)


@contextmanager
def deployed(cluster: Cluster, build: Build, replicas: int, kind: Literal["GPU", "CPU"]) -> Iterator[Any]:
    """A handle of so many replicas, all of which are ready; inside they are kept alive, afterwards they end.

    Parameters
    ----------
    cluster : Cluster
    build : callable
        Makes the service of a replica, in its process.
    replicas : int
    kind : {"GPU", "CPU"}
        What a replica holds one of.

    Raises
    ------
    ConfigError
        The cluster has no room for them, or a service cannot be made.
    """
    if (free := cluster.free(kind, replicas)) < replicas:
        raise ConfigError(
            f"--replicas {replicas}: the cluster has {free} {kind}{'s' * (free != 1)} free, and each replica needs "
            "one; start fewer, or add hosts"
        )
    try:
        serve: Any = import_module("ray.serve")
        router: Any = import_module("ray.serve.config").RequestRouterConfig
        choice: Any = import_module("sp.serve.replicas.router").ConversationRouter
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
