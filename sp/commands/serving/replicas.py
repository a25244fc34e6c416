"""`sp serve --replicas`: the door in this process, and what it opens to on a cluster of Ray."""

from __future__ import annotations

import asyncio
import pickle
from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack, contextmanager
from functools import partial
from typing import Literal

from sp.cluster import join
from sp.commands.serving.service import Asked, open_service
from sp.errors import ConfigError
from sp.kernels.device import pick_device
from sp.plugins import Plugin, loaded_plugins
from sp.serve.app import Service
from sp.serve.replicas.deploy import deployed
from sp.serve.replicas.door import Door


@contextmanager
def open_door(
    asked: Asked, replicas: int, address: str | None, cors: tuple[str, ...], tell: Callable[[str], None]
) -> Iterator[tuple[Door, str]]:
    """A door before so many replicas, all ready, and the name of their target; `tell` hears what they have to note.

    Raises
    ------
    ConfigError
        Ray is missing, its cluster has no room, or the pair cannot be opened.
    """
    with ExitStack() as stack:
        cluster = join("--replicas", address, replicas)
        stack.callback(cluster.close)
        kind: Literal["GPU", "CPU"] = "GPU" if pick_device(asked.device) == "cuda" else "CPU"
        handle = stack.enter_context(
            deployed(cluster, partial(open_replica, loaded_plugins(), pickle.dumps(asked)), replicas, kind)
        )
        door = Door(handle, replicas, asked.limits, cors)
        states = asyncio.run(door.states())
        if not states:
            raise ConfigError("the replicas have started but do not answer; see the logs of Ray Serve, /tmp/ray")
        for note in states[0]["notes"]:
            tell(note)
        yield door, states[0]["model"]


def open_replica(plugins: Sequence[Plugin], asked: bytes, tell: Callable[[str], None]) -> Service:
    """The service of a replica; what was asked for is read only once the plugins are here that it may speak of."""
    for plugin in plugins:
        plugin.load()
    return open_service(pickle.loads(asked), tell)
